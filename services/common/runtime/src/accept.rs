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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::allowed_clients::{AllowedClients, Refusal};
use crate::backoff::Backoff;
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
    "Connections to the gRPC server that ended before a request, by reason: limit, handshake, identity, timeout or silent.",
);

/// A TLS handshake that takes longer is given up: half-open connections must not keep a place.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that has not sent the start of HTTP/2 by then is given up. From then on the server's pings tell whether
/// somebody is there.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// The first bytes of every HTTP/2 connection: 24.
const PREFACE_BYTES: usize = 24;

/// Open connections at most. Each costs about 100 KiB at its limits; a seed has tens of callers, not hundreds.
const MAX_CONNECTIONS: usize = 512;

/// Where a caller comes from, as a request extension.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: Option<SocketAddr>,
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
    // Gives the place back when the connection is dropped.
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    fn new(io: Io, address: SocketAddr, refused: Option<Refusal>, place: OwnedSemaphorePermit) -> Self {
        let peer = Peer {
            address: Some(address),
            refused: refused.map(|why| why.to_string().into()),
        };
        let too_late = Box::pin(tokio::time::sleep(PREFACE_TIMEOUT));
        Self {
            io,
            peer,
            preface: Some((PREFACE_BYTES, too_late)),
            _place: place,
        }
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
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
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
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(backoff.next_delay()).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                refuse(address, CloseReason::Limit, "there are 512 connections already");
                continue;
            };
            let (tls, callers, sender) = (tls.clone(), callers.clone(), sender.clone());
            tokio::spawn(async move {
                if let Some(connection) = handshake(tcp, address, tls, &callers, place).await {
                    let _ = sender.send(Ok(connection)).await;
                }
            });
        }
    });
    receiver
}

async fn handshake(
    tcp: TcpStream,
    address: SocketAddr,
    tls: Option<Tls>,
    callers: &AllowedClients,
    place: OwnedSemaphorePermit,
) -> Option<Connection> {
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let Some(tls) = tls else {
        return Some(Connection::new(Io::Plain(tcp), address, None, place));
    };
    let accept = TlsAcceptor::from(tls.server()).accept(tcp);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, accept).await {
        Ok(Ok(stream)) => {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let refused = callers.check(certificate).err();
            if let Some(why) = &refused {
                refuse(address, CloseReason::Identity, &why.to_string());
            }
            Some(Connection::new(
                Io::Tls(Box::new(stream)),
                address,
                refused,
                place,
            ))
        }
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
