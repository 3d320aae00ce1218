//! A service that runs inside a test against an API server in memory: its files, its life, and what it wrote.

use std::future::{Future, ready};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Builder;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use watchdog_runtime::process::Bound;
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::resource::{ResourceKey, keys};
use watchdog_sandbox::store::{Part, Preconditions, WriteOptions};
use watchdog_sandbox::{ApiOptions, ApiServer, Rule, SandboxError};

use crate::http_exchange;
use crate::separate_runtime::SeparateRuntime;
use crate::wait::{self, BOUND};

/// The configuration file of a service, and the kubeconfigs of its replicas.
#[derive(Debug)]
pub struct ServiceFiles(TempDir);

// === impl ServiceFiles ===

impl ServiceFiles {
    /// Writes the configuration file.
    pub fn new(config: &str) -> anyhow::Result<Self> {
        let files = Self(tempfile::tempdir()?);
        files.configure(config)?;
        Ok(files)
    }

    /// Replaces the configuration file at once, as kubelet does: a service never reads half of it.
    pub fn configure(&self, config: &str) -> anyhow::Result<()> {
        let next = self.0.path().join("next.yaml");
        std::fs::write(&next, config)?;
        Ok(std::fs::rename(next, self.config())?)
    }

    /// Where the configuration file is.
    pub fn config(&self) -> PathBuf {
        self.0.path().join("config.yaml")
    }

    /// Writes the kubeconfig of a user, and says where it is.
    pub fn kubeconfig(&self, seed: &ApiServer, user: &str) -> anyhow::Result<PathBuf> {
        let path = self.0.path().join(format!("{user}.kubeconfig"));
        std::fs::write(&path, seed.kubeconfig(user))?;
        Ok(path)
    }

    /// The command line of a replica that is this user on the seed: any ports, no TLS, and these options.
    pub fn command_line(
        &self,
        seed: &ApiServer,
        user: &str,
        identity: &str,
        options: &[&str],
    ) -> anyhow::Result<Vec<String>> {
        let mut line = vec![
            "service".to_owned(),
            "--insecure-plaintext".to_owned(),
            "--grpc-addr=127.0.0.1:0".to_owned(),
            "--admin-addr=127.0.0.1:0".to_owned(),
            format!("--identity={identity}"),
            format!("--kubeconfig={}", self.kubeconfig(seed, user)?.display()),
            format!("--config-file={}", self.config().display()),
        ];
        line.extend(options.iter().map(ToString::to_string));
        Ok(line)
    }
}

/// A service in a runtime of its own, so that it can be killed at any point. Killed when dropped.
#[derive(Debug)]
pub struct InProcess {
    pub bound: Bound,
    runtime: SeparateRuntime,
}

// === impl InProcess ===

impl InProcess {
    /// Starts the service that `build` builds.
    pub async fn start<F>(build: F) -> anyhow::Result<Self>
    where
        F: Future<Output = anyhow::Result<Bound>> + Send + 'static,
    {
        Self::start_on(Builder::new_multi_thread(), build).await
    }

    /// The same on threads that the test prepares.
    pub async fn start_on<F>(mut threads: Builder, build: F) -> anyhow::Result<Self>
    where
        F: Future<Output = anyhow::Result<Bound>> + Send + 'static,
    {
        threads.worker_threads(2);
        let runtime = SeparateRuntime::start(threads)?;
        let bound = runtime.run(build).await?;
        Ok(Self { bound, runtime })
    }

    /// Waits until the service is ready.
    pub async fn wait_ready(&self) {
        until_ready(&self.bound.readiness, true).await;
    }

    /// The readiness blockers, one line each.
    pub fn blockers(&self) -> Vec<String> {
        let blockers = self.bound.readiness.blockers().into_iter();
        blockers.map(|(name, why)| format!("{name}: {why}")).collect()
    }

    /// A channel to it.
    pub fn channel(&self) -> anyhow::Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.bound.grpc_addr))?;
        Ok(endpoint.timeout(BOUND).connect_lazy())
    }

    /// GET on the admin endpoint: the status code and the body. The exporter belongs to the process, so /metrics has
    /// the part of the collectors.
    pub async fn admin_get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        http_exchange::get(&self.bound.admin_addr.to_string(), path).await
    }

    /// The value of one series of /metrics, by its name with its labels as they stand there.
    pub async fn metric(&self, series: &str) -> anyhow::Result<Option<f64>> {
        http_exchange::metric(&self.bound.admin_addr.to_string(), series).await
    }

    /// Stops it as SIGTERM does, and waits until it has stopped.
    pub async fn stop(&self) {
        assert_eq!(self.bound.tasks.drain(BOUND).await, (vec![], true));
        self.kill();
    }

    /// Stops it as SIGKILL does, whatever it is doing.
    pub fn kill(&self) {
        self.runtime.kill();
    }
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = wait::until_true(what, BOUND, || ready(Ok(condition()))).await;
    assert!(waited.is_ok(), "{waited:?}");
}

/// The same for a condition that must be asked for.
pub async fn eventually_async(what: &str, condition: impl AsyncFn() -> bool) {
    let waited = wait::until_true(what, BOUND, || async { Ok(condition().await) }).await;
    assert!(waited.is_ok(), "{waited:?}");
}

/// Waits until a service is ready, or is not.
pub async fn until_ready(readiness: &Readiness, is_ready: bool) {
    let mut state = readiness.subscribe();
    let waited = timeout(BOUND, state.wait_for(|blockers| blockers.is_empty() == is_ready)).await;
    assert!(waited.is_ok(), "ready is not {is_ready}: {:?}", readiness.lines());
}

/// Makes the Lease of a leader that has stopped; where there is none, a replica waits for 4 s before it leads.
pub fn released_lease(api: &ApiServer, name: &str) -> Result<(), SandboxError> {
    let released = json!({"holderIdentity": "", "leaseDurationSeconds": 1});
    let lease = json!({"metadata": {"name": name}, "spec": released});
    api.create(&keys::LEASES, "garden", lease)?;
    Ok(())
}

/// Starts an API server with these namespaces.
pub async fn api_server(namespaces: &[&str]) -> Result<ApiServer, SandboxError> {
    let options = ApiOptions {
        namespaces: namespaces.iter().map(ToString::to_string).collect(),
        ..ApiOptions::default()
    };
    ApiServer::start(options).await
}

/// Changes an object, its status too.
pub fn modify(
    api: &ApiServer,
    resource: &ResourceKey,
    namespace: &str,
    name: &str,
    change: impl FnOnce(&mut Value),
) -> Result<(), SandboxError> {
    let change = |value: &mut Value| {
        change(value);
        Ok(())
    };
    let options = WriteOptions::default();
    api.store()
        .modify(resource, namespace, name, Part::All, &options, change)?;
    Ok(())
}

/// Deletes an object as an administrator would, without HTTP.
pub fn delete(
    api: &ApiServer,
    resource: &ResourceKey,
    namespace: &str,
    name: &str,
) -> Result<(), SandboxError> {
    api.store()
        .delete(resource, namespace, name, &Preconditions::default())?;
    Ok(())
}

/// These verbs on these resources, of any group and in all namespaces.
pub fn rule(verbs: &[&str], resources: &[&str]) -> Rule {
    let strings = |all: &[&str]| all.iter().map(ToString::to_string).collect();
    Rule {
        verbs: strings(verbs),
        resources: strings(resources),
        ..Rule::default()
    }
}

/// The log or the standard output of a service.
#[derive(Clone, Debug, Default)]
pub struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

// === impl CapturedOutput ===

impl CapturedOutput {
    /// All of it so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Everything that a user has written, except its membership Leases and its questions about permissions.
pub fn writes(api: &ApiServer, user: &str) -> Vec<String> {
    let entries = api.audit().into_iter();
    entries
        .filter(|entry| entry.user == user && entry.is_write())
        .filter(|entry| !entry.path.contains("/leases") && !entry.path.contains("/selfsubjectaccessreviews"))
        .map(|entry| format!("{} {}", entry.verb, entry.path))
        .collect()
}
