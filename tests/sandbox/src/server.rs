//! One API server: a listener with TLS on loopback, and the handle that steers it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Response, request::Parts};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::{
    api::{self, ApiState, ResponseBody},
    audit::{AuditEntry, AuditLog},
    auth::{AcceptedCredentials, Policy, Rule, Rules},
    error::SandboxError,
    faults::{Fault, FaultId, Faults},
    kubeconfig,
    listener::Listener,
    resource::{self, ResourceKey, ResourceType, keys},
    store::{Backup, Store, WriteOptions},
    tls::ServerPki,
};

/// How an API server behaves.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// Its name in certificates, kubeconfigs and logs.
    pub name: String,
    /// Changes kept per resource for watches and paging.
    pub watch_log: usize,
    /// Requests kept in the audit log.
    pub audit_log: usize,
    /// How often an idle watch gets a bookmark (about a minute on the real server).
    pub bookmark_interval: Duration,
    /// True if discovery.k8s.io/v1 is served; without it there are only Endpoints.
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
            endpoint_slices: true,
            namespaces: Vec::new(),
        }
    }
}

/// The requests that an API server has received so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// TCP connections accepted.
    pub connections: u64,
    /// Requests received.
    pub requests: u64,
    /// Watches being served now.
    pub open_watches: usize,
}

/// Handle of an API server. Clones share it; it stops when the last one is dropped.
#[derive(Debug, Clone)]
pub struct ApiServer {
    shared: Arc<ServerState>,
}

#[derive(Debug)]
struct ServerState {
    state: Arc<ApiState>,
    pki: ServerPki,
    address: SocketAddr,
    /// Bound but not listening: keeps the port ours while the server is stopped.
    _reservation: TcpSocket,
    running: Mutex<Option<Listener>>,
}

impl ApiServer {
    /// Starts an API server on loopback.
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
            .filter(|res| options.endpoint_slices || res.key != keys::ENDPOINT_SLICES);
        let store = Arc::new(Store::new(served, options.watch_log));
        let standard = ["default", "kube-node-lease", "kube-public", "kube-system"];
        for name in standard
            .into_iter()
            .chain(options.namespaces.iter().map(String::as_str))
        {
            let namespace = json!({ "metadata": { "name": name } });
            store.create(&keys::NAMESPACES, "", namespace, &WriteOptions::default())?;
        }
        let state = Arc::new(ApiState {
            store,
            credentials: AcceptedCredentials::default(),
            policy: Policy::default(),
            faults: Faults::default(),
            audit: AuditLog::new(options.audit_log),
            watches: Default::default(),
            gone_as_status: Default::default(),
            path_prefix: Mutex::default(),
            gate: Arc::default(),
            counters: Arc::default(),
            options: options.clone(),
        });
        let pki = ServerPki::new(&options.name)?;
        let server = Self {
            shared: Arc::new(ServerState {
                state,
                pki,
                address,
                _reservation: reservation,
                running: Mutex::new(None),
            }),
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
        let shared = &self.shared;
        *running = Some(Listener::start(
            shared.state.clone(),
            shared.pki.server.clone(),
            listener,
        ));
        Ok(())
    }

    /// Closes the listener and cuts every connection; the objects stay. New connections are refused.
    ///
    /// # Errors
    /// When the tasks do not end in time.
    pub async fn stop(&self) -> Result<(), SandboxError> {
        let running = self.shared.running.lock().take();
        match running {
            Some(listener) => listener.stop().await,
            None => Ok(()),
        }
    }

    /// True if clients get through: the server listens and is not frozen.
    pub fn is_reachable(&self) -> bool {
        self.shared.running.lock().is_some() && !self.shared.state.gate.is_shut()
    }

    /// Cuts the connections that are open now; new ones are welcome.
    pub fn cut_connections(&self) {
        if let Some(listener) = self.shared.running.lock().as_ref() {
            listener.cut();
        }
    }

    /// Goes silent as a black-holed network does: connections are accepted by the kernel, nothing is answered,
    /// open ones carry no more bytes.
    pub fn freeze(&self) {
        self.shared.state.gate.shut();
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.shared.state.gate.open();
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
        &self.shared.pki.ca_pem
    }

    fn state(&self) -> &ApiState {
        &self.shared.state
    }

    /// The objects, for reading and writing without HTTP.
    pub fn store(&self) -> &Arc<Store> {
        &self.state().store
    }

    /// Answers a part of the cluster itself, without a network: it may do everything, owns no fields, knows no faults
    /// and leaves no trace in the audit log.
    ///
    /// # Errors
    /// When the server is stopped or frozen.
    pub fn answer_component(
        &self,
        parts: &Parts,
        body: &[u8],
    ) -> Result<Response<ResponseBody>, SandboxError> {
        if !self.is_reachable() {
            return Err(SandboxError::Away);
        }
        Ok(api::serve_component(self.state(), parts, body))
    }

    /// A kubeconfig (YAML) with the bearer token of `user`, who is made known if need be.
    pub fn kubeconfig(&self, user: &str) -> String {
        let token = self.token(user);
        self.render(user, &kubeconfig::token(&token))
    }

    /// A kubeconfig (YAML) with a new client certificate for `user`.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub fn kubeconfig_with_certificate(&self, user: &str) -> Result<String, SandboxError> {
        let identity = self.shared.pki.client(user)?;
        self.state().credentials.trust(identity.der, user);
        let credentials = kubeconfig::certificate(&identity.certificate_pem, &identity.key_pem);
        Ok(self.render(user, &credentials))
    }

    fn render(&self, user: &str, credentials: &str) -> String {
        let cluster = &self.state().options.name;
        kubeconfig::render(&self.url(), self.ca_pem(), cluster, user, credentials)
    }

    /// The bearer token of `user`, who is made known if need be.
    pub fn token(&self, user: &str) -> String {
        self.state().credentials.token(user)
    }

    /// Makes the credentials of `user` invalid; the next [`kubeconfig`](Self::kubeconfig) carries new ones.
    pub fn revoke(&self, user: &str) {
        self.state().credentials.revoke(user);
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
        self.state().policy.change(|rules| rules.denied.push(rule));
    }

    /// Forbids `user` everything but what `rules` match, as RBAC does.
    pub fn restrict(&self, user: &str, rules: Vec<Rule>) {
        let user = user.to_owned();
        self.state()
            .policy
            .change(|all| _ = all.granted.insert(user, rules));
    }

    /// Forgets all rules: everything is allowed.
    pub fn allow_all(&self) {
        self.state().policy.change(|rules| *rules = Rules::default());
    }

    /// Injects a fault.
    pub fn inject(&self, fault: Fault) -> FaultId {
        self.state().faults.inject(fault)
    }

    /// Ends a fault; false if it has ended already.
    pub fn clear_fault(&self, id: FaultId) -> bool {
        self.state().faults.clear(id)
    }

    /// Ends all faults of [`inject`](Self::inject).
    pub fn clear_faults(&self) {
        self.state().faults.clear_all();
    }

    /// The active faults.
    pub fn faults(&self) -> Vec<(FaultId, Fault)> {
        self.state().faults.list()
    }

    /// Every running watch stays open and brings nothing any more, as one does whose connection is half open. Requests,
    /// and watches that begin later, work.
    pub fn silence_watches(&self) {
        self.state().watches.silence.send_replace(());
    }

    /// Ends every running watch without an error, as a server does at its timeout.
    pub fn drop_watches(&self) {
        self.state().watches.drop.send_replace(());
    }

    /// Goes back to a [backup](Store::backup) as an API server does whose etcd was restored: every connection breaks,
    /// and watches that are opened again go on from where they were.
    pub fn restore(&self, backup: &Backup) {
        self.store().restore(backup);
        self.cut_connections();
    }

    /// Forgets all history: watches that resume and lists that continue get 410.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// True if a watch from a forgotten version is refused with HTTP 410 rather than, as the real watch cache
    /// does, with an ERROR event in the stream.
    pub fn set_gone_as_status(&self, on: bool) {
        self.state().gone_as_status.store(on, Ordering::SeqCst);
    }

    /// Serves everything under this path, such as `/shoots/one`, and nothing outside of it. Empty: at the root.
    pub fn set_path_prefix(&self, prefix: &str) {
        prefix.clone_into(&mut self.state().path_prefix.lock());
    }

    /// The newest requests, oldest first.
    pub fn audit(&self) -> Vec<AuditEntry> {
        self.audit_since(0)
    }

    /// The requests kept after number `id`, oldest first.
    pub fn audit_since(&self, id: u64) -> Vec<AuditEntry> {
        self.state().audit.since(id)
    }

    /// The requests that the server has received so far.
    pub fn counters(&self) -> Counters {
        Counters {
            connections: self.shared.state.counters.accepted.load(Ordering::Relaxed),
            requests: self.state().audit.total(),
            open_watches: Arc::strong_count(&self.state().watches.open) - 1,
        }
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
