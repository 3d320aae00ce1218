//! One API server: a listener with TLS on loopback, and the handle that steers it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, watch as signal},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::{self, State},
    audit::{AuditEntry, AuditLog},
    auth::{Credentials, Policy, Rule},
    error::SandboxError,
    faults::{Fault, FaultId, Faults},
    io::{Gate, Wire, WireCounters},
    kubeconfig::{self, Proof},
    resource::{self, ResourceKey, ResourceType, keys},
    store::{Store, WriteOptions},
    tls::Pki,
};

/// Connections served at once per API server; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 4096;

/// A TLS handshake or an HTTP/1 request head must be complete by then.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long [`ApiServer::stop`] waits for its tasks, which end at their next poll.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Concurrent requests per HTTP/2 connection, as Go's server allows.
const MAX_STREAMS: u32 = 250;

/// How an API server behaves.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// What it is called in certificates, kubeconfigs and logs.
    pub name: String,
    /// Changes kept per resource for watches and paging.
    pub watch_log: usize,
    /// Requests kept in the audit log.
    pub audit_log: usize,
    /// How often an idle watch gets a bookmark (about a minute on the real server).
    pub bookmark_interval: Duration,
    /// Whether `sendInitialEvents` is understood; servers before 1.27 ignore it.
    pub streaming_lists: bool,
    /// Whether discovery.k8s.io/v1 is served; without it there are only Endpoints.
    pub endpoint_slices: bool,
    /// Namespaces to begin with, besides the four that every cluster has.
    pub namespaces: Vec<String>,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            name: "sandbox".into(),
            watch_log: 8192,
            audit_log: 16384,
            bookmark_interval: Duration::from_secs(10),
            streaming_lists: true,
            endpoint_slices: true,
            namespaces: Vec::new(),
        }
    }
}

/// What an API server has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// TCP connections accepted.
    pub connections: u64,
    /// Requests received.
    pub requests: u64,
    /// Bytes received, TLS included.
    pub bytes_received: u64,
    /// Bytes sent, TLS included.
    pub bytes_sent: u64,
    /// Watches being served now.
    pub open_watches: usize,
}

/// Handle of an API server. Clones share it; it stops when the last one is dropped.
#[derive(Debug, Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
    _stop: Arc<StopOnDrop>,
}

#[derive(Debug)]
struct Shared {
    state: Arc<State>,
    pki: Pki,
    address: SocketAddr,
    /// Bound but not listening: keeps the port ours while the server is stopped.
    _reservation: TcpSocket,
    gate: Arc<Gate>,
    counters: Arc<WireCounters>,
    connections: Arc<Semaphore>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    /// Ends the listener and, through its children, every connection.
    all: CancellationToken,
    /// Ends the connections that are open now.
    current: Arc<Mutex<CancellationToken>>,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct StopOnDrop(std::sync::Weak<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(running) = self.0.upgrade().and_then(|shared| shared.running.lock().take()) {
            running.all.cancel();
        }
    }
}

impl ApiServer {
    /// Starts an API server on a free loopback port.
    ///
    /// # Errors
    /// When no port can be bound or no certificate be made.
    pub async fn start(options: ApiOptions) -> Result<Self, SandboxError> {
        let reservation = TcpSocket::new_v4()?;
        reservation.set_reuseaddr(true)?;
        reservation.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = reservation.local_addr()?;

        let served = resource::builtin()
            .into_iter()
            .filter(|res| options.endpoint_slices || res.key() != keys::ENDPOINT_SLICES);
        let store = Arc::new(Store::new(served, options.watch_log));
        let standard = ["default", "kube-node-lease", "kube-public", "kube-system"];
        for name in standard
            .into_iter()
            .chain(options.namespaces.iter().map(String::as_str))
        {
            let namespace = json!({ "metadata": { "name": name } });
            store.create(&keys::NAMESPACES, "", namespace, &WriteOptions::default())?;
        }
        let shared = Arc::new(Shared {
            state: Arc::new(State {
                store,
                credentials: Credentials::default(),
                policy: Policy::default(),
                faults: Faults::default(),
                audit: AuditLog::new(options.audit_log),
                drop_watches: signal::Sender::new(0),
                open_watches: Arc::new(AtomicUsize::new(0)),
                gone_as_status: AtomicBool::new(false),
                options: options.clone(),
            }),
            pki: Pki::new(&options.name)?,
            address,
            _reservation: reservation,
            gate: Arc::default(),
            counters: Arc::default(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            running: Mutex::new(None),
        });
        let server = Self {
            _stop: Arc::new(StopOnDrop(Arc::downgrade(&shared))),
            shared,
        };
        server.resume().await?;
        Ok(server)
    }

    /// Listens again after [`stop`](Self::stop), on the same port, with the same objects. Does nothing while
    /// the server runs.
    ///
    /// # Errors
    /// When the port cannot be bound.
    pub async fn resume(&self) -> Result<(), SandboxError> {
        let mut running = self.shared.running.lock();
        if running.is_some() {
            return Ok(());
        }
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(self.shared.address)?;
        let listener = socket.listen(1024)?;
        let all = CancellationToken::new();
        let current = Arc::new(Mutex::new(all.child_token()));
        let tasks = TaskTracker::new();
        let accept = accept(
            self.shared.clone(),
            listener,
            all.clone(),
            current.clone(),
            tasks.clone(),
        );
        tasks.spawn(accept);
        *running = Some(Running { all, current, tasks });
        Ok(())
    }

    /// Closes the listener and cuts every connection; the objects stay. New connections are refused.
    ///
    /// # Errors
    /// When the tasks do not end in time.
    pub async fn stop(&self) -> Result<(), SandboxError> {
        let Some(running) = self.shared.running.lock().take() else {
            return Ok(());
        };
        running.all.cancel();
        running.tasks.close();
        tokio::time::timeout(STOP_TIMEOUT, running.tasks.wait())
            .await
            .map_err(|_| SandboxError::Timeout("connections did not end"))
    }

    /// Whether the server listens.
    pub fn is_running(&self) -> bool {
        self.shared.running.lock().is_some()
    }

    /// Whether clients get through: the server listens and is not frozen.
    pub fn is_reachable(&self) -> bool {
        self.is_running() && !self.shared.gate.is_shut()
    }

    /// Cuts the connections that are open now; new ones are welcome.
    pub fn cut_connections(&self) {
        if let Some(running) = self.shared.running.lock().as_ref() {
            let mut current = running.current.lock();
            std::mem::replace(&mut *current, running.all.child_token()).cancel();
        }
    }

    /// Goes silent as a black-holed network does: connections are accepted by the kernel, nothing is answered,
    /// open ones carry no more bytes.
    pub fn freeze(&self) {
        self.shared.gate.shut();
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.shared.gate.open();
    }

    /// Loopback address with the port chosen at start.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// `https://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("https://{}", self.shared.address)
    }

    /// PEM of the CA that signed the server certificate.
    pub fn ca_pem(&self) -> &str {
        self.shared.pki.ca_pem()
    }

    /// The objects, for reading and writing without HTTP.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.state.store
    }

    /// A kubeconfig (YAML) with the bearer token of `user`, who is made known if need be.
    pub fn kubeconfig(&self, user: &str) -> String {
        let token = self.token(user);
        kubeconfig::render(
            &self.url(),
            self.ca_pem(),
            &self.name(),
            user,
            &Proof::Token(&token),
        )
    }

    /// A kubeconfig (YAML) with a new client certificate for `user`.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub fn kubeconfig_with_certificate(&self, user: &str) -> Result<String, SandboxError> {
        let identity = self.shared.pki.client(user)?;
        self.shared.state.credentials.trust(identity.der, user);
        let proof = Proof::Certificate {
            certificate: &identity.certificate_pem,
            key: &identity.key_pem,
        };
        Ok(kubeconfig::render(
            &self.url(),
            self.ca_pem(),
            &self.name(),
            user,
            &proof,
        ))
    }

    /// The bearer token of `user`, who is made known if need be.
    pub fn token(&self, user: &str) -> String {
        self.shared.state.credentials.token(user)
    }

    /// Makes the credentials of `user` invalid; the next [`kubeconfig`](Self::kubeconfig) carries new ones.
    pub fn revoke(&self, user: &str) {
        self.shared.state.credentials.revoke(user);
    }

    /// Serves one more resource.
    pub fn register(&self, res: ResourceType) {
        self.store().register(res);
    }

    /// Stops serving a resource, as if its CustomResourceDefinition were deleted.
    pub fn unregister(&self, key: &ResourceKey) {
        self.store().unregister(key);
    }

    /// Forbids what `rule` matches; access reviews say so too.
    pub fn deny(&self, rule: Rule) {
        self.shared.state.policy.deny(rule);
    }

    /// Forbids `user` everything but what `rules` match, as RBAC does.
    pub fn restrict(&self, user: &str, rules: Vec<Rule>) {
        self.shared.state.policy.restrict(user, rules);
    }

    /// Forgets all rules: everything is allowed.
    pub fn allow_all(&self) {
        self.shared.state.policy.allow_all();
    }

    /// Injects a fault.
    pub fn inject(&self, fault: Fault) -> FaultId {
        self.shared.state.faults.inject(fault)
    }

    /// Ends a fault; false if it has ended already.
    pub fn clear_fault(&self, id: FaultId) -> bool {
        self.shared.state.faults.clear(id)
    }

    /// Ends all faults of [`inject`](Self::inject).
    pub fn clear_faults(&self) {
        self.shared.state.faults.clear_all();
    }

    /// The active faults.
    pub fn faults(&self) -> Vec<(FaultId, Fault)> {
        self.shared.state.faults.list()
    }

    /// Ends every running watch without an error, as a server does at its timeout.
    pub fn drop_watches(&self) {
        self.shared.state.drop_watches.send_modify(|count| *count += 1);
    }

    /// Forgets all history: watches that resume and lists that continue get 410.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// Whether a watch from a forgotten version is refused with HTTP 410 rather than, as the real watch cache
    /// does, with an ERROR event in the stream.
    pub fn set_gone_as_status(&self, on: bool) {
        self.shared.state.gone_as_status.store(on, Ordering::SeqCst);
    }

    /// The newest requests, oldest first.
    pub fn audit(&self) -> Vec<AuditEntry> {
        self.audit_since(0)
    }

    /// The requests kept after number `id`, oldest first.
    pub fn audit_since(&self, id: u64) -> Vec<AuditEntry> {
        self.shared.state.audit.since(id)
    }

    /// What the server has seen so far.
    pub fn counters(&self) -> Counters {
        let wire = &self.shared.counters;
        Counters {
            connections: wire.accepted.load(Ordering::Relaxed),
            requests: self.shared.state.audit.total(),
            bytes_received: wire.received.load(Ordering::Relaxed),
            bytes_sent: wire.sent.load(Ordering::Relaxed),
            open_watches: self.shared.state.watches(),
        }
    }

    /// What the server is called.
    pub fn name(&self) -> String {
        self.shared.state.options.name.clone()
    }

    /// Creates an object as an administrator would, without HTTP.
    ///
    /// # Errors
    /// Those of [`Store::create`].
    pub fn create(&self, resource: &ResourceKey, namespace: &str, value: Value) -> Result<(), SandboxError> {
        self.store()
            .create(resource, namespace, value, &WriteOptions::default())?;
        Ok(())
    }
}

async fn accept(
    shared: Arc<Shared>,
    listener: TcpListener,
    all: CancellationToken,
    current: Arc<Mutex<CancellationToken>>,
    tasks: TaskTracker,
) {
    let acceptor = TlsAcceptor::from(shared.pki.server());
    loop {
        let next = async {
            // Nobody closes the semaphore, so a permit always comes.
            let permit = shared.connections.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = all.cancelled() => return,
            next = next => next,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: give the others time to close some.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        shared.counters.accepted.fetch_add(1, Ordering::Relaxed);
        let cut = current.lock().clone();
        let connection = connection(shared.clone(), acceptor.clone(), stream);
        tasks.spawn(async move {
            tokio::select! {
                () = cut.cancelled() => {}
                () = connection => {}
            }
            drop(permit);
        });
    }
}

async fn connection(shared: Arc<Shared>, acceptor: TlsAcceptor, stream: TcpStream) {
    // Without this, small watch events wait for the client's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set_nodelay failed");
    }
    let wire = Wire::new(stream, shared.gate.clone(), shared.counters.clone());
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(wire)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let user = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first)
        .and_then(|certificate| shared.state.credentials.by_certificate(certificate))
        .map(Arc::<str>::from);
    let state = shared.state.clone();
    let service = service_fn(move |request| api::serve(state.clone(), user.clone(), request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}
