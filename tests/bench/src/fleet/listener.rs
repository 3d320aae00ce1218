//! One TLS port for all shoots: HTTP/2 and HTTP/1.1, the server name tells which shoot is meant.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use watchdog_sandbox::io::Wire;
use watchdog_test_support::certs::ServerCertificate;

use super::seeding::ShootEndpoint;
use super::{Availability, DOMAIN, Fleet, http};

/// Sockets that listen on the port. While the API servers hang, callers wait in the queues of the kernel, which has
/// room for [`BACKLOG`] at each: for two attempts of each of 8,000 shoots.
const SOCKETS: usize = 4;

/// The most that Linux allows by default.
const BACKLOG: u32 = 4096;

/// Pause after a failed accept (out of file descriptors, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound port.
pub struct FleetListener {
    sockets: Vec<TcpListener>,
    // Bound and never listening: keeps the port while the API servers refuse connections.
    _reserved: TcpSocket,
    acceptor: TlsAcceptor,
    pub endpoint: ShootEndpoint,
}

impl FleetListener {
    /// Binds a free port on all addresses: each shoot has one of its own in 127.0.0.0/8.
    pub fn bind() -> anyhow::Result<Self> {
        let certificate = ServerCertificate::new("fleet-ca", &[&format!("*.{DOMAIN}")])?;
        let reserved = bound_socket(0)?;
        let port = reserved.local_addr()?.port();
        Ok(Self {
            sockets: listen(port)?,
            _reserved: reserved,
            acceptor: TlsAcceptor::from(certificate.tls()?),
            endpoint: ShootEndpoint {
                port,
                ca_pem: certificate.ca_pem,
            },
        })
    }

    /// Serves callers on this machine until it is dropped.
    pub async fn serve(mut self, fleet: Arc<Fleet>) -> anyhow::Result<()> {
        let mut availability = fleet.availability.subscribe();
        loop {
            let mut accepting = JoinSet::new();
            for socket in self.sockets.drain(..) {
                accepting.spawn(accept(socket, self.acceptor.clone(), fleet.clone()));
            }
            availability.wait_for(|now| *now == Availability::Refuse).await?;
            // Closes the sockets and all connections.
            accepting.shutdown().await;
            availability.wait_for(|now| *now != Availability::Refuse).await?;
            self.sockets = listen(self.endpoint.port)?;
        }
    }
}

/// Several sockets may have this port at the same time.
fn bound_socket(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
    Ok(socket)
}

fn listen(port: u16) -> io::Result<Vec<TcpListener>> {
    let sockets = (0..SOCKETS).map(|_| bound_socket(port)?.listen(BACKLOG));
    sockets.collect()
}

async fn accept(socket: TcpListener, acceptor: TlsAcceptor, fleet: Arc<Fleet>) {
    let mut availability = fleet.availability.subscribe();
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // One that hangs leaves its callers to the kernel, like a process that is stopped.
            let _ = availability.wait_for(|now| *now == Availability::Serve).await;
            socket.accept().await
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) if peer.ip().is_loopback() => {
                fleet.counts.lock().connections_accepted += 1;
                connections.spawn(connection(fleet.clone(), acceptor.clone(), stream));
            }
            Ok(_) => {}
            Err(error) => {
                eprintln!("accept failed: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(fleet: Arc<Fleet>, acceptor: TlsAcceptor, stream: TcpStream) {
    // A failure shows when it is written to.
    let _ = stream.set_nodelay(true);
    fleet.begin_handshake();
    let wire = Wire::new(stream, fleet.gate.clone(), fleet.wire.clone());
    let accepted = acceptor.accept(wire).await;
    fleet.counts.lock().connections_opening -= 1;
    // A caller that gave up is none of the fleet's business.
    let Ok(stream) = accepted else { return };
    let name = stream.get_ref().1.server_name().map(str::to_owned);
    let Some(shoot) = name.as_deref().and_then(|name| fleet.shoot_by_server_name(name)) else {
        eprintln!("a caller asked for {name:?}, which is no shoot of this fleet");
        return;
    };
    let service = service_fn(|request| ready(Ok::<_, Infallible>(http::answer(&fleet, shoot, &request))));
    // How a connection ends is the caller's affair.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
