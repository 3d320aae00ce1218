//! A TLS proxy before an API server that makes watches half open: they stay open and carry nothing any more, while
//! requests pass.
//!
//! It reads HTTP/1.1, which is all that the services' client speaks: a watch has a connection to itself until it ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::fault_proxy::Upstream;
use crate::fault_proxy::tls::ProxyTls;

/// Connections at once; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 512;

/// Read at once: about the largest TLS record.
const PIECE: usize = 16 * 1024;

/// The chunk that ends a response whose length was not known at its beginning, as that of a watch.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// A running proxy. Everything ends when it is dropped.
#[derive(Debug)]
pub struct WatchProxy {
    address: SocketAddr,
    upstream: Upstream,
    ca_pem: String,
    watches: Arc<Mutex<ProxiedWatches>>,
    _task: AbortOnDropHandle<()>,
}

/// A watch that was silenced.
#[derive(Clone, Debug)]
pub struct SilentWatch {
    /// Path and query of its request.
    pub path: String,
    /// When it carried something last.
    pub last_byte: Instant,
    /// When the client closed its connection; none while it trusts it.
    pub given_up: Option<Instant>,
}

/// By connection.
#[derive(Debug, Default)]
struct ProxiedWatches {
    open: BTreeMap<u64, OpenWatch>,
    silent: BTreeMap<u64, SilentWatch>,
}

/// A watch whose answer has begun and not ended.
#[derive(Debug)]
struct OpenWatch {
    path: String,
    last_byte: Instant,
    silence: CancellationToken,
}

// === impl WatchProxy ===

impl WatchProxy {
    /// Listens on loopback and passes everything on.
    ///
    /// # Errors
    /// When no port is free, no certificate can be made, or the upstream cannot be used.
    pub async fn start(upstream: Upstream) -> anyhow::Result<Self> {
        let identity = ProxyTls::new(&upstream.ca_pem)?;
        let ca_pem = identity.ca_pem.clone();
        let authority = upstream.url.strip_prefix("https://");
        let target = authority.context("the upstream does not speak TLS")?.parse()?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("bind a proxy")?;
        let address = listener.local_addr()?;
        let watches = Arc::<Mutex<ProxiedWatches>>::default();
        let task = tokio::spawn(accept(listener, target, Arc::new(identity), watches.clone()));
        Ok(Self {
            address,
            upstream,
            ca_pem,
            watches,
            _task: AbortOnDropHandle::new(task),
        })
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

    /// Silences the open watches whose path has one of these parts, all at one instant. Returns false, and does
    /// nothing, while there is none for one of the parts: API servers end watches, and they are opened again.
    #[must_use]
    pub fn silence(&self, parts: &[&str]) -> bool {
        let mut watches = self.watches.lock();
        let fits = |part: &&str| watches.open.values().any(|watch| watch.path.contains(part));
        if !parts.iter().all(fits) {
            return false;
        }
        let fits = |path: &str| parts.iter().any(|part| path.contains(part));
        for (id, watch) in watches
            .open
            .extract_if(.., |_, watch| fits(&watch.path))
            .collect::<Vec<_>>()
        {
            watch.silence.cancel();
            let silent = SilentWatch {
                path: watch.path,
                last_byte: watch.last_byte,
                given_up: None,
            };
            watches.silent.insert(id, silent);
        }
        true
    }

    /// The paths of the watches that are open and not silent.
    #[must_use]
    pub fn open(&self) -> Vec<String> {
        let watches = self.watches.lock();
        watches.open.values().map(|watch| watch.path.clone()).collect()
    }

    /// The watches that were silenced.
    #[must_use]
    pub fn silent(&self) -> Vec<SilentWatch> {
        self.watches.lock().silent.values().cloned().collect()
    }
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    identity: Arc<ProxyTls>,
    watches: Arc<Mutex<ProxiedWatches>>,
) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            incoming = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                let Ok((stream, _)) = incoming else { continue };
                let connection = ProxiedConnection {
                    id: NEXT.fetch_add(1, Ordering::Relaxed),
                    watches: watches.clone(),
                };
                let identity = identity.clone();
                connections.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    if let Some(client) = identity.accept(stream).await {
                        connection.run(client, target, &identity).await;
                    }
                    connection.watches.lock().open.remove(&connection.id);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One of the client's connections.
struct ProxiedConnection {
    id: u64,
    watches: Arc<Mutex<ProxiedWatches>>,
}

// === impl ProxiedConnection ===

impl ProxiedConnection {
    /// Passes bytes on until one side ends, or until the watch that it carries is silenced and the client gives it up.
    async fn run(&self, mut client: TlsStream<TcpStream>, target: SocketAddr, identity: &ProxyTls) {
        let Some(mut server) = identity.connect(target, None).await else {
            return;
        };
        let silence = CancellationToken::new();
        let (mut up, mut down) = (vec![0; PIECE], vec![0; PIECE]);
        // The watch that was asked for last. A request follows the answer to the one before.
        let (mut watch, mut answered) = (None, true);
        loop {
            tokio::select! {
                biased;
                () = silence.cancelled() => return self.until_given_up(client).await,
                read = client.read(&mut up) => {
                    let Some(bytes) = some_bytes(&up, read) else { return };
                    if std::mem::take(&mut answered) {
                        watch = watch_path(bytes);
                    }
                    if !pass(&mut server, bytes).await {
                        return;
                    }
                }
                read = server.read(&mut down) => {
                    let Some(bytes) = some_bytes(&down, read) else { return };
                    answered = true;
                    if let Some(path) = &watch
                        && !self.note(path, bytes, &silence)
                    {
                        // Silenced while these were on their way.
                        continue;
                    }
                    if !pass(&mut client, bytes).await {
                        return;
                    }
                }
            }
        }
    }

    /// Takes down what a watch carries. Returns false when it is silenced.
    fn note(&self, path: &str, bytes: &[u8], silence: &CancellationToken) -> bool {
        let mut watches = self.watches.lock();
        if silence.is_cancelled() {
            return false;
        }
        if bytes.ends_with(LAST_CHUNK) {
            watches.open.remove(&self.id);
        } else {
            let watch = OpenWatch {
                path: path.to_owned(),
                last_byte: Instant::now(),
                silence: silence.clone(),
            };
            watches.open.insert(self.id, watch);
        }
        true
    }

    async fn until_given_up(&self, mut client: TlsStream<TcpStream>) {
        let mut swallowed = vec![0; PIECE];
        while matches!(client.read(&mut swallowed).await, Ok(1..)) {}
        if let Some(watch) = self.watches.lock().silent.get_mut(&self.id) {
            watch.given_up = Some(Instant::now());
        }
    }
}

fn some_bytes(buffer: &[u8], read: std::io::Result<usize>) -> Option<&[u8]> {
    let bytes = buffer.get(..read.ok()?)?;
    (!bytes.is_empty()).then_some(bytes)
}

async fn pass(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> bool {
    to.write_all(bytes).await.is_ok() && to.flush().await.is_ok()
}

/// The path with which a request begins, if it asks for a watch.
fn watch_path(request: &[u8]) -> Option<String> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let path = std::str::from_utf8(line).ok()?.split(' ').nth(1)?;
    path.contains("watch=true").then(|| path.to_owned())
}

impl SilentWatch {
    /// How long the client trusted a connection that carried nothing; none while it does.
    #[must_use]
    pub fn trusted_for(&self) -> Option<Duration> {
        Some(self.given_up?.duration_since(self.last_byte))
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, TryStreamExt};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{PostParams, WatchParams};
    use watchdog_sandbox::{ApiOptions, ApiServer};

    use super::*;
    use crate::sandboxed;
    use crate::wait::{self, BOUND};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_watch_falls_silent_while_requests_pass() {
        let options = ApiOptions {
            namespaces: vec!["garden".to_owned()],
            ..ApiOptions::default()
        };
        let server = ApiServer::start(options).await.unwrap();
        let upstream = Upstream {
            url: server.url(),
            ca_pem: server.ca_pem().to_owned(),
        };
        let proxy = WatchProxy::start(upstream).await.unwrap();
        let client = sandboxed::client(&proxy.kubeconfig(&server.kubeconfig("somebody")))
            .await
            .unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client, "garden");
        let create = async |name: &str| {
            let map = serde_json::json!({"metadata": {"name": name}});
            let map = serde_json::from_value(map).unwrap();
            maps.create(&PostParams::default(), &map).await.unwrap();
        };
        let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        create("one").await;
        assert!(events.try_next().await.unwrap().is_some());
        assert!(
            !proxy.silence(&["configmaps", "secrets"]),
            "there is no watch of Secrets"
        );
        assert!(proxy.silence(&["/namespaces/garden/configmaps?"]));
        create("two").await;
        assert_eq!(maps.list(&Default::default()).await.unwrap().items.len(), 2);
        let late = tokio::time::timeout(Duration::from_millis(300), events.next()).await;
        assert!(late.is_err(), "{late:?}");
        assert_eq!((proxy.open().len(), proxy.silent()[0].trusted_for()), (0, None));
        drop(events);
        wait::until_true("it is seen to be given up", BOUND, || async {
            Ok(proxy.silent()[0].given_up.is_some())
        })
        .await
        .unwrap();
    }
}
