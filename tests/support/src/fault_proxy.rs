//! A server that stands before another one and misbehaves on command: what networks, load balancers and broken API
//! servers do to their clients. Before an API server it ends TLS with a certificate of its own, so that it can also
//! answer itself.

mod throttle;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncWrite, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;
use watchdog_sandbox::ApiServer;

use self::tls::ProxyTls;
use crate::real::KubeApiserver;

/// Connections at once; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 512;

/// A TLS handshake, on either side, must be complete by then.
const HANDSHAKE_BOUND: Duration = Duration::from_secs(10);

/// How it treats its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Passes everything on.
    Pass,
    /// Accepts and never answers; what is open carries no more bytes, as when packets are dropped.
    Silent,
    /// Answers every request with 429, to be asked again in this many seconds.
    Throttle(u32),
}

/// A running fault proxy. Everything ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    upstream: Upstream,
    /// Its own authority; none if it passes TLS on as it comes.
    ca_pem: Option<String>,
    behaviour: watch::Sender<Behaviour>,
    accepted: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

/// The API server behind it.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// `https://127.0.0.1:port`
    pub url: String,
    /// The authority that signed its certificate, PEM.
    pub ca_pem: String,
}

impl From<&ApiServer> for Upstream {
    fn from(server: &ApiServer) -> Self {
        Self {
            url: server.url(),
            ca_pem: server.ca_pem().to_owned(),
        }
    }
}

impl From<&KubeApiserver> for Upstream {
    fn from(server: &KubeApiserver) -> Self {
        Self {
            url: server.url().to_owned(),
            ca_pem: server.ca_pem().to_owned(),
        }
    }
}

/// The state of a connection.
struct ProxyRoute {
    identity: Option<ProxyTls>,
    upstream: SocketAddr,
}

// === impl FaultProxy ===

impl FaultProxy {
    /// Listens on loopback and passes on.
    pub async fn start(upstream: Upstream) -> anyhow::Result<Self> {
        let tls = ProxyTls::new(&upstream.ca_pem)?;
        let authority = upstream
            .url
            .strip_prefix("https://")
            .context("the upstream does not speak TLS")?;
        let target = authority.parse()?;
        Self::start_with(upstream, target, Some(tls)).await
    }

    /// Listens on loopback and passes bytes on as they come, to any server.
    pub async fn start_tcp(target: SocketAddr) -> anyhow::Result<Self> {
        let upstream = Upstream {
            url: format!("https://{target}"),
            ca_pem: String::new(),
        };
        Self::start_with(upstream, target, None).await
    }

    async fn start_with(
        upstream: Upstream,
        target: SocketAddr,
        tls: Option<(ProxyTls, String)>,
    ) -> anyhow::Result<Self> {
        let (identity, ca_pem) = tls.unzip();
        let route = Arc::new(ProxyRoute {
            identity,
            upstream: target,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.context("bind a proxy")?;
        let address = listener.local_addr()?;
        let behaviour = watch::Sender::new(Behaviour::Pass);
        let accepted = Arc::<AtomicU64>::default();
        let task = tokio::spawn(accept(listener, route, behaviour.subscribe(), accepted.clone()));
        Ok(Self {
            address,
            upstream,
            ca_pem,
            behaviour,
            accepted,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes its behaviour. Connections that are open break, save that [`Behaviour::Silent`] keeps them, mute, until
    /// it ends.
    pub fn set(&self, behaviour: Behaviour) {
        self.behaviour
            .send_if_modified(|old| std::mem::replace(old, behaviour) != behaviour);
    }

    /// Breaks the connections that are open now.
    pub fn cut_connections(&self) {
        self.behaviour.send_modify(|_| ());
    }

    /// How many connections were ever accepted.
    pub fn connections(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// A kubeconfig of the API server behind it, made to lead here.
    pub fn kubeconfig(&self, direct: &str) -> String {
        let kubeconfig = direct.replace(&self.upstream.url, &format!("https://{}", self.address));
        match &self.ca_pem {
            Some(ca_pem) => {
                kubeconfig.replace(&STANDARD.encode(&self.upstream.ca_pem), &STANDARD.encode(ca_pem))
            }
            None => kubeconfig,
        }
    }
}

async fn accept(
    listener: TcpListener,
    route: Arc<ProxyRoute>,
    behaviour: watch::Receiver<Behaviour>,
    accepted: Arc<AtomicU64>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            incoming = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                if let Ok((stream, _)) = incoming {
                    accepted.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(connection(stream, route.clone(), behaviour.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Lives until one side ends it or the behaviour changes.
async fn connection(stream: TcpStream, route: Arc<ProxyRoute>, mut behaviours: watch::Receiver<Behaviour>) {
    let behaviour = *behaviours.borrow_and_update();
    let mut served = std::pin::pin!(serve(stream, &route, behaviour));
    tokio::select! {
        () = &mut served => return,
        changed = behaviours.changed() => if changed.is_err() { return },
    }
    // `served` is kept and no longer driven: open and mute.
    while *behaviours.borrow_and_update() == Behaviour::Silent {
        if behaviours.changed().await.is_err() {
            return;
        }
    }
}

async fn serve(stream: TcpStream, route: &ProxyRoute, behaviour: Behaviour) {
    // Small pieces must not wait for an acknowledgement; without it a test is slower, no more.
    let _ = stream.set_nodelay(true);
    match behaviour {
        Behaviour::Silent => {
            let _stream = stream;
            std::future::pending().await
        }
        Behaviour::Throttle(seconds) => {
            if let Some(identity) = &route.identity
                && let Some(client) = identity.accept(stream).await
            {
                throttle::serve(client, seconds).await;
            }
        }
        Behaviour::Pass => pass(stream, route).await,
    }
}

/// Until one side ends.
async fn pass(client: TcpStream, route: &ProxyRoute) {
    let Some(identity) = &route.identity else {
        if let Ok(server) = TcpStream::connect(route.upstream).await {
            let _ = server.set_nodelay(true);
            relay(client, server).await;
        }
        return;
    };
    let Some(client) = identity.accept(client).await else {
        return;
    };
    let protocol = client.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let server = identity.connect(route.upstream, protocol.as_deref());
    if let Some(server) = server.await {
        relay(client, server).await;
    }
}

async fn relay(client: impl AsyncRead + AsyncWrite, server: impl AsyncRead + AsyncWrite) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}
