//! One TLS listener for all shoots: HTTP/2 and HTTP/1.1, the server name tells which shoot is meant.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use watchdog_sandbox::io::Wire;
use watchdog_test_support::certs::{Authority, TlsFiles};
use watchdog_test_support::scratch::Scratch;

use super::seeding::ShootEndpoint;
use super::{Availability, DOMAIN, Fleet, http};

/// Connections that wait to be accepted: all shoots may be connected to in the same second.
const BACKLOG: u32 = 4096;

/// A TLS handshake must be complete by then; time in which the API servers hang does not count.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Concurrent requests per HTTP/2 connection, as kube-apiserver allows.
const MAX_STREAMS: u32 = 250;

/// Pause after a failed accept (out of file descriptors, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound listener.
pub struct FleetListener {
    socket: TcpListener,
    // Bound and never listening: keeps the port while the API servers refuse connections.
    reserved: TcpSocket,
    acceptor: TlsAcceptor,
    pub endpoint: ShootEndpoint,
}

impl FleetListener {
    /// Binds a free port on all addresses: each shoot has one of its own in 127.0.0.0/8.
    ///
    /// # Errors
    /// When no port is free or a certificate cannot be made.
    pub fn bind() -> anyhow::Result<Self> {
        // Only until the certificate is read.
        let scratch = Scratch::new("fleet")?;
        let wildcard = format!("*.{DOMAIN}");
        let files = Authority::new(&scratch, "fleet")?.issue("kube-apiserver", &[&wildcard, "localhost"])?;
        let reserved = bound_socket(0)?;
        let port = reserved.local_addr()?.port();
        Ok(Self {
            socket: bound_socket(port)?.listen(BACKLOG)?,
            reserved,
            acceptor: TlsAcceptor::from(Arc::new(config(&files)?)),
            endpoint: ShootEndpoint {
                port,
                ca_pem: std::fs::read_to_string(&files.ca)?,
            },
        })
    }

    /// Serves callers on this machine until it is dropped.
    pub async fn serve(self, fleet: Arc<Fleet>) {
        let Self {
            mut socket,
            reserved: _reserved,
            acceptor,
            endpoint: ShootEndpoint { port, .. },
        } = self;
        let mut availability = fleet.availability();
        loop {
            tokio::select! {
                () = accept_all(&socket, &acceptor, &fleet) => {}
                () = refusing(&mut availability) => {}
            }
            drop(socket);
            if availability
                .wait_for(|now| *now != Availability::Refuse)
                .await
                .is_err()
            {
                return;
            }
            socket = loop {
                match bound_socket(port).and_then(|bound| bound.listen(BACKLOG)) {
                    Ok(socket) => break socket,
                    Err(error) => eprintln!("port {port} cannot be listened on again: {error}"),
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            };
        }
    }
}

/// Several sockets may have this port at the same time, one of them listening.
fn bound_socket(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
    Ok(socket)
}

async fn accept_all(socket: &TcpListener, acceptor: &TlsAcceptor, fleet: &Arc<Fleet>) {
    loop {
        let (stream, peer) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("accept failed: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !peer.ip().is_loopback() {
            continue;
        }
        fleet.wire.accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(connection(fleet.clone(), acceptor.clone(), stream));
    }
}

/// Ends when the API servers refuse connections.
async fn refusing(availability: &mut watch::Receiver<Availability>) {
    if availability
        .wait_for(|now| *now == Availability::Refuse)
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
}

/// Ends when the API servers have not hung for [`HANDSHAKE_TIMEOUT`].
async fn handshake_expiry(mut availability: watch::Receiver<Availability>) {
    while availability
        .wait_for(|now| *now != Availability::Hang)
        .await
        .is_ok()
    {
        tokio::select! {
            () = tokio::time::sleep(HANDSHAKE_TIMEOUT) => return,
            _ = availability.changed() => {}
        }
    }
}

/// Holds a new connection while the API servers hang; none when the caller has closed it in the meantime. A process
/// that hangs would keep its end open, which no caller can see; giving it up bounds the file descriptors of an outage.
async fn hold_while_hanging(
    stream: TcpStream,
    mut availability: watch::Receiver<Availability>,
) -> io::Result<Option<TcpStream>> {
    if *availability.borrow_and_update() != Availability::Hang {
        return Ok(Some(stream));
    }
    loop {
        tokio::select! {
            ready = stream.ready(Interest::READABLE) => {
                if ready?.is_read_closed() {
                    return Ok(None);
                }
                // What the caller sent stays in the socket. This waits for the next event, which is more of it or the
                // end.
                let not_now = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
                let _ = stream.try_io(Interest::READABLE, not_now);
            }
            _ = availability.wait_for(|now| *now != Availability::Hang) => break,
        }
    }
    // Registered anew, the socket reports what there is to read.
    TcpStream::from_std(stream.into_std()?).map(Some)
}

/// One more of something as long as it lives.
struct Guard<'a>(&'a AtomicU64);

impl<'a> Guard<'a> {
    fn new(gauge: &'a AtomicU64) -> (Self, u64) {
        let now = gauge.fetch_add(1, Ordering::Relaxed) + 1;
        (Self(gauge), now)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(fleet: Arc<Fleet>, acceptor: TlsAcceptor, stream: TcpStream) {
    let mut availability = fleet.availability();
    tokio::select! {
        biased;
        () = serve_connection(&fleet, &acceptor, stream) => {}
        () = refusing(&mut availability) => {}
    }
}

async fn serve_connection(fleet: &Fleet, acceptor: &TlsAcceptor, stream: TcpStream) {
    let Ok(Some(stream)) = hold_while_hanging(stream, fleet.availability()).await else {
        return;
    };
    let counts = &fleet.connections;
    let (opening, at_once) = Guard::new(&counts.opening);
    counts.opening_most.fetch_max(at_once, Ordering::Relaxed);
    // A failure shows when it is written to.
    let _ = stream.set_nodelay(true);
    let wire = Wire::new(stream, fleet.gate.clone(), fleet.wire.clone());
    let handshake = tokio::select! {
        accepted = acceptor.accept(wire) => accepted.ok(),
        () = handshake_expiry(fleet.availability()) => None,
    };
    let Some(stream) = handshake else {
        counts.failed.fetch_add(1, Ordering::Relaxed);
        return;
    };
    drop(opening);
    let (_open, _) = Guard::new(&counts.open);
    let name = stream.get_ref().1.server_name().map(str::to_owned);
    let Some(shoot) = name.as_deref().and_then(|name| fleet.shoot_by_server_name(name)) else {
        eprintln!("a caller asked for {name:?}, which is no shoot of this fleet");
        return;
    };
    let service =
        service_fn(|request| std::future::ready(Ok::<_, Infallible>(http::answer(fleet, shoot, &request))));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS);
    // How a connection ends is the caller's affair.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

fn config(files: &TlsFiles) -> anyhow::Result<ServerConfig> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(&files.cert)?
        .chain(CertificateDer::pem_file_iter(&files.ca)?)
        .collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&files.key)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("use the fleet's certificate")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
