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
use http::{Request, Response, header};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tracing::Span;
use watchdog_certificates::Refusal;
use watchdog_runtime::failure::{chain, is_local_limit};

use super::kubeconfig::Kubeconfig;
use super::transport::{ApiRequest, Connector, Link, Suspicion};
use crate::domain::address::refused_kind;
use crate::domain::outcome::{ProbeFailure, quote};

const USER_AGENT: &str = concat!("lease-probe/", env!("CARGO_PKG_VERSION"));

/// A silent connection is asked for a sign of life this often (HTTP/2 PING), also while no probe runs, and given up
/// when none comes within [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(6);

/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// A ping that waits for longer than this when the connection ends found a server that hung before.
const LATE_PONG: Duration = Duration::from_millis(500);

/// The bytes that a server of HTTP/2 may send before they are read, which no budget counts. A list of 8 MB comes in 2 s
/// over a way of 50 ms.
const RECEIVE_WINDOW: u32 = 256 * 1024;

/// The same for HTTP/1.1, for which it also bounds the headers. hyper's buffer has up to twice this size.
const READ_BUFFER: usize = 64 * 1024;

/// The most bytes of the headers of an answer over HTTP/2.
const MAX_HEADERS: u32 = 16 * 1024;

/// When one address has not answered for this time, the next one is tried beside it.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Of the addresses of a name, this many are tried.
const MOST_ADDRESSES: usize = 8;

/// The bytes that a server may send from one request to the next beside the largest answer: headers, frames and pings.
/// One that sends more keeps this process busy with what nobody asked for.
const OVERHEAD: usize = 512 * 1024;

/// Connects to the servers of kubeconfigs.
#[derive(Debug, Clone, Copy)]
pub struct HttpConnector {
    /// Also connects to this machine, link-local addresses and metadata services. For tests.
    pub allow_local_addresses: bool,
}

/// An open connection.
#[derive(Debug)]
pub struct HttpLink {
    sender: Sender,
    server: Arc<Kubeconfig>,
    last_read: Arc<Mutex<LastRead>>,
    end: watch::Receiver<Option<Suspicion>>,
}

#[derive(Debug)]
enum Sender {
    H1(http1::SendRequest<Empty<Bytes>>),
    H2(http2::SendRequest<Empty<Bytes>>),
}

impl Connector for HttpConnector {
    type Link = HttpLink;

    async fn resolve(&self, server: &Kubeconfig) -> Result<(), ProbeFailure> {
        // The resolver does not say so when it lacks a file descriptor itself.
        let resolved = server.host.resolve(MOST_ADDRESSES).await;
        resolved.map_err(|error| match out_of_file_descriptors() {
            Some(limit) => cannot_connect(server, &limit),
            None => ProbeFailure::NameLookup(format!("{}: {error}", server.host.name)),
        })
    }

    async fn open(&self, server: &Arc<Kubeconfig>) -> Result<HttpLink, ProbeFailure> {
        let addresses = self.allowed(server)?;
        let unreachable = |error: io::Error| cannot_connect(server, &error);
        let tcp = connect_first(&addresses).await.map_err(unreachable)?;
        tcp.set_nodelay(true).map_err(unreachable)?;
        let tls = TlsConnector::from(server.tls.clone()).connect(server.server_name.clone(), tcp);
        let tls = { tls.await }.map_err(|e| tls_error(&e).unwrap_or_else(|| unreachable(e)))?;
        let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let last_read = Arc::new(Mutex::new(LastRead::now()));
        let (reader, writer) = tokio::io::split(tls);
        let reader = ReadClock {
            reader,
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
                .max_buf_size(READ_BUFFER)
                .handshake(io)
                .await
                .map_err(broken)?;
            tokio::spawn(drive(connection, last_read.clone(), h2, ended, Span::current()));
            Sender::H1(sender)
        };
        Ok(HttpLink {
            sender,
            server: server.clone(),
            last_read,
            end,
        })
    }
}

impl HttpConnector {
    /// The addresses of the server to which a connection may be opened.
    fn allowed(self, server: &Kubeconfig) -> Result<Vec<SocketAddr>, ProbeFailure> {
        let mut refused = None;
        let mut addresses = server.host.addresses();
        addresses.retain(|address| match refused_kind(address.ip()) {
            Some(kind) if !self.allow_local_addresses => {
                refused.get_or_insert((address.ip(), kind));
                false
            }
            _ => true,
        });
        match refused {
            Some((address, kind)) if addresses.is_empty() => Err(ProbeFailure::AddressRefused {
                host: server.host.name.clone(),
                address,
                kind,
            }),
            _ => Ok(addresses),
        }
    }
}

/// Races the addresses in the order of the resolver, which puts those last that have no route: each begins
/// [`ATTEMPT_DELAY`] after the one before, or when one before has failed. The error is the last one.
async fn connect_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failure = io::Error::other("it has no address");
    let mut attempts = FuturesUnordered::new();
    for address in addresses {
        attempts.push(TcpStream::connect(*address));
        match timeout(ATTEMPT_DELAY, attempts.next()).await {
            Ok(Some(Ok(stream))) => return Ok(stream),
            Ok(Some(Err(error))) => failure = error,
            Ok(None) | Err(_) => {}
        }
    }
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn cannot_connect(server: &Kubeconfig, error: &io::Error) -> ProbeFailure {
    if is_local_limit(error) {
        return ProbeFailure::LocalLimit(error.to_string());
    }
    ProbeFailure::Connect(format!("{}: {error}", server.authority))
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
    reader: R,
    last_read: Arc<Mutex<LastRead>>,
}

impl<R: AsyncRead + Unpin> AsyncRead for ReadClock<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.reader).poll_read(cx, buf);
        if read.is_ready() {
            let bytes = buf.filled().len() - before;
            let mut last_read = self.last_read.lock();
            last_read.anything = Instant::now();
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

    async fn send(&mut self, request: &ApiRequest) -> Result<Response<Incoming>, ProbeFailure> {
        self.last_read.lock().allowance = request.most + OVERHEAD;
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
        let server = &*self.server;
        let path = format!("{}{}", server.prefix, request.path);
        let mut builder = Request::builder()
            .header(header::ACCEPT, request.accept)
            .header(header::USER_AGENT, USER_AGENT);
        builder = match self.sender {
            Sender::H1(_) => builder.uri(path).header(header::HOST, &server.authority),
            Sender::H2(_) => builder.uri(format!("https://{}{path}", server.authority)),
        };
        if let Some(authorization) = &server.authorization {
            builder = builder.header(header::AUTHORIZATION, authorization);
        }
        builder
            .body(Empty::new())
            .map_err(|e| ProbeFailure::Kubeconfig(format!("the server URL cannot be used: {e}")))
    }
}

/// The TLS error inside an I/O error, if that is what it is.
fn tls_error(error: &io::Error) -> Option<ProbeFailure> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    // A refusal is short and names the remedy at its end.
    let text = Refusal::of(error).map_or_else(|| quote(&chain(error)), Refusal::to_string);
    Some(ProbeFailure::Tls(text))
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
