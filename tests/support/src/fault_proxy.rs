//! A server that stands before an API server and misbehaves on command: what networks, load balancers and broken API
//! servers do to their clients. It ends TLS with a certificate of its own, so that it can also answer itself.

mod answers;
mod relay;
pub(crate) mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

pub use self::answers::Canned;
use self::tls::Identity;

/// Connections at once; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 512;

/// A TLS handshake, on either side, must be complete by then.
const HANDSHAKE_BOUND: Duration = Duration::from_secs(10);

/// How it treats its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Passes everything on.
    Pass,
    /// Closes every connection at once.
    Refuse,
    /// Accepts and never answers; what is open carries no more bytes, as when packets are dropped.
    Silent,
    /// Passes everything on, each piece later by this time.
    Slow(Duration),
    /// Passes answers on byte by byte, with this pause before each.
    Trickle(Duration),
    /// Answers every request itself.
    Answer(Canned),
}

/// A running fault proxy. Everything ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    upstream: Upstream,
    ca_pem: String,
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

/// The state of a connection.
struct Shared {
    identity: Identity,
    upstream: SocketAddr,
}

// === impl FaultProxy ===

impl FaultProxy {
    /// Listens on loopback and passes on.
    ///
    /// # Errors
    /// When no port is free, no certificate can be made, or the upstream cannot be used.
    pub async fn start(upstream: Upstream) -> anyhow::Result<Self> {
        let identity = Identity::new(&upstream.ca_pem)?;
        let ca_pem = identity.ca_pem.clone();
        let authority = upstream
            .url
            .strip_prefix("https://")
            .context("the upstream does not speak TLS")?;
        let shared = Arc::new(Shared {
            identity,
            upstream: authority.parse()?,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.context("bind a proxy")?;
        let address = listener.local_addr()?;
        let behaviour = watch::Sender::new(Behaviour::Pass);
        let accepted = Arc::<AtomicU64>::default();
        let task = tokio::spawn(accept(listener, shared, behaviour.subscribe(), accepted.clone()));
        Ok(Self {
            address,
            upstream,
            ca_pem,
            behaviour,
            accepted,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Changes its behaviour. Connections that are open break, save that [`Behaviour::Silent`] keeps them, mute, until it ends.
    pub fn set(&self, behaviour: Behaviour) {
        self.behaviour
            .send_if_modified(|old| std::mem::replace(old, behaviour.clone()) != behaviour);
    }

    /// Breaks the connections that are open now.
    pub fn cut_connections(&self) {
        self.behaviour.send_modify(|_| ());
    }

    /// How many connections were ever accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// A kubeconfig of the API server behind it, made to lead here.
    #[must_use]
    pub fn kubeconfig(&self, direct: &str) -> String {
        direct
            .replace(&self.upstream.url, &format!("https://{}", self.address))
            .replace(
                &STANDARD.encode(&self.upstream.ca_pem),
                &STANDARD.encode(&self.ca_pem),
            )
    }
}

async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    behaviour: watch::Receiver<Behaviour>,
    accepted: Arc<AtomicU64>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            incoming = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                if let Ok((stream, _)) = incoming {
                    accepted.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(connection(stream, shared.clone(), behaviour.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Lives until one side ends it or the behaviour changes.
async fn connection(stream: TcpStream, shared: Arc<Shared>, mut behaviours: watch::Receiver<Behaviour>) {
    let behaviour = behaviours.borrow_and_update().clone();
    let mut served = std::pin::pin!(serve(stream, &shared, behaviour));
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

async fn serve(stream: TcpStream, shared: &Shared, behaviour: Behaviour) {
    // Small pieces must not wait for an acknowledgement; without it a test is slower, no more.
    let _ = stream.set_nodelay(true);
    let pace = match behaviour {
        Behaviour::Refuse => return,
        Behaviour::Silent => {
            let _stream = stream;
            return std::future::pending().await;
        }
        Behaviour::Answer(canned) => {
            if let Some(client) = shared.identity.accept(stream).await {
                answers::serve(client, canned).await;
            }
            return;
        }
        Behaviour::Pass => relay::Pace::Fast,
        Behaviour::Slow(pause) => relay::Pace::Later(pause),
        Behaviour::Trickle(pause) => relay::Pace::ByteByByte(pause),
    };
    if let Some(client) = shared.identity.accept(stream).await {
        relay::run(client, shared, pace).await;
    }
}

#[cfg(test)]
mod tests;
