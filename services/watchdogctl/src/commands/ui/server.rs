//! The HTTP side of the page. Its address has a secret in it, because other users of this machine reach the port, too.
//! Requests that name another host, or come from a page of another origin, are refused: a name that resolves to
//! loopback must not open the page to the site that owns the name.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval};
use watchdog_runtime::connection_tasks::{ConnectionTasks, StrangerPlace};
use watchdog_runtime::listeners::{AcceptedConnection, Acceptor};

use super::view::PageView;
use crate::error::{CommandError, CommandResult};
use crate::seed::FollowedSeed;
use crate::seed::model::ClockReading;

/// Streams to pages at most, one for each page.
pub(super) const MAX_STREAMS: usize = 16;

/// A page gets a message at least this often, so it notices a stream that has ended.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Between two looks at what is new: what changes in between comes in one message.
const PERIOD: Duration = Duration::from_millis(500);

/// Connections that have not shown the secret of the address. Other users of this machine may open them, too, so the
/// oldest is closed: they neither keep a page out nor take all file descriptors.
const MAX_STRANGERS: usize = 32;

/// The head of a request arrives within this time, that of the first one with the secret.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) const FILES: [(&str, &str, &str); 3] = [
    ("", "text/html; charset=utf-8", include_str!("page.html")),
    ("page.css", "text/css; charset=utf-8", include_str!("page.css")),
    (
        "page.js",
        "text/javascript; charset=utf-8",
        include_str!("page.js"),
    ),
];

/// No script or style but the own files, nothing from elsewhere, and no markup from text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types \
                      'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// Serves the page.
pub(super) struct PageServer {
    pub(super) url: String,
    routes: Router,
}

/// The parts that the handlers share.
#[derive(Clone)]
struct PageState {
    seeds: Arc<[FollowedSeed]>,
    streams: Arc<Semaphore>,
    /// The address to which requests are answered.
    address: SocketAddr,
    /// The secret, as the first part of a path.
    secret: Arc<str>,
}

impl PageServer {
    /// # Errors
    /// When the socket has no address.
    pub(super) fn new(seeds: Vec<FollowedSeed>, listener: &TcpListener) -> CommandResult<Self> {
        let address = listener.local_addr().map_err(|error| {
            let what = format!("the page cannot be served: {error}");
            CommandError::unreachable(what, "start it again")
        })?;
        let secret = format!("/{:032x}/", rand::random::<u128>());
        let mut routes = Router::new()
            .route(&format!("{secret}seeds/{{seed}}"), get(stream))
            .route(&format!("{secret}seeds/{{seed}}/{{shoot}}"), get(stream));
        for (name, kind, content) in FILES {
            let answer = move || async move { ([(header::CONTENT_TYPE, kind)], content) };
            routes = routes.route(&format!("{secret}{name}"), get(answer));
        }
        let url = format!("http://{address}{secret}");
        let state = PageState {
            seeds: seeds.into(),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            address,
            secret: secret.into(),
        };
        let guard = middleware::from_fn_with_state(state.clone(), guard);
        let routes = routes.with_state(state).layer(guard);
        Ok(Self { url, routes })
    }

    /// Serves until it is dropped. A connection that cannot be accepted is not waited for: the page asks again.
    pub(super) async fn run(self, listener: TcpListener) {
        let mut connections = ConnectionTasks::new(MAX_STRANGERS, MAX_STRANGERS);
        let incoming = Acceptor {
            listener,
            refusal: "cannot accept a connection",
            uses_reserve: false,
        };
        loop {
            let AcceptedConnection { tcp, address, .. } = incoming.next().await;
            let routes = self.routes.clone();
            connections.spawn(address.ip(), |place| {
                connection(tcp, routes.layer(Extension(Arc::new(place))))
            });
        }
    }
}

async fn connection(tcp: TcpStream, routes: Router) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(tcp), TowerToHyperService::new(routes));
    // A page that closes is no error.
    let _ = served.await;
}

/// A connection that shows the secret gives its place back; every other one ends with its answer.
async fn guard(
    State(own): State<PageState>,
    Extension(place): Extension<Arc<StrangerPlace>>,
    request: Request,
    next: Next,
) -> Response {
    let is_own = is_own(own.address, request.headers());
    let is_known = is_own && request.uri().path().starts_with(&*own.secret);
    if is_known {
        // One that was closed for a newcomer is gone, whatever is answered.
        let _ = place.give_back();
    }
    let mut response = if is_own {
        next.run(request).await
    } else {
        let refusal = "Open the address that watchdogctl printed.\n";
        (StatusCode::FORBIDDEN, refusal).into_response()
    };
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    if !is_known {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// True if a request is for this address, and not from a page of another one.
fn is_own(address: SocketAddr, headers: &HeaderMap) -> bool {
    let hosts = [address.to_string(), format!("localhost:{}", address.port())];
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host.filter(|host| hosts.iter().any(|own| own == host)) else {
        return false;
    };
    let is_of_page = |origin: &HeaderValue| *origin == format!("http://{host}");
    headers.get_all(header::ORIGIN).iter().all(is_of_page)
}

impl PageState {
    /// The names of the seeds, each with its number of shoots that are cut off or scaled.
    fn choices(&self, now: &ClockReading) -> Vec<(String, usize)> {
        let seeds = self.seeds.iter().map(|seed| seed.state.model());
        seeds
            .map(|model| (model.title.clone(), model.urgent(now)))
            .collect()
    }
}

/// The number of a seed, and the shoot that the page shows.
#[derive(Deserialize)]
struct StreamPath {
    seed: usize,
    shoot: Option<String>,
}

/// The cells of all shoots, and then those that change; all about one shoot, each time. A stream has no queue: the
/// next message is built when the page has taken the last one.
async fn stream(
    State(state): State<PageState>,
    Path(path): Path<StreamPath>,
) -> Result<impl IntoResponse, (StatusCode, String)> {
    let none = || (StatusCode::NOT_FOUND, "there is no such seed\n".to_owned());
    let seed = state.seeds.get(path.seed).ok_or_else(none)?.state.clone();
    let too_many = |_| {
        let text = format!("{MAX_STREAMS} streams are open. Close other tabs of this page.\n");
        (StatusCode::SERVICE_UNAVAILABLE, text)
    };
    let permit = state.streams.clone().try_acquire_owned().map_err(too_many)?;
    let messages = stream! {
        let _permit = permit;
        let (mut ticks, mut page, mut sent) = (interval(PERIOD), PageView::default(), Instant::now());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = ClockReading::now();
            let choices = state.choices(&now);
            let (is_news, json) = page.next(&seed.model(), choices, path.shoot.as_deref(), &now);
            if is_news || sent.elapsed() >= HEARTBEAT {
                sent = Instant::now();
                yield Ok::<_, Infallible>(Event::default().data(json));
            }
        }
    };
    Ok(Sse::new(messages))
}
