//! Sockets to the API servers of shoots: HTTP/2 or HTTP/1.1 over TLS.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Request, header};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, OtherError};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf, Take};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::Span;
use watchdog_api::kubeconfig::ShootAccess;
use watchdog_api::protobuf;
use watchdog_certificates::Refusal;
use watchdog_runtime::failure::{chain, is_local_limit};

use super::resolver::HostLookup;
use super::tls;
use super::transport::{AnswerKind, ApiRequest, Connector, Link, Suspicion};
use crate::domain::address::refused_kind;
use crate::domain::outcome::{ProbeFailure, quote};

/// A silent connection is asked for a sign of life this often (HTTP/2 PING), also while no probe runs, and given up
/// when none comes within [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(6);

/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// A ping that waits for longer than this when the connection ends found a server that hung before.
const LATE_PONG: Duration = Duration::from_millis(500);

/// The bytes that a server may send before they are read, which no budget counts. A list of 8 MB comes in 2 s over a
/// way of 50 ms.
const RECEIVE_WINDOW: u32 = 256 * 1024;

/// The most bytes of the headers of an answer.
const MAX_HEADERS: u32 = 16 * 1024;

/// When one address has not answered for this time, the next one is tried beside it.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Of the addresses of a name, this many are tried.
const MOST_ADDRESSES: usize = 8;

/// The bytes that a server may send from one request to the next beside what was taken of its answer: headers, frames,
/// pings, and what fills [`RECEIVE_WINDOW`]. One that sends more keeps this process busy with what nobody asked for.
const OVERHEAD: usize = 512 * 1024;

/// The most bytes of one read. hyper doubles its buffer beyond its own limit, so that one read could use up
/// [`OVERHEAD`].
const READ_AT_ONCE: u64 = 64 * 1024;

/// Connects to the servers of kubeconfigs.
#[derive(Debug, Clone, Copy)]
pub struct HttpConnector {
    /// Also connects to this machine, link-local addresses and metadata services. For tests.
    pub allow_local_addresses: bool,
}

/// The server address, TLS configuration and credentials of one kubeconfig.
#[derive(Debug)]
pub struct HttpTarget {
    name: HostLookup,
    /// Host and, if it has one, port of the server URL.
    authority: String,
    /// Path of the server URL, without a slash at its end.
    prefix: String,
    tls: Arc<ClientConfig>,
    server_name: ServerName<'static>,
    /// The `Authorization` header of every request.
    authorization: Option<header::HeaderValue>,
}

/// An open connection.
#[derive(Debug)]
pub struct HttpLink {
    sender: Sender,
    target: Arc<HttpTarget>,
    last_read: Arc<Mutex<LastRead>>,
    end: watch::Receiver<Option<Suspicion>>,
}

#[derive(Debug)]
enum Sender {
    H1(http1::SendRequest<Empty<Bytes>>),
    H2(http2::SendRequest<Empty<Bytes>>),
}

impl Connector for HttpConnector {
    type Target = Arc<HttpTarget>;
    type Link = HttpLink;

    fn target(&self, access: &ShootAccess) -> Result<Arc<HttpTarget>, ProbeFailure> {
        let (tls, server_name) = tls::build(access)?;
        let bad = |what: &str| ProbeFailure::Kubeconfig(what.to_owned());
        let authority = access
            .server
            .authority()
            .ok_or_else(|| bad("the server URL has no host"))?;
        let port = authority.port_u16().unwrap_or(443);
        let host = authority.host();
        Ok(Arc::new(HttpTarget {
            name: HostLookup::new(host.trim_start_matches('[').trim_end_matches(']'), port),
            // As Go sends it: a port only where the URL has one. Some proxies choose the server by it.
            authority: authority.as_str().trim_end_matches(':').to_owned(),
            prefix: access.server.path().trim_end_matches('/').to_owned(),
            tls,
            server_name,
            authorization: access
                .credentials
                .token
                .as_ref()
                .map(bearer)
                .transpose()
                .map_err(|_| bad("the token has characters that no HTTP header can carry"))?,
        }))
    }

    async fn resolve(&self, target: &Arc<HttpTarget>) -> Result<(), ProbeFailure> {
        // The resolver does not say so when it lacks a file descriptor itself.
        target
            .name
            .resolve(MOST_ADDRESSES)
            .await
            .map_err(|error| match out_of_file_descriptors() {
                Some(limit) => target.unreachable(&limit),
                None => ProbeFailure::NameLookup(format!("{}: {error}", target.name.host())),
            })
    }

    async fn open(&self, target: &Arc<HttpTarget>) -> Result<HttpLink, ProbeFailure> {
        let tcp = self.connect(target).await?;
        tcp.set_nodelay(true).map_err(|e| target.unreachable(&e))?;
        let connector = tokio_rustls::TlsConnector::from(target.tls.clone());
        let tls = connector
            .connect(target.server_name.clone(), tcp)
            .await
            .map_err(|e| match tls_error(&e) {
                Some(error) => ProbeFailure::Tls(error),
                None => target.unreachable(&e),
            })?;
        let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let last_read = Arc::new(Mutex::new(LastRead::now()));
        let (reader, writer) = tokio::io::split(tls);
        let reader = ReadClock {
            reader: reader.take(READ_AT_ONCE),
            last_read: last_read.clone(),
        };
        let io = TokioIo::new(tokio::io::join(reader, writer));
        let (ended, end) = watch::channel(None);
        let sender = if h2 {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(RECEIVE_WINDOW)
                .initial_connection_window_size(RECEIVE_WINDOW)
                .max_header_list_size(MAX_HEADERS)
                .handshake(io)
                .await
                .map_err(broken)?;
            tokio::spawn(drive(connection, last_read.clone(), h2, ended, Span::current()));
            Sender::H2(sender)
        } else {
            let (sender, connection) = http1::Builder::new()
                .max_buf_size(RECEIVE_WINDOW as usize)
                .handshake(io)
                .await
                .map_err(broken)?;
            tokio::spawn(drive(connection, last_read.clone(), h2, ended, Span::current()));
            Sender::H1(sender)
        };
        Ok(HttpLink {
            sender,
            target: target.clone(),
            last_read,
            end,
        })
    }
}

impl HttpConnector {
    /// Connects to the first of the addresses that answers.
    async fn connect(&self, target: &HttpTarget) -> Result<TcpStream, ProbeFailure> {
        let (refused, allowed): (Vec<SocketAddr>, Vec<SocketAddr>) = target
            .name
            .addresses()
            .into_iter()
            .partition(|address| !self.allow_local_addresses && refused_kind(address.ip()).is_some());
        match refused.first().map(SocketAddr::ip) {
            Some(address) if allowed.is_empty() => Err(ProbeFailure::AddressRefused {
                host: target.name.host().to_owned(),
                address,
                kind: refused_kind(address).unwrap_or_default(),
            }),
            _ => connect_first(&allowed).await.map_err(|e| target.unreachable(&e)),
        }
    }
}

/// Races the addresses in the order of the resolver, which puts those last that have no route: each begins
/// [`ATTEMPT_DELAY`] after the one before, or when one before has failed. The error is the last one.
async fn connect_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failure = io::Error::other("it has no address");
    let mut waiting = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    loop {
        match waiting.next() {
            Some(address) => attempts.push(TcpStream::connect(*address)),
            None if attempts.is_empty() => return Err(failure),
            None => {}
        }
        tokio::select! {
            Some(attempt) = attempts.next() => match attempt {
                Ok(stream) => return Ok(stream),
                // The other addresses lack it, too.
                Err(error) if is_local_limit(&error) => return Err(error),
                Err(error) => failure = error,
            },
            () = sleep(ATTEMPT_DELAY), if waiting.len() > 0 => {}
        }
    }
}

impl HttpTarget {
    fn unreachable(&self, error: &io::Error) -> ProbeFailure {
        if is_local_limit(error) {
            return ProbeFailure::LocalLimit(error.to_string());
        }
        ProbeFailure::Connect(format!("{}: {error}", self.authority))
    }
}

/// The error that opening any file gives, if no file descriptor is left.
fn out_of_file_descriptors() -> Option<io::Error> {
    std::fs::File::open("/dev/null").err().filter(is_local_limit)
}

/// Ends when the link is dropped, the server closes the connection, or its pings are not answered. hyper reports the
/// last two alike. The time of the last read distinguishes them: a close is read at once, an unanswered ping later.
async fn drive(
    connection: impl Future<Output = Result<(), hyper::Error>>,
    last_read: Arc<Mutex<LastRead>>,
    pings: bool,
    ended: watch::Sender<Option<Suspicion>>,
    // Entered for the one line below and not at each poll, of which every probe makes several.
    span: Span,
) {
    if let Err(error) = connection.await {
        span.in_scope(|| tracing::debug!(%error, "connection to a shoot ended"));
    }
    let last_read = *last_read.lock();
    ended.send_replace(Some(last_read.end(pings, Instant::now())));
}

/// When something was read last, and how much more may be.
#[derive(Debug, Clone, Copy)]
struct LastRead {
    /// Bytes, the end or an error.
    anything: Instant,
    bytes: Instant,
    /// Bytes that may be read until the next request.
    allowance: usize,
}

impl LastRead {
    fn now() -> Self {
        let now = Instant::now();
        Self {
            anything: now,
            bytes: now,
            allowance: OVERHEAD,
        }
    }

    /// How a connection ended that ended now. A server that closes a connection may have hung before: it was alive at
    /// the close only if no ping was waiting for an answer.
    fn end(self, pings: bool, now: Instant) -> Suspicion {
        let waited = now.saturating_duration_since(self.bytes);
        if now.saturating_duration_since(self.anything) >= PING_TIMEOUT {
            Suspicion::ended_at(self.anything, true)
        } else if pings && waited > PING_INTERVAL + LATE_PONG {
            Suspicion::ended_at(self.bytes, false)
        } else {
            Suspicion::ended_at(now, false)
        }
    }
}

/// Notes when something was read last, and ends a connection on which more comes than was asked for.
struct ReadClock<R> {
    reader: Take<R>,
    last_read: Arc<Mutex<LastRead>>,
}

impl<R: AsyncRead + Unpin> AsyncRead for ReadClock<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.reader.set_limit(READ_AT_ONCE);
        let read = Pin::new(&mut self.reader).poll_read(cx, buf);
        if read.is_ready() {
            let mut last_read = self.last_read.lock();
            last_read.anything = Instant::now();
            let bytes = buf.filled().len() - before;
            if bytes > 0 {
                last_read.bytes = last_read.anything;
            }
            match last_read.allowance.checked_sub(bytes) {
                Some(left) => last_read.allowance = left,
                None => {
                    return Poll::Ready(Err(io::Error::other("the server sent more data than requested")));
                }
            }
        }
        read
    }
}

impl Link for HttpLink {
    type Body = Incoming;

    async fn send(&mut self, request: &ApiRequest) -> Result<http::Response<Self::Body>, ProbeFailure> {
        self.last_read.lock().allowance = OVERHEAD;
        let request = self.build(request)?;
        let response = match &mut self.sender {
            Sender::H1(h1) => {
                h1.ready().await.map_err(broken)?;
                h1.send_request(request).await
            }
            Sender::H2(h2) => {
                h2.ready().await.map_err(broken)?;
                h2.send_request(request).await
            }
        };
        response.map_err(broken)
    }

    fn consumed(&self, bytes: usize) {
        self.last_read.lock().allowance += bytes;
    }

    fn end(&self) -> Option<Suspicion> {
        *self.end.borrow()
    }

    async fn ended(&self) {
        // The sender is never dropped without a value.
        let _ = self.end.clone().wait_for(Option::is_some).await;
    }
}

impl HttpLink {
    fn build(&self, request: &ApiRequest) -> Result<Request<Empty<Bytes>>, ProbeFailure> {
        let HttpTarget {
            authority,
            prefix,
            authorization,
            ..
        } = &*self.target;
        let path = format!("{prefix}{}", request.path);
        let mut builder = Request::builder()
            .header(header::ACCEPT, accepted(request.answer))
            .header(
                header::USER_AGENT,
                concat!("lease-probe/", env!("CARGO_PKG_VERSION")),
            );
        builder = match self.sender {
            Sender::H1(_) => builder.uri(path).header(header::HOST, authority),
            Sender::H2(_) => builder.uri(format!("https://{authority}{path}")),
        };
        if let Some(authorization) = authorization {
            builder = builder.header(header::AUTHORIZATION, authorization);
        }
        builder
            .body(Empty::new())
            .map_err(|e| ProbeFailure::Kubeconfig(format!("the server URL cannot be used: {e}")))
    }
}

/// The media types of an answer. Leases are listed all the time, the rest seldom.
const fn accepted(answer: AnswerKind) -> &'static str {
    match answer {
        AnswerKind::Leases => protobuf::ACCEPT,
        AnswerKind::Small | AnswerKind::Nodes => "application/json",
    }
}

fn bearer(token: &SecretString) -> Result<header::HeaderValue, header::InvalidHeaderValue> {
    let mut value = header::HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The TLS error inside an I/O error, if that is what it is.
fn tls_error(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    // A refusal is short and names the remedy at its end.
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(refusal)))
            if refusal.is::<Refusal>() =>
        {
            Some(refusal.to_string())
        }
        other => Some(quote(&chain(other))),
    }
}

fn broken(error: hyper::Error) -> ProbeFailure {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    match cause {
        Some(h2) if h2.is_go_away() && h2.reason() == Some(h2::Reason::NO_ERROR) => ProbeFailure::WentAway,
        _ => ProbeFailure::Connect(quote(&chain(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a connection was alive until it ended, and if it fell silent, `waited` seconds after the last bytes; a close
    /// is read at its end or nothing is.
    fn end(waited: f64, close_is_read: bool, pings: bool) -> (bool, bool) {
        let bytes = Instant::now();
        let now = bytes + Duration::from_secs_f64(waited);
        let anything = if close_is_read { now } else { bytes };
        let end = LastRead {
            anything,
            bytes,
            allowance: 0,
        }
        .end(pings, now);
        (end.since == now, end.silent)
    }

    /// One address refuses, or the only one does.
    #[tokio::test]
    async fn the_next_address_is_tried_when_one_refuses() {
        let bound = || async { tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap() };
        let (closed, first, second) = (bound().await, bound().await, bound().await);
        let [refuses, first_address, second_address] =
            [&closed, &first, &second].map(|listener| listener.local_addr().unwrap());
        drop(closed);
        let stream = connect_first(&[refuses, first_address, second_address]).await;
        assert_eq!(stream.unwrap().peer_addr().unwrap(), first_address);
        assert!(connect_first(&[refuses]).await.is_err());
        assert!(connect_first(&[]).await.is_err());
    }

    /// Connections to an address whose queue of connections is full get no answer.
    #[tokio::test]
    async fn an_address_that_is_dead_is_not_waited_for() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = socket.listen(1).unwrap();
        let dead = silent.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = tokio::time::timeout(ATTEMPT_DELAY, TcpStream::connect(dead)).await {
            queued.push(stream.unwrap());
        }
        let alive = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = alive.local_addr().unwrap();
        let stream = connect_first(&[dead, dead, address]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
    }

    #[test]
    fn a_server_that_hangs_before_it_closes_was_alive_until_its_last_bytes() {
        assert_eq!(end(3.0, true, true), (true, false), "no ping was due");
        assert_eq!(
            end(6.3, true, true),
            (true, false),
            "the answer may be on its way"
        );
        assert_eq!(end(7.8, true, true), (false, false), "a ping was not answered");
        assert_eq!(end(7.8, true, false), (true, false), "HTTP/1.1 has no pings");
        assert_eq!(end(10.0, false, true), (false, true));
    }
}
