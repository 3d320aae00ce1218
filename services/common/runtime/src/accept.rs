//! Connections to the gRPC server: who gets one, and how long it lives.
//!
//! A newcomer is a stranger until it has begun to speak HTTP/2, and with TLS has proved who it is. Strangers have 3 s
//! and few places: the oldest is closed for a new one. A caller that is known has places that no stranger can take. Its
//! connection ends when it is old, or when its certificate would not be accepted any more.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, Join, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

use crate::caller_quota::{Caller, CallerKind, CallerQuota, QuotaLimits};
use crate::connection_tasks::{ConnectionTasks, StrangerPlace};
use crate::failure::chain;
use crate::listeners::{AcceptedConnection, Acceptor};
use crate::refusal_log::{CloseReason, RefusalLog};
use crate::rpc_error::{ErrorReason, error};
use crate::tls::{CallerCertificates, DISTRUSTED, HANDSHAKE_TIMEOUT, Tls};

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Open connections of callers that are known. A seed has tens of callers, not hundreds. 64 replicas and as many of the
/// coordinator fit into what is reserved.
const CONNECTIONS: QuotaLimits = QuotaLimits {
    what: "connections",
    total: 512,
    reserved: 128,
    per_client: 8,
    per_address: 128,
};

/// Connections of strangers, and of refused callers that read why.
const MAX_STRANGERS: usize = 256;

/// Such connections of one address.
const MAX_STRANGERS_PER_ADDRESS: usize = 16;

/// A caller that is refused has this time to read why.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection gets a GOAWAY at this age, up to a tenth earlier, so that not all come again at once.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(30 * 60);

/// Calls and streams may end within this time after the GOAWAY.
const AGE_GRACE: Duration = Duration::from_secs(30);

/// Streams end at the drain; a connection that is still open after this time is cut.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Streams and calls of one connection at the same time, if one of our own services has opened it, or without TLS.
const MAX_STREAMS: u32 = 128;

/// The same of another client.
const MAX_CLIENT_STREAMS: u32 = 32;

/// An idle connection is asked for a sign of life this often, and given up when none comes within
/// [`PING_TIMEOUT`]: a caller that vanished without a goodbye is noticed within 15 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Headers of a request in bytes.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Bytes that a caller may send on a stream, and on all of a connection, before they are read.
const WINDOW_BYTES: (u32, u32) = (128 * 1024, 256 * 1024);

/// Bytes of the answer on a stream that wait to be written.
const SEND_BUFFER_BYTES: usize = 32 * 1024;

/// How often the log gets the refusals that are due.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// The caller at the other end of a connection, as a request extension.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Its identity; if its connection is refused, the answer to all of its calls.
    pub(crate) caller: Result<Caller, Status>,
    /// Closes its connection, because it does not read an answer.
    pub(crate) close: CancellationToken,
}

/// Why a connection is refused, or closed because of the caller.
type CloseCause = (CloseReason, String);

/// Answers the calls of all connections.
pub(crate) type GrpcService = BoxCloneSyncService<Request<Body>, Response<Body>, Status>;

type Plain = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// The preface was read already, and is read again by the HTTP/2 server.
type Replayed = Join<tokio::io::Chain<&'static [u8], ReadHalf<Plain>>, WriteHalf<Plain>>;

/// The parts that all connections of a listener share.
struct GrpcListener {
    tls: Option<Tls>,
    connections: CallerQuota,
    refusals: RefusalLog,
    service: GrpcService,
    max_age: Duration,
    stop: CancellationToken,
}

/// Serves connections until `stop` is cancelled, lets those that are open end, and cuts what is left after 5 s.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    service: GrpcService,
    max_age: Duration,
    stop: CancellationToken,
) {
    let incoming = Acceptor {
        listener,
        refusal: "cannot accept a gRPC connection",
        uses_reserve: false,
    };
    let shared = Arc::new(GrpcListener {
        tls,
        connections: CallerQuota::new(CONNECTIONS),
        refusals: RefusalLog::default(),
        service,
        max_age,
        stop,
    });
    let mut connections = ConnectionTasks::new(MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS);
    let mut flush = interval(FLUSH_INTERVAL);
    loop {
        let AcceptedConnection { tcp, address, .. } = tokio::select! {
            () = shared.stop.cancelled() => break,
            _ = flush.tick() => {
                shared.refusals.flush();
                continue;
            }
            accepted = incoming.next() => accepted,
        };
        let listener = shared.clone();
        let serve = |place| async move {
            if let Err((reason, why)) = listener.admit(tcp, address, place).await {
                listener.refusals.refuse(address, reason, &why);
            }
        };
        if let Some(evicted) = connections.spawn(address.ip(), serve) {
            let why = "its address had the most unauthenticated connections";
            let evicted = SocketAddr::new(evicted, 0);
            shared.refusals.refuse(evicted, CloseReason::Evicted, why);
        }
    }
    drop(incoming);
    if timeout(DRAIN_TIMEOUT, connections.finish()).await.is_err() {
        tracing::warn!("gRPC connections were still open 5 s after the drain started; closing them");
    }
}

impl GrpcListener {
    /// Authenticates a caller and serves its connection until that ends.
    ///
    /// # Errors
    /// When it is closed because of the caller: why.
    async fn admit(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        place: StrangerPlace,
    ) -> Result<(), CloseCause> {
        // For the TLS handshake and the start of HTTP/2 together.
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let (io, certificates, checked) = match &self.tls {
            None => (Either::Left(tcp), None, Ok(Caller::at(address.ip()))),
            Some(tls) => {
                let accepted = tls.accept(tls.server(), tcp, deadline).await;
                let (stream, checked, certificates) = accepted.map_err(|error| match error.kind() {
                    ErrorKind::TimedOut => (CloseReason::Timeout, error.to_string()),
                    _ => (CloseReason::Handshake, chain(&error)),
                })?;
                (Either::Right(Box::new(stream)), Some(certificates), checked)
            }
        };
        let is_known = certificates.is_some() && checked.is_ok();
        let io = match speak(io, deadline).await {
            Ok(io) => io,
            Err(error)
                if is_known && !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::InvalidData) =>
            {
                // As `watchdogctl check` does, which looks at the certificate.
                return Ok(());
            }
            Err(error) => {
                let why = format!("it did not begin to speak HTTP/2: {}", chain(&error));
                return Err((CloseReason::Silent, why));
            }
        };
        let refused = match checked {
            Ok(caller) => match self.connections.acquire(&caller, 1) {
                Ok(_permit) => {
                    return match place.give_back() {
                        true => self.serve(io, address, Ok(caller), certificates).await,
                        false => Ok(()),
                    };
                }
                Err(why) => {
                    let of_caller = format!("{}: {why}", caller.name);
                    self.refusals.refuse(address, CloseReason::Limit, &of_caller);
                    error(ErrorReason::TooManyStreams, why)
                }
            },
            Err(why) => {
                self.refusals.refuse(address, CloseReason::Identity, &why);
                error(ErrorReason::ClientNotAllowed, why)
            }
        };
        // It keeps the place of a stranger.
        let served = self.serve(io, address, Err(refused), certificates);
        timeout(REFUSED_TIMEOUT, served).await.unwrap_or(Ok(()))
    }

    /// Serves a connection until it ends or must end.
    async fn serve(
        &self,
        io: Replayed,
        address: SocketAddr,
        caller: Result<Caller, Status>,
        certificates: Option<CallerCertificates>,
    ) -> Result<(), CloseCause> {
        let max_streams = match &caller {
            Ok(caller) if caller.kind != CallerKind::Client => MAX_STREAMS,
            _ => MAX_CLIENT_STREAMS,
        };
        let unread = CancellationToken::new();
        let peer = Peer {
            caller,
            close: unread.clone(),
        };
        let service = self.service.clone();
        let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            let answer = service.clone().oneshot(request);
            async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|status| status.into_http())) }
        });
        let age = self.max_age - self.max_age.mul_f64(rand::random_range(0.0..0.1));
        let mut served = pin!(http2(max_streams).serve_connection(TokioIo::new(io), answer));
        let until_end = async {
            tokio::select! {
                ended = served.as_mut() => return ended,
                () = self.stop.cancelled() => {}
                () = sleep(age) => {}
            }
            served.as_mut().graceful_shutdown();
            served.await
        };
        let distrusted = async {
            match certificates {
                Some(certificates) => certificates.distrusted().await,
                None => pending().await,
            }
        };
        let close = |reason, why: &str| Err((reason, why.to_owned()));
        tokio::select! {
            ended = until_end => {
                if let Err(error) = ended {
                    tracing::debug!(peer = %address, %error, "a gRPC connection ended");
                }
                Ok(())
            }
            () = sleep(age + AGE_GRACE) => Ok(()),
            () = distrusted => close(CloseReason::Distrusted, DISTRUSTED),
            () = unread.cancelled() => close(CloseReason::Unread, "it did not read an answer within 10 s"),
        }
    }
}

/// Waits until the caller begins to speak HTTP/2.
async fn speak(mut io: Plain, deadline: Instant) -> io::Result<Replayed> {
    let mut begin = [0; PREFACE.len()];
    let silent = |_| io::Error::new(ErrorKind::TimedOut, "it was silent for 3 s");
    timeout_at(deadline, io.read_exact(&mut begin))
        .await
        .map_err(silent)??;
    if begin != *PREFACE {
        return Err(io::Error::new(ErrorKind::InvalidData, "it sent something else"));
    }
    let (read, write) = tokio::io::split(io);
    Ok(tokio::io::join(PREFACE.as_slice().chain(read), write))
}

fn http2(max_streams: u32) -> http2::Builder<TokioExecutor> {
    let (of_stream, of_connection) = WINDOW_BYTES;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(max_streams)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(of_stream)
        .initial_connection_window_size(of_connection)
        .max_send_buf_size(SEND_BUFFER_BYTES);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_gets_a_goaway_at_its_age() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = tower::service_fn(|_: Request<Body>| async { Ok(Response::new(Body::empty())) });
        let stop = CancellationToken::new();
        let service = GrpcService::new(service);
        let max_age = Duration::from_millis(200);
        tokio::spawn(serve(listener, None, service, max_age, stop.clone()));
        let tcp = TcpStream::connect(address).await.unwrap();
        let (client, connection) = h2::client::handshake(tcp).await.unwrap();
        let ended = timeout(Duration::from_secs(120), connection).await;
        ended.expect("it ends").expect("by a GOAWAY");
        drop((client, stop));
    }
}
