//! Keeps the Clusters and kubeconfigs of all shoots, and runs probers for the shoots of which this
//! replica is a witness.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use watchdog_api::cluster::Cluster;
use watchdog_api::eligibility::{ShootSettings, SkipReason, may_continue, may_start};
use watchdog_api::prober::ProberConfig;
use watchdog_api::secret::KubeconfigSecret;
use watchdog_kube::watch::Change;
use watchdog_runtime::publish::publish_if_changed;
use watchdog_watch_stream::server::StreamStore;

use super::probe_context::{ProbeContext, ProbeInputs};
use super::prober::Prober;
use super::supervisor::supervise;
use crate::cluster::http::HttpConnector;
use crate::cluster::kubeconfig::{self, Access};
use crate::domain::endpoint::Endpoint;
use crate::domain::outcome::{Outcome, ProbeFailure};
use crate::domain::verdict::{Verdict, VerdictBuilder};
use crate::domain::witnesses::LiveMembers;

/// Verdicts by shoot.
pub type VerdictStore = StreamStore<String, Verdict>;

/// Combines the events of the watches and runs a prober for every eligible shoot.
pub struct ProberManager {
    pub(crate) shared: Arc<ProbeContext>,
    /// The verdicts of this replica.
    pub verdicts: VerdictStore,
    pub(crate) members: watch::Receiver<LiveMembers>,
    rules: watch::Receiver<Arc<ProberConfig>>,
    connector: HttpConnector,
    inner: Mutex<ManagerState>,
}

#[derive(Default)]
struct ManagerState {
    clusters: HashMap<String, Cluster>,
    kubeconfigs: HashMap<(Endpoint, String), Access>,
    // Until then a missing kubeconfig for an internal endpoint may still come. One for an external endpoint is not
    // waited for: without it, nothing follows about that endpoint.
    kubeconfigs_listed: bool,
    // Until then a missing Cluster may still come.
    clusters_listed: bool,
    probes: HashMap<String, RunningProber>,
}

struct RunningProber {
    // Closed when it is removed: both happen within the lock.
    inputs: watch::Sender<ProbeInputs>,
    _task: AbortOnDropHandle<()>,
}

impl ProberManager {
    /// Without any shoots.
    #[must_use]
    pub fn new(
        shared: Arc<ProbeContext>,
        rules: watch::Receiver<Arc<ProberConfig>>,
        members: watch::Receiver<LiveMembers>,
        connector: HttpConnector,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared,
            verdicts: StreamStore::new(),
            members,
            rules,
            connector,
            inner: Mutex::default(),
        })
    }

    /// Follows changes of the configuration and of the live members until `stop` is cancelled; then stops all
    /// probers.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let (mut rules, mut members) = (self.rules.clone(), self.members.clone());
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.stop(),
                Ok(()) = rules.changed() => {}
                Ok(()) = members.changed() => {}
            }
            self.reconcile_all(&mut self.inner.lock());
        }
    }

    /// Stops all probes.
    pub fn stop(&self) {
        self.inner.lock().probes.clear();
    }

    /// Returns true if the Clusters have been listed and none has this name.
    #[must_use]
    pub fn is_unknown(&self, shoot: &str) -> bool {
        let inner = self.inner.lock();
        inner.clusters_listed && !inner.clusters.contains_key(shoot)
    }

    /// Returns true if the members are known, the Clusters have been listed, and `has` holds for every shoot of which
    /// this replica is a witness.
    #[must_use]
    pub fn all_witnessed(&self, has: &dyn Fn(&String) -> bool) -> bool {
        let inner = self.inner.lock();
        let mut witnessed = inner.clusters.keys().filter(|shoot| self.is_witness(shoot));
        !self.members.borrow().is_empty() && inner.clusters_listed && witnessed.all(has)
    }

    fn is_witness(&self, shoot: &str) -> bool {
        self.members.borrow().is_witness(&self.shared.identity, shoot)
    }

    /// Number of shoots that are probed.
    #[must_use]
    pub fn active(&self) -> usize {
        self.inner.lock().probes.len()
    }

    fn reconcile_all(self: &Arc<Self>, inner: &mut ManagerState) {
        let shoots: Vec<String> = inner.clusters.keys().cloned().collect();
        for shoot in shoots {
            self.reconcile(inner, &shoot);
        }
    }

    /// Starts, changes or stops the probe of a shoot, whichever is right.
    fn reconcile(self: &Arc<Self>, inner: &mut ManagerState, shoot: &str) {
        let Some(cluster) = inner.clusters.get(shoot).filter(|_| self.is_witness(shoot)) else {
            inner.stop(shoot, "the shoot was deleted or has other witnesses");
            self.verdicts.remove(&shoot.to_owned());
            return;
        };
        // A running probe stops by the stop rules only.
        let settings = match inner.probes.contains_key(shoot) {
            true => may_continue(cluster),
            false => may_start(cluster),
        };
        let config = self.rules.borrow().clone();
        match settings {
            Err(reason) => {
                // A Cluster that cannot be read says nothing about the nodes, so what its prober knows must stay.
                if !matches!(reason, SkipReason::Malformed(_)) {
                    inner.stop(shoot, reason.as_str());
                }
                let now = self.shared.now();
                let mut verdicts = VerdictBuilder::new(self.shared.identity.clone(), now);
                let message = reason.to_string();
                let verdict = verdicts.report(Outcome::Skipped(reason), message, None, now);
                let same =
                    |old: &Verdict, new: &Verdict| old.outcome == new.outcome && old.message == new.message;
                self.verdicts.upsert_unless(shoot.to_owned(), verdict, same);
            }
            // Which kubeconfigs there are is not known yet. Nothing that stops a probe waits for that.
            Ok(_) if !inner.kubeconfigs_listed => {}
            Ok(settings) => {
                let is_rolled_out = cluster.shoot.as_ref().is_ok_and(|shoot| shoot.is_rolled_out);
                let running = inner.probes.get(shoot);
                let settings = match running {
                    Some(running) => settings.following(
                        &running.inputs.borrow().settings,
                        is_rolled_out,
                        config.kcm_node_monitor_grace_duration,
                    ),
                    None => settings,
                };
                let inputs = inner.inputs(shoot, settings, config);
                match running {
                    Some(running) => {
                        publish_if_changed(&running.inputs, &inputs);
                    }
                    None => self.start(inner, shoot, inputs),
                }
            }
        }
    }

    fn start(self: &Arc<Self>, inner: &mut ManagerState, shoot: &str, inputs: ProbeInputs) {
        let (sender, receiver) = watch::channel(inputs);
        let name: Arc<str> = shoot.into();
        // Of the highest level, so that no filter takes the shoot from the lines of its prober.
        let span = tracing::error_span!("prober", shoot);
        tracing::info!(parent: &span, "prober started");
        let (manager, shoots) = (self.clone(), inner.clusters.len());
        let probe = move || {
            let (reporter, of, inputs) = (manager.clone(), name.clone(), receiver.clone());
            let report = move |verdict| reporter.report(&of, &inputs, verdict);
            let (shared, inputs) = (manager.shared.clone(), receiver.clone());
            let prober = Prober::new(shared, inputs, report, name.clone(), [manager.connector; 2]);
            prober.run(shoots)
        };
        let running = RunningProber {
            inputs: sender,
            _task: AbortOnDropHandle::new(tokio::spawn(supervise(probe).instrument(span))),
        };
        inner.probes.insert(shoot.to_owned(), running);
    }

    /// Takes over the verdict of a prober unless that was stopped or its Cluster cannot be read.
    fn report(&self, shoot: &str, inputs: &watch::Receiver<ProbeInputs>, verdict: Verdict) {
        // Within the lock, so that nothing is reported after it was stopped.
        let inner = self.inner.lock();
        let is_eligible = { inner.clusters.get(shoot) }.is_some_and(|cluster| may_continue(cluster).is_ok());
        if is_eligible && !inputs.is_closed() {
            self.verdicts.upsert(shoot.to_owned(), verdict);
        }
    }
}

/// The changes that the watches bring. Each reconciles the shoots that it may concern.
impl ProberManager {
    /// Takes over a change of the Clusters.
    pub fn cluster_changed(self: &Arc<Self>, change: &Change<Cluster>) {
        let mut inner = self.inner.lock();
        match change {
            Change::ListBegins | Change::Restored => {}
            Change::Applied(cluster) => {
                let shoot = cluster.name();
                if let Err(SkipReason::Malformed(reason)) = may_start(cluster) {
                    tracing::warn!(shoot, %reason, "the Cluster cannot be used; the shoot is skipped");
                }
                let before = inner.clusters.insert(shoot.to_owned(), cluster.clone());
                // A watch that begins anew with a list hides that the one before of the same name was deleted.
                if before.is_some_and(|before| before.metadata.uid != cluster.metadata.uid) {
                    inner.stop(shoot, "the shoot was created again");
                }
                self.reconcile(&mut inner, shoot);
            }
            Change::Deleted(cluster) => {
                inner.clusters.remove(cluster.name());
                self.reconcile(&mut inner, cluster.name());
            }
            Change::Synced(exist) => {
                inner.clusters_listed = true;
                let exist: BTreeSet<&str> = exist.iter().map(|key| &*key.name).collect();
                let gone = inner.clusters.extract_if(|shoot, _| !exist.contains(&**shoot));
                for (shoot, _) in gone.collect::<Vec<_>>() {
                    self.reconcile(&mut inner, &shoot);
                }
            }
        }
    }

    /// Takes over a change of the Secrets with the kubeconfigs for one kind of endpoint.
    pub fn kubeconfig_changed(self: &Arc<Self>, endpoint: Endpoint, change: Change<KubeconfigSecret>) {
        let namespace = |secret: &KubeconfigSecret| secret.metadata.namespace.clone().unwrap_or_default();
        match change {
            Change::ListBegins => {}
            Change::Applied(secret) => {
                let namespace = namespace(&secret);
                let access = kubeconfig::access(secret.kubeconfig());
                if let Err(failure) = &access {
                    tracing::warn!(shoot = namespace, error = %failure, "the kubeconfig of a shoot cannot be used");
                }
                let mut inner = self.inner.lock();
                inner.kubeconfigs.insert((endpoint, namespace.clone()), access);
                self.reconcile(&mut inner, &namespace);
            }
            Change::Deleted(secret) => {
                let key = (endpoint, namespace(&secret));
                let mut inner = self.inner.lock();
                inner.kubeconfigs.remove(&key);
                self.reconcile(&mut inner, &key.1);
            }
            Change::Synced(exist) => {
                let exist: BTreeSet<String> = exist.into_iter().map(|key| key.namespace).collect();
                let mut inner = self.inner.lock();
                inner
                    .kubeconfigs
                    .retain(|(of, namespace), _| *of != endpoint || exist.contains(namespace));
                inner.kubeconfigs_listed |= endpoint == Endpoint::Internal;
                self.reconcile_all(&mut inner);
            }
            // Running probes keep what they have until the list that follows is complete.
            Change::Restored => {
                let mut inner = self.inner.lock();
                inner.kubeconfigs.retain(|(of, _), _| *of != endpoint);
                inner.kubeconfigs_listed &= endpoint != Endpoint::Internal;
            }
        }
    }
}

impl ManagerState {
    fn stop(&mut self, shoot: &str, why: &str) {
        if self.probes.remove(shoot).is_some() {
            tracing::info!(shoot, reason = why, "prober stopped");
        }
    }

    fn inputs(&self, shoot: &str, settings: ShootSettings, config: Arc<ProberConfig>) -> ProbeInputs {
        let access = |endpoint, secret: &str| match self.kubeconfigs.get(&(endpoint, shoot.to_owned())) {
            Some(access) => access.clone(),
            None => Err(ProbeFailure::Kubeconfig(format!(
                "the Secret {secret} does not exist in namespace {shoot}"
            ))),
        };
        let external = config.external_kube_config_secret_name.as_deref();
        ProbeInputs {
            settings: Arc::new(settings),
            internal: access(Endpoint::Internal, &config.kube_config_secret_name),
            external: external.map(|secret| access(Endpoint::External, secret)),
            config,
        }
    }
}
