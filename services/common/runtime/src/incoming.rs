//! Accepted connections for the gRPC server: bounded in number, with a deadline on the TLS handshake.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::backoff::Backoff;
use crate::metrics::Metric;
use crate::tls::Tls;

/// Connections refused or broken before the first request.
pub const CONNECTIONS_REFUSED: Metric = Metric::counter(
    "watchdog_grpc_connections_refused_total",
    "Connections to the gRPC server that ended before a request, by reason: limit, handshake or timeout.",
);

/// A TLS handshake that takes longer is given up: half-open connections must not keep a place.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Open connections at most. Each costs about 100 KiB at its limits; a seed has tens of callers, not hundreds.
const MAX_CONNECTIONS: usize = 512;

/// Where a caller comes from, as a request extension.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: Option<SocketAddr>,
}

/// A connection that was accepted and, with TLS, authenticated.
#[derive(Debug)]
pub struct Connection {
    io: Io,
    // Gives the place back when the connection is dropped.
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let tcp = match &self.io {
            Io::Plain(tcp) => tcp,
            Io::Tls(tls) => tls.get_ref().0,
        };
        Peer {
            address: tcp.peer_addr().ok(),
        }
    }
}

/// Accepts connections until `stop` is cancelled. Handshakes run side by side, so that a slow peer delays nobody.
#[must_use]
pub fn accept(
    listener: TcpListener,
    tls: Option<Tls>,
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
                Ok(accepted) => {
                    backoff.reset();
                    accepted
                }
                // Out of file descriptors, or the peer was gone already: the listener itself is fine.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(backoff.next_delay()).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                refuse(address, "limit", "there are 512 connections already");
                continue;
            };
            let (tls, sender) = (tls.clone(), sender.clone());
            tokio::spawn(async move {
                if let Some(connection) = handshake(tcp, address, tls, place).await {
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
    place: OwnedSemaphorePermit,
) -> Option<Connection> {
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let Some(tls) = tls else {
        return Some(Connection {
            io: Io::Plain(tcp),
            _place: place,
        });
    };
    let accept = TlsAcceptor::from(tls.current().server.clone()).accept(tcp);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, accept).await {
        Ok(Ok(stream)) => Some(Connection {
            io: Io::Tls(Box::new(stream)),
            _place: place,
        }),
        Ok(Err(error)) => {
            refuse(address, "handshake", &error.to_string());
            None
        }
        Err(_) => {
            refuse(address, "timeout", "the TLS handshake took longer than 10 s");
            None
        }
    }
}

fn refuse(address: SocketAddr, reason: &'static str, error: &str) {
    CONNECTIONS_REFUSED.inc(&[("reason", reason.to_owned())]);
    tracing::warn!(peer = %address, reason, %error, "gRPC connection refused");
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Io::Tls(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
        }
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
