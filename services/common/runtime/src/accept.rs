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
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::allowed_clients::AllowedClients;
use crate::backoff::Backoff;
use crate::caller_quota::{Caller, CallerQuota, QuotaExceeded, QuotaLimits, QuotaPermit};
use crate::label;
use crate::metrics::Counter;
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
    pub address: Option<SocketAddr>,
    /// Its identity.
    pub caller: Caller,
    /// Why it is not allowed to call, if it is not.
    pub refused: Option<Arc<str>>,
}

/// A connection that was accepted and, with TLS, authenticated.
#[derive(Debug)]
pub struct Connection {
    io: Io,
    peer: Peer,
    /// Until the start of HTTP/2 is there: how many bytes are missing, and when it is too late.
    preface: Option<(usize, Pin<Box<Sleep>>)>,
    /// When a caller that is refused is let go.
    refused_until: Option<Pin<Box<Sleep>>>,
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

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    fn new(io: Io, peer: Peer, permit: QuotaPermit) -> Self {
        let after = |timeout| Box::pin(tokio::time::sleep(timeout));
        Self {
            io,
            preface: Some((PREFACE_BYTES, after(PREFACE_TIMEOUT))),
            refused_until: peer.refused.is_some().then(|| after(REFUSED_TIMEOUT)),
            peer,
            _permit: permit,
        }
    }

    /// An error when a caller that is refused has had its time.
    fn poll_refused(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let until = self.refused_until.as_mut();
        if until.is_some_and(|until| until.as_mut().poll(cx).is_ready()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Counts what was read towards the start of HTTP/2. An error when that takes too long.
    fn poll_preface(&mut self, cx: &mut Context<'_>, read: usize) -> io::Result<()> {
        let Some((missing, too_late)) = &mut self.preface else {
            return Ok(());
        };
        *missing = missing.saturating_sub(read);
        if *missing == 0 {
            self.preface = None;
        } else if too_late.as_mut().poll(cx).is_ready() {
            self.preface = None;
            if let Some(address) = self.peer.address {
                refuse(
                    address,
                    CloseReason::Silent,
                    "it did not begin to speak HTTP/2 within 10 s",
                );
            }
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
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
        let peer = |caller, refused| Peer {
            address: Some(address),
            caller,
            refused,
        };
        let Some(tls) = &self.tls else {
            let permit = acquire(&self.connections, &stranger, address)?;
            return Some(Connection::new(Io::Plain(tcp), peer(stranger, None), permit));
        };
        let stream = handshake(tls, tcp, address).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let checked = self.allowed.check(certificate);
        let io = Io::Tls(Box::new(stream));
        match checked {
            Ok(caller) => {
                let permit = acquire(&self.connections, &caller, address)?;
                Some(Connection::new(io, peer(caller, None), permit))
            }
            Err(why) => {
                let why = why.to_string();
                refuse(address, CloseReason::Identity, &why);
                Some(Connection::new(io, peer(stranger, Some(why.into())), permit))
            }
        }
    }
}

/// A permit, or none and a line in the log.
fn acquire(quota: &CallerQuota, caller: &Caller, address: SocketAddr) -> Option<QuotaPermit> {
    let exceeded = match quota.acquire(caller) {
        Ok(permit) => return Some(permit),
        Err(exceeded) => exceeded,
    };
    let why = match exceeded {
        QuotaExceeded::Caller(most) => format!("{} has {most} connections already", caller.name),
        QuotaExceeded::Total(total) => format!("of {total} connections, none is free for {}", caller.name),
    };
    refuse(address, CloseReason::Limit, &why);
    None
}

async fn handshake(tls: &Tls, tcp: TcpStream, address: SocketAddr) -> Option<TlsStream<TcpStream>> {
    let accept = TlsAcceptor::from(tls.server()).accept(tcp);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, accept).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            refuse(address, CloseReason::Handshake, &error.to_string());
            None
        }
        Err(_) => {
            refuse(
                address,
                CloseReason::Timeout,
                "the TLS handshake took longer than 10 s",
            );
            None
        }
    }
}

fn refuse(address: SocketAddr, reason: CloseReason, error: &str) {
    CONNECTIONS_REFUSED.inc(reason);
    tracing::warn!(peer = %address, reason = reason.as_str(), %error, "gRPC connection refused");
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_refused(cx)?;
        let before = buf.filled().len();
        let polled = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Io::Tls(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
        };
        self.poll_preface(cx, buf.filled().len() - before)?;
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Io::Tls(io) => Pin::new(io.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_flush(cx),
            Io::Tls(io) => Pin::new(io.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Io::Tls(io) => Pin::new(io.as_mut()).poll_shutdown(cx),
        }
    }
}
