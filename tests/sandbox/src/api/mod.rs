//! HTTP requests to the store: who asks, may they, what is wrong with the server today, and then the answer.

mod discovery;
mod path;
mod read;
pub(crate) mod reply;
mod review;
mod scale;
mod watch;
mod write;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch as signal;

use self::{
    path::{Query, RequestInfo, Target},
    reply::{Body, Representation},
};
use crate::{
    audit::{AuditEntry, AuditLog},
    auth::{AcceptedCredentials, Policy},
    faults::{FaultAction, Faults},
    protobuf,
    resource::ResourceType,
    server::ApiOptions,
    status::ApiError,
    store::Store,
};

/// Everything that handling a request needs.
#[derive(Debug)]
pub(crate) struct ApiState {
    pub(crate) store: Arc<Store>,
    pub(crate) credentials: AcceptedCredentials,
    pub(crate) policy: Policy,
    pub(crate) faults: Faults,
    pub(crate) audit: AuditLog,
    pub(crate) options: ApiOptions,
    /// Any change ends all running watches.
    pub(crate) drop_watches: signal::Sender<u64>,
    /// Silences the running watches when it changes.
    pub(crate) silence_watches: signal::Sender<u64>,
    pub(crate) open_watches: Arc<AtomicUsize>,
    /// True if a watch from a forgotten version gets HTTP 410 instead of an ERROR event.
    pub(crate) gone_as_status: AtomicBool,
    /// The prefix of every path, as behind a proxy that serves several API servers.
    pub(crate) path_prefix: Mutex<String>,
}

/// The connection must be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("connection closed by a fault or by the client")]
pub(crate) struct ConnectionClosed;

/// One request, once it is known what it is and who sends it.
struct Call<'a> {
    state: &'a ApiState,
    target: &'a Target,
    query: &'a Query,
    headers: &'a HeaderMap,
    user: &'a str,
    view: Representation,
}

/// Answers one request; `certificate_user` is who the connection's client certificate names.
pub(crate) async fn serve(
    state: Arc<ApiState>,
    certificate_user: Option<Arc<str>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, ConnectionClosed> {
    let (parts, body) = request.into_parts();
    let prefix = state.path_prefix.lock().clone();
    let info = RequestInfo::parse(
        &parts.method,
        // Behind a path of its own: a client that does not ask there finds nothing.
        parts.uri.path().strip_prefix(prefix.as_str()).unwrap_or_default(),
        parts.uri.query().unwrap_or_default(),
    );
    let text = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value: &http::HeaderValue| value.to_str().ok())
            .unwrap_or_default()
    };
    let mut entry = AuditEntry {
        id: 0,
        time: Timestamp::now(),
        done: Timestamp::MIN,
        verb: info.verb,
        path: info.path.clone(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        user: String::new(),
        code: 0,
        body: Bytes::new(),
    };
    let user = match text(header::AUTHORIZATION) {
        "" => certificate_user.as_deref().map(str::to_owned),
        header => state.credentials.by_header(header),
    };
    entry.user = user.clone().unwrap_or_default();

    let verdict = state
        .faults
        .judge(info.verb, &info.path, &entry.query, &entry.user);
    if !verdict.delay.is_zero() {
        tokio::time::sleep(verdict.delay).await;
    }
    let response = match &verdict.action {
        Some(FaultAction::Cut) => {
            state.audit.push(entry);
            return Err(ConnectionClosed);
        }
        Some(FaultAction::Hang) => {
            state.audit.push(entry);
            return std::future::pending().await;
        }
        Some(FaultAction::TooManyRequests { retry_after }) => {
            reply::error(&ApiError::too_many_requests(*retry_after))
        }
        Some(FaultAction::InternalError) => reply::error(&ApiError::internal("injected fault")),
        Some(FaultAction::Garbage) => reply::json(200, Bytes::from_static(b"{\"kind\": \x00\xff garbage")),
        Some(FaultAction::ApplyAndHang | FaultAction::Delay { .. }) | None => {
            // A body that breaks off is a client that is gone.
            let body = body.collect().await.map_err(|_| ConnectionClosed)?.to_bytes();
            entry.body = body.slice(..body.len().min(AuditEntry::MAX_BODY));
            answer(&state, &info, &parts.headers, user.as_deref(), &body)
                .unwrap_or_else(|error| reply::error(&error))
        }
    };
    if verdict.action == Some(FaultAction::ApplyAndHang) {
        state.audit.push(entry);
        return std::future::pending().await;
    }
    entry.code = response.status().as_u16();
    state.audit.push(entry);
    Ok(response)
}

fn answer(
    state: &ApiState,
    info: &RequestInfo,
    headers: &HeaderMap,
    user: Option<&str>,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let user = match user {
        Some(user) => user,
        None if discovery::is_public(&info.path) => "system:anonymous",
        None => return Err(ApiError::unauthorized()),
    };
    state.policy.check(&info.attributes(user))?;
    let Some(target) = &info.target else {
        return discovery::answer(&state.store, &info.path);
    };
    let res = served(state, target)?;
    let subresource = target.subresource.as_str();
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let call = Call {
        state,
        target,
        query: &info.query,
        headers,
        user,
        view: Representation::negotiate(accept)?,
    };
    // A namespaced object can be addressed only within its namespace.
    let addressable = !res.namespaced || !target.namespace.is_empty();
    match info.verb {
        "create" if target.name.is_empty() && addressable => write::create(&call, &res, body),
        _ if res.review => Err(ApiError::method_not_allowed()),
        "list" => {
            let protobuf = target.resource.plural == "leases" && accept.starts_with(protobuf::MEDIA_TYPE);
            read::list(&state.store, &res, target, &info.query, call.view, protobuf)
        }
        "watch" if subresource.is_empty() => watch::start(state, &res, target, &info.query, call.view),
        "get" if subresource == "scale" => write::get_scale(&call, &res),
        "get" if addressable => read::get(&state.store, &res, target, call.view),
        "update" if !target.name.is_empty() && addressable => write::update(&call, &res, body),
        "patch" if !target.name.is_empty() && addressable => write::patch(&call, &res, body),
        "delete" if addressable => write::delete(&call, &res, body),
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// The type of what is asked for; 404 if that is not served.
fn served(state: &ApiState, target: &Target) -> Result<Arc<ResourceType>, ApiError> {
    let key = &target.resource;
    let Some(res) = state.store.resource(key) else {
        return Err(if discovery::knows(&state.store, &key.group) {
            ApiError::no_such_resource()
        } else {
            ApiError::no_such_path()
        });
    };
    let is_served = match target.subresource.as_str() {
        "" => true,
        "status" => res.status,
        "scale" => res.scale.is_some(),
        _ => false,
    };
    if is_served && (res.namespaced || target.namespace.is_empty()) {
        Ok(res)
    } else {
        Err(ApiError::no_such_resource())
    }
}
