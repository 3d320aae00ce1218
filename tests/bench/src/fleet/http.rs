//! The answers of a simulated API server.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::json;
use watchdog_sandbox::protobuf;

use super::{Fleet, FleetShoot, ItemKind, objects};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const NODES: &str = "/api/v1/nodes";

/// Answers one request to one shoot.
///
/// # Errors
/// Never; the type is that of a service.
pub fn answer(
    fleet: &Fleet,
    shoot: &FleetShoot,
    request: &Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(respond(fleet, shoot, request))
}

fn respond(fleet: &Fleet, shoot: &FleetShoot, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let count = |counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let refuse = |code: StatusCode, reason: &str| {
        count(&fleet.requests.other);
        status(code, reason)
    };
    let bearer = request.headers().get(header::AUTHORIZATION);
    let shown = bearer.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if shown != Some(fleet.token.as_str()) {
        return refuse(StatusCode::UNAUTHORIZED, "Unauthorized");
    }
    if request.method() != Method::GET {
        return refuse(StatusCode::FORBIDDEN, "Forbidden");
    }
    let path = request.uri().path();
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        count(&fleet.requests.version);
        return json_response(b"ok".to_vec());
    }
    if let Some(found) = objects::discovery(path) {
        let kind = if path == "/version" {
            &fleet.requests.version
        } else {
            &fleet.requests.discovery
        };
        count(kind);
        return json_response(found.to_string().into_bytes());
    }
    let (kind, name) = match (path.strip_prefix(LEASES), path.strip_prefix(NODES)) {
        (Some(rest), _) => (ItemKind::Leases, rest),
        (_, Some(rest)) => (ItemKind::Nodes, rest),
        _ => return refuse(StatusCode::NOT_FOUND, "NotFound"),
    };
    let mut body = Vec::new();
    if let Some(name) = name.strip_prefix('/') {
        count(&fleet.requests.other);
        return if fleet.write_named(&mut body, shoot, kind, name) {
            json_response(body)
        } else {
            status(StatusCode::NOT_FOUND, "NotFound")
        };
    }
    let query = RequestQuery::parse(request.uri().query().unwrap_or_default());
    if query.watch {
        return refuse(StatusCode::FORBIDDEN, "Forbidden");
    }
    match (kind, query.start) {
        (_, 1..) => count(&fleet.requests.pages),
        (ItemKind::Leases, 0) => {
            shoot.note_list();
            count(&fleet.requests.leases);
        }
        (ItemKind::Nodes, 0) => count(&fleet.requests.nodes),
    }
    let accept = request.headers().get(header::ACCEPT);
    let accepted = accept.and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind == ItemKind::Leases && accepted.starts_with(protobuf::MEDIA_TYPE) {
        return response(
            fleet.lease_page(shoot, query.start, query.limit),
            protobuf::MEDIA_TYPE,
        );
    }
    fleet.write_page(&mut body, shoot, kind, query.start, query.limit);
    json_response(body)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct RequestQuery {
    limit: usize,
    start: usize,
    watch: bool,
}

impl RequestQuery {
    fn parse(query: &str) -> Self {
        let mut found = Self::default();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "limit" => found.limit = value.parse().unwrap_or(0),
                "continue" => found.start = parse_continue(value).unwrap_or(0),
                "watch" => found.watch = matches!(value, "1" | "true"),
                _ => {}
            }
        }
        found
    }
}

/// The token that leads to the item with this index.
#[must_use]
pub fn continue_token(start: usize) -> String {
    STANDARD_NO_PAD.encode(format!(r#"{{"v":"meta.k8s.io/v1","start":"{start}"}}"#))
}

/// The index that a token leads to.
#[must_use]
pub fn parse_continue(token: &str) -> Option<usize> {
    let text = STANDARD_NO_PAD.decode(token).ok()?;
    let token: serde_json::Value = serde_json::from_slice(&text).ok()?;
    token.get("start")?.as_str()?.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_a_pager() {
        let token = continue_token(500);
        let query = RequestQuery::parse(&format!("limit=500&continue={token}"));
        assert_eq!((query.limit, query.start, query.watch), (500, 500, false));
        assert!(RequestQuery::parse("watch=true").watch);
        assert_eq!(RequestQuery::parse(""), RequestQuery::default());
    }
}
