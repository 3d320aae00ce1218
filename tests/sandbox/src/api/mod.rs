//! HTTP requests to the store: who asks, may they, what is wrong with the server today, and then the answer.

mod discovery;
mod path;
mod read;
mod reply;
mod review;
mod scale;
mod watch;
mod write;

use std::sync::{Arc, atomic::AtomicBool};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header, request::Parts};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;

pub use self::reply::ResponseBody;
pub(crate) use self::watch::WatchControl;
use self::{
    path::{Query, RequestInfo, Target},
    reply::Representation,
};
use crate::{
    audit::{AuditEntry, AuditLog},
    auth::{AcceptedCredentials, Policy},
    faults::{FaultAction, Faults},
    io::{Gate, WireCounters},
    protobuf,
    resource::ResourceType,
    server::ApiOptions,
    status::ApiError,
    store::{Store, WriteOptions},
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
    pub(crate) watches: WatchControl,
    /// True if a watch from a forgotten version gets HTTP 410 instead of an ERROR event.
    pub(crate) gone_as_status: AtomicBool,
    /// The prefix of every path, as behind a proxy that serves several API servers.
    pub(crate) path_prefix: Mutex<String>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) counters: Arc<WireCounters>,
}

/// The answer to a request, or the error that becomes one.
type ApiAnswer = Result<Response<ResponseBody>, ApiError>;

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
    view: Representation,
    options: WriteOptions,
}

/// Answers one request; `certificate_user` is who the connection's client certificate names.
pub(crate) async fn serve(
    state: Arc<ApiState>,
    certificate_user: Option<Arc<str>>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, ConnectionClosed> {
    let (parts, body) = request.into_parts();
    let prefix = state.path_prefix.lock().clone();
    // Behind a path of its own: a client that does not ask there finds nothing.
    let path = parts.uri.path().strip_prefix(prefix.as_str());
    let info = RequestInfo::parse(
        &parts.method,
        path.unwrap_or_default(),
        parts.uri.query().unwrap_or_default(),
    );
    let user = match text(&parts.headers, header::AUTHORIZATION) {
        "" => certificate_user.as_deref().map(str::to_owned),
        header => state.credentials.by_header(header),
    };
    let mut entry = AuditEntry {
        id: 0,
        time: Timestamp::now(),
        done: Timestamp::MIN,
        verb: info.verb,
        path: info.path.clone(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        user: user.clone().unwrap_or_default(),
        code: 0,
        body: Bytes::new(),
    };
    let (delay, fault) = state
        .faults
        .judge(info.verb, &info.path, &entry.query, &entry.user);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let response = match &fault {
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
        Some(FaultAction::Empty) => reply::json(200, Bytes::new()),
        Some(FaultAction::ApplyAndHang | FaultAction::Delay { .. }) | None => {
            // A body that breaks off is a client that is gone.
            let body = body.collect().await.map_err(|_| ConnectionClosed)?.to_bytes();
            entry.body = body.slice(..body.len().min(AuditEntry::MAX_BODY));
            let answer = authorize(&state, &info, user.as_deref()).and_then(|user| {
                let manager = manager(&info.query, &parts.headers);
                answer(&state, &info, &parts.headers, user, Some(manager), &body)
            });
            answer.unwrap_or_else(|error| reply::error(&error))
        }
    };
    if fault == Some(FaultAction::ApplyAndHang) {
        state.audit.push(entry);
        return std::future::pending().await;
    }
    entry.code = response.status().as_u16();
    state.audit.push(entry);
    Ok(response)
}

/// Answers a part of the cluster itself, which may do everything, owns no fields and leaves no trace.
pub(crate) fn serve_component(state: &ApiState, parts: &Parts, body: &[u8]) -> Response<ResponseBody> {
    let query = parts.uri.query().unwrap_or_default();
    let info = RequestInfo::parse(&parts.method, parts.uri.path(), query);
    let answer = answer(state, &info, &parts.headers, "system:component", None, body);
    answer.unwrap_or_else(|error| reply::error(&error))
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// The field manager is `fieldManager`, else the user agent up to its first slash.
fn manager(query: &Query, headers: &HeaderMap) -> String {
    let agent = text(headers, header::USER_AGENT).split('/').next();
    match query.get("fieldManager") {
        "" => agent.unwrap_or_default().to_owned(),
        name => name.to_owned(),
    }
}

fn authorize<'a>(state: &ApiState, info: &RequestInfo, user: Option<&'a str>) -> Result<&'a str, ApiError> {
    let anonymous = (info.path == discovery::PUBLIC).then_some("system:anonymous");
    let user = user.or(anonymous).ok_or_else(ApiError::unauthorized)?;
    state.policy.check(&info.attributes(user))?;
    Ok(user)
}

fn answer(
    state: &ApiState,
    info: &RequestInfo,
    headers: &HeaderMap,
    user: &str,
    manager: Option<String>,
    body: &[u8],
) -> ApiAnswer {
    let Some(target) = &info.target else {
        return discovery::answer(&state.store, &info.path);
    };
    if target.resource.plural == review::PLURAL && info.verb == "create" {
        return review::answer(state, user, body);
    }
    let res = served(state, target)?;
    let accept = text(headers, header::ACCEPT);
    let call = Call {
        state,
        target,
        query: &info.query,
        headers,
        view: Representation::negotiate(accept)?,
        options: WriteOptions { manager },
    };
    // A namespaced object can be addressed only within its namespace.
    let is_addressable = !res.namespaced || !target.namespace.is_empty();
    let is_object = is_addressable && !target.name.is_empty();
    match info.verb {
        "create" if target.name.is_empty() && is_addressable => write::create(&call, &res, body),
        "list" => {
            let is_leases = target.resource.plural == "leases";
            read::list(&call, &res, is_leases && accept.starts_with(protobuf::MEDIA_TYPE))
        }
        "watch" if target.subresource.is_empty() => watch::start(&call, &res),
        "get" if target.subresource == "scale" => write::get_scale(&call, &res),
        "get" if is_object => read::get(&call, &res),
        "update" if is_object => write::update(&call, &res, body),
        "patch" if is_object => write::patch(&call, &res, body),
        "delete" if is_object && target.subresource.is_empty() => write::delete(&call, &res, body),
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// The type of what is asked for; 404 if that is not served.
fn served(state: &ApiState, target: &Target) -> Result<Arc<ResourceType>, ApiError> {
    let key = &target.resource;
    let Some(res) = state.store.resource(key) else {
        return Err(match discovery::knows(&state.store, &key.group) {
            true => ApiError::no_such_resource(),
            false => ApiError::no_such_path(),
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
