//! Accepted connections for the gRPC server: bounded in number, with a deadline on the TLS handshake.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use tonic::{Request, Status};

use crate::allowed_clients::AllowedClients;
use crate::backoff::Backoff;
use crate::caller_quota::{Caller, CallerQuota, QuotaExceeded, QuotaLimits, QuotaPermit};
use crate::label;
use crate::metrics::Counter;
use crate::rpc_error::{ErrorReason, error};
use crate::tls::Tls;

label!(pub(crate) enum CloseReason: "reason" {
    Limit = "limit",
    Handshake = "handshake",
    Identity = "identity",
    Timeout = "timeout",
    Silent = "silent",
});

pub(crate) const CONNECTIONS_REFUSED: Counter<CloseReason> = Counter::new(
    "watchdog_grpc_connections_refused_total",
    "Connections to the gRPC server that ended before a request, by reason: limit, handshake, identity, timeout or \
     silent.",
);

/// A TLS handshake that takes longer is given up: half-open connections must not pile up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that has not sent the start of HTTP/2 by then is given up. From then on the server's pings tell whether
/// somebody is there.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// The first bytes of every HTTP/2 connection: 24.
const PREFACE_BYTES: usize = 24;

/// Open connections. Each costs about 100 KiB at its limits; a seed has tens of callers, not hundreds. 64 replicas and
/// as many of the coordinator fit into what is reserved.
const CONNECTIONS: QuotaLimits = QuotaLimits {
    total: 512,
    reserved: 128,
    per_caller: 128,
};

/// Connections whose caller is not known yet, or is refused, by address: they take none from callers that are known.
const STRANGERS: QuotaLimits = QuotaLimits {
    total: 256,
    reserved: 0,
    per_caller: 128,
};

/// A caller that is refused has this time to read why.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a caller comes from, as a request extension.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its identity.
    pub caller: Caller,
    /// Why it is not allowed to call, if it is not.
    pub refused: Option<Arc<str>>,
}

/// A connection that was accepted and, with TLS, authenticated.
#[derive(Debug)]
pub struct Connection {
    io: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    peer: Peer,
    /// How many bytes of the start of HTTP/2 are missing.
    missing: usize,
    /// When the connection ends: always if the caller is refused, else unless the start of HTTP/2 is there.
    deadline: Option<Pin<Box<Sleep>>>,
    _permit: QuotaPermit,
}

/// The quotas of a listener, and who may call.
#[derive(Debug, Clone)]
struct Admission {
    tls: Option<Tls>,
    allowed: AllowedClients,
    strangers: CallerQuota,
    connections: CallerQuota,
}

impl Connection {
    fn new(
        io: Either<TcpStream, Box<TlsStream<TcpStream>>>,
        address: SocketAddr,
        caller: Caller,
        refused: Option<Arc<str>>,
        permit: QuotaPermit,
    ) -> Self {
        let timeout = if refused.is_some() {
            REFUSED_TIMEOUT
        } else {
            PREFACE_TIMEOUT
        };
        Self {
            io,
            peer: Peer {
                address,
                caller,
                refused,
            },
            missing: PREFACE_BYTES,
            deadline: Some(Box::pin(tokio::time::sleep(timeout))),
            _permit: permit,
        }
    }

    /// Counts what was read towards the start of HTTP/2. An error when the connection has had its time.
    fn check_deadline(&mut self, cx: &mut Context<'_>, read: usize) -> io::Result<()> {
        self.missing = self.missing.saturating_sub(read);
        if self.missing == 0 && self.peer.refused.is_none() {
            self.deadline = None;
        }
        let deadline = self.deadline.as_mut();
        if deadline.is_none_or(|deadline| deadline.as_mut().poll(cx).is_pending()) {
            return Ok(());
        }
        if self.peer.refused.is_none() {
            self.deadline = None;
            let why = "it did not begin to speak HTTP/2 within 10 s";
            refuse(self.peer.address, CloseReason::Silent, why);
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Accepts connections until `stop` is cancelled. Handshakes run side by side, so that a slow peer delays nobody.
#[must_use]
pub fn accept(
    listener: TcpListener,
    tls: Option<Tls>,
    callers: AllowedClients,
    stop: CancellationToken,
) -> mpsc::Receiver<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let admission = Admission {
            tls,
            allowed: callers,
            strangers: CallerQuota::new(STRANGERS),
            connections: CallerQuota::new(CONNECTIONS),
        };
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let (tcp, address) = match accepted {
                Ok((tcp, address)) => {
                    backoff.reset();
                    // A socket of both families shows callers from IPv4 as ::ffff:192.0.2.1.
                    (tcp, SocketAddr::new(address.ip().to_canonical(), address.port()))
                }
                // Out of file descriptors, or the peer was gone already: the listener itself is fine.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a gRPC connection");
                    tokio::time::sleep(backoff.next_delay()).await;
                    continue;
                }
            };
            let stranger = Caller::at(address.ip());
            let Some(permit) = acquire(&admission.strangers, &stranger, address) else {
                continue;
            };
            let (admission, sender) = (admission.clone(), sender.clone());
            tokio::spawn(async move {
                if let Some(connection) = admission.admit(tcp, address, stranger, permit).await {
                    let _ = sender.send(Ok(connection)).await;
                }
            });
        }
    });
    receiver
}

impl Admission {
    /// Authenticates a caller and gives it a connection, or refuses it. `permit` is that of a stranger.
    async fn admit(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        stranger: Caller,
        permit: QuotaPermit,
    ) -> Option<Connection> {
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let Some(tls) = &self.tls else {
            let permit = acquire(&self.connections, &stranger, address)?;
            return Some(Connection::new(
                Either::Left(tcp),
                address,
                stranger,
                None,
                permit,
            ));
        };
        let stream = handshake(tls, tcp, address).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let checked = self.allowed.check(certificate);
        let io = Either::Right(Box::new(stream));
        match checked {
            Ok(caller) => {
                let permit = acquire(&self.connections, &caller, address)?;
                Some(Connection::new(io, address, caller, None, permit))
            }
            Err(error) => {
                let why = error.to_string();
                refuse(address, CloseReason::Identity, &why);
                Some(Connection::new(io, address, stranger, Some(why.into()), permit))
            }
        }
    }
}

/// A permit, or none and a line in the log.
fn acquire(quota: &CallerQuota, caller: &Caller, address: SocketAddr) -> Option<QuotaPermit> {
    let refused = |exceeded| {
        let why = match exceeded {
            QuotaExceeded::Caller(most) => format!("{} has {most} connections already", caller.name),
            QuotaExceeded::Total(total) => {
                format!("of {total} connections, none is free for {}", caller.name)
            }
        };
        refuse(address, CloseReason::Limit, &why);
    };
    quota.acquire(caller).map_err(refused).ok()
}

async fn handshake(tls: &Tls, tcp: TcpStream, address: SocketAddr) -> Option<TlsStream<TcpStream>> {
    let accept = TlsAcceptor::from(tls.server()).accept(tcp);
    let (reason, error) = match tokio::time::timeout(HANDSHAKE_TIMEOUT, accept).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => (CloseReason::Handshake, error.to_string()),
        Err(_) => (
            CloseReason::Timeout,
            "the TLS handshake took longer than 10 s".to_owned(),
        ),
    };
    refuse(address, reason, &error);
    None
}

fn refuse(address: SocketAddr, reason: CloseReason, error: &str) {
    CONNECTIONS_REFUSED.inc(reason);
    tracing::warn!(peer = %address, reason = reason.as_str(), %error, "gRPC connection refused");
}

/// Refuses the calls of a caller who is not allowed. The connection was accepted, so that the caller gets the reason.
///
/// # Errors
/// PERMISSION_DENIED.
#[allow(clippy::result_large_err, reason = "the signature of an interceptor")]
pub(crate) fn intercept(request: Request<()>) -> Result<Request<()>, Status> {
    match request
        .extensions()
        .get::<Peer>()
        .and_then(|peer| peer.refused.as_deref())
    {
        Some(why) => Err(error(ErrorReason::ClientNotAllowed, why)),
        None => Ok(request),
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        self.check_deadline(cx, buf.filled().len() - before)?;
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
