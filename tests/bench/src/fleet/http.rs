//! The answers of a simulated API server.

use std::sync::atomic::Ordering;

use axum::extract::Query;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use watchdog_sandbox::protobuf;

use super::{Fleet, FleetShoot, ItemKind};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const NODES: &str = "/api/v1/nodes";

/// The options of a list that count here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageQuery {
    limit: usize,
    #[serde(rename = "continue")]
    start: usize,
    watch: bool,
}

/// Answers one request to one shoot.
pub fn answer(fleet: &Fleet, shoot: &FleetShoot, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let header = |name: HeaderName| {
        let value = request.headers().get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let other = |response| {
        fleet.requests.other.fetch_add(1, Ordering::Relaxed);
        response
    };
    if header(AUTHORIZATION).strip_prefix("Bearer ") != Some(fleet.token.as_str()) {
        return other(status(StatusCode::UNAUTHORIZED, "Unauthorized"));
    }
    let Ok(Query(query)) = Query::<PageQuery>::try_from_uri(request.uri()) else {
        return other(status(StatusCode::BAD_REQUEST, "BadRequest"));
    };
    if request.method() != Method::GET || query.watch {
        return other(status(StatusCode::FORBIDDEN, "Forbidden"));
    }
    let kind = match request.uri().path() {
        LEASES => ItemKind::Leases,
        NODES => ItemKind::Nodes,
        _ => return other(status(StatusCode::NOT_FOUND, "NotFound")),
    };
    let counter = match kind {
        // A page that is not the first, or that only counts.
        _ if query.start > 0 || query.limit == 1 => &fleet.requests.other,
        ItemKind::Leases => {
            shoot.note_list();
            &fleet.requests.leases
        }
        ItemKind::Nodes => &fleet.requests.nodes,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    if kind == ItemKind::Leases && header(ACCEPT).starts_with(protobuf::MEDIA_TYPE) {
        let page = fleet.lease_page(shoot, query.start, query.limit);
        return response(page, protobuf::MEDIA_TYPE);
    }
    json_response(fleet.json_page(shoot, kind, query.start, query.limit))
}

fn json_response(body: Vec<u8>) -> Response<Full<Bytes>> {
    response(body.into(), "application/json")
}

fn response(body: Bytes, content_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    // As kube-apiserver has them: they are part of what an answer costs.
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", content_type),
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
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn status(code: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code.as_u16(),
    });
    let mut response = json_response(body.to_string().into_bytes());
    *response.status_mut() = code;
    response
}
