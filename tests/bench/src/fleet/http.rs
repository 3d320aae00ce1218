//! The answers of a simulated API server.

use std::sync::atomic::Ordering;

use axum::extract::Query;
use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use watchdog_sandbox::protobuf::{self, LeaseList, ListMeta};

use super::objects::{Template, Values};
use super::{Fleet, FleetShoot, now, revision};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const NODES: &str = "/api/v1/nodes";
const JSON: &str = "application/json";

/// As kube-apiserver has them: they are part of what an answer costs.
const HEADERS: [(&str, &str); 4] = [
    ("audit-id", "2f4c8d1e-0b6a-4c55-9d2e-7f10a3b4c5d6"),
    ("cache-control", "no-cache, private"),
    (
        "x-kubernetes-pf-flowschema-uid",
        "6a1d7c3b-8e2f-4b90-a5c4-d1e2f3a4b5c6",
    ),
    (
        "x-kubernetes-pf-prioritylevel-uid",
        "0c9b8a7d-6e5f-4d3c-b2a1-f0e1d2c3b4a5",
    ),
];

/// The options of a list that count here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageQuery {
    limit: usize,
    #[serde(rename = "continue")]
    start: usize,
    watch: bool,
}

/// A page of a list.
struct FleetPage {
    /// When it was asked for.
    at: i64,
    items: Vec<Values>,
    /// Empty on the last page.
    continue_token: String,
    remaining: usize,
}

/// Answers one request to one shoot.
pub fn answer(fleet: &Fleet, shoot: &FleetShoot, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    list(fleet, shoot, request).unwrap_or_else(|code| {
        fleet.counts.lock().other_requests += 1;
        let reason = code.canonical_reason().unwrap_or_default();
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
            "reason": reason.replace(' ', ""), "code": code.as_u16(),
        });
        let mut response = response(status.to_string().into(), JSON);
        *response.status_mut() = code;
        response
    })
}

/// Lists Leases or nodes; the status code of anything else.
fn list(
    fleet: &Fleet,
    shoot: &FleetShoot,
    request: &Request<Incoming>,
) -> Result<Response<Full<Bytes>>, StatusCode> {
    let query = Query::<PageQuery>::try_from_uri(request.uri());
    let Query(query) = query.map_err(|_| StatusCode::BAD_REQUEST)?;
    if request.method() != Method::GET || query.watch {
        return Err(StatusCode::FORBIDDEN);
    }
    let are_leases = match request.uri().path() {
        LEASES => true,
        NODES => false,
        _ => return Err(StatusCode::NOT_FOUND),
    };
    let mut counts = fleet.counts.lock();
    // A page that is not the first, or that only counts, is no list of its own.
    if query.start > 0 || query.limit == 1 {
        counts.other_requests += 1;
    } else if are_leases {
        shoot.listed.store(now(), Ordering::Relaxed);
        counts.lease_lists += 1;
    } else {
        counts.node_lists += 1;
    }
    drop(counts);
    let page = shoot.page(&query);
    let accepts = request.headers().get(ACCEPT).map(HeaderValue::as_bytes);
    Ok(if !are_leases {
        response(page.json(&fleet.node, "NodeList", "v1"), JSON)
    } else if accepts.is_some_and(|types| types.starts_with(protobuf::MEDIA_TYPE.as_bytes())) {
        response(page.protobuf(fleet), protobuf::MEDIA_TYPE)
    } else {
        response(
            page.json(&fleet.lease, "LeaseList", "coordination.k8s.io/v1"),
            JSON,
        )
    })
}

impl FleetShoot {
    fn page(&self, query: &PageQuery) -> FleetPage {
        let at = now();
        let end = match query.limit {
            0 => self.nodes,
            limit => self.nodes.min(query.start.saturating_add(limit)),
        };
        let kubelets = self.kubelets.lock().clone();
        let items = (query.start..end).map(|node| self.values(node, &kubelets, at));
        let remaining = self.nodes - end;
        FleetPage {
            at,
            items: items.collect(),
            // A number, as long as a token of kube-apiserver.
            continue_token: match remaining {
                0 => String::new(),
                _ => format!("{end:048}"),
            },
            remaining,
        }
    }
}

impl FleetPage {
    fn json(&self, template: &Template, kind: &str, version: &str) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision(self.at).to_string()});
        if self.remaining > 0
            && let Some(fields) = metadata.as_object_mut()
        {
            fields.insert("continue".to_owned(), self.continue_token.as_str().into());
            fields.insert("remainingItemCount".to_owned(), self.remaining.into());
        }
        let head = format!(r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{metadata},"items":["#);
        let mut out = head.into_bytes();
        out.reserve(self.items.len() * (template.text_len() + 600) + 8);
        for (number, values) in self.items.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            template.write(&mut out, values);
        }
        out.extend_from_slice(b"]}\n");
        out.into()
    }

    /// A page of Leases.
    fn protobuf(&self, fleet: &Fleet) -> Bytes {
        let leases = self.items.iter().map(|values| fleet.lease_message.filled(values));
        let list = LeaseList {
            metadata: Some(ListMeta {
                resource_version: revision(self.at).to_string(),
                continue_token: self.continue_token.clone(),
                remaining_item_count: (self.remaining > 0).then_some(self.remaining as i64),
            }),
            items: leases.collect(),
        };
        list.document()
    }
}

fn response(body: Bytes, content_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(content_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
