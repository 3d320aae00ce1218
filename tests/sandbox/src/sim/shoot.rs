//! The handle that steers a simulated shoot and answers questions about it.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    engine::{Engine, PROBE_USER},
    objects::{self, PROBE_SECRET},
    spec::{Cut, SimulatedShootSpec},
    timing::SimTiming,
    views::{self, MachineView, NodeView, PodView, WorkloadView},
};
use crate::{error::SandboxError, resource::keys, server::ApiServer, time};

/// Handle of a simulated shoot. Clones share it.
#[derive(Debug, Clone)]
pub struct SimulatedShoot {
    engine: Arc<Engine>,
}

impl SimulatedShoot {
    /// Makes the shoot's API server and all its objects, everything ready, and starts its simulators.
    pub(crate) async fn start(
        seed: &ApiServer,
        spec: SimulatedShootSpec,
        timing: &SimTiming,
        stop: CancellationToken,
    ) -> Result<Self, SandboxError> {
        Ok(Self {
            engine: Engine::start(seed, spec, timing, stop).await?,
        })
    }

    /// Name within the project.
    pub fn name(&self) -> &str {
        &self.engine.spec.name
    }

    /// Namespace on the seed, which is also the name of the Cluster.
    pub fn namespace(&self) -> &str {
        &self.engine.namespace
    }

    /// The shoot's own API server. Stopping or freezing it cuts off its kubelets and controllers too.
    pub fn api(&self) -> &ApiServer {
        &self.engine.api
    }

    /// The timing of the shoot's simulators.
    pub fn timing(&self) -> &SimTiming {
        &self.engine.timing
    }

    // --- steering

    /// Cuts kubelets off from the API server: they renew no Lease and post no status.
    pub fn cut(&self, cut: Cut) {
        self.engine.sim.lock().kubelets.cut(cut);
        self.engine.poke();
    }

    /// Reconnects all kubelets; each gets through at its next renewal.
    pub fn heal(&self) {
        self.engine.sim.lock().kubelets.heal();
        self.engine.poke();
    }

    /// Sets the clock of a node ahead of everyone else's (negative: behind).
    ///
    /// # Errors
    /// When there is no such node.
    pub fn set_clock_skew(&self, node: &str, skew: SignedDuration) -> Result<(), SandboxError> {
        if self.engine.sim.lock().kubelets.set_skew(node, skew) {
            Ok(())
        } else {
            Err(SandboxError::Invalid(format!("no node {node}")))
        }
    }

    /// Makes the pods behind a Service of the control plane (`etcd-main-client`, `kube-apiserver`) unready.
    /// What needs the Service begins to crash.
    pub fn service_down(&self, service: &str) {
        self.engine.sim.lock().workloads.set_out(service, true);
        self.engine.poke();
    }

    /// Lets the pods behind a Service become ready again.
    pub fn service_up(&self, service: &str) {
        self.engine.sim.lock().workloads.set_out(service, false);
        self.engine.poke();
    }

    /// Scales a Deployment as an operator would.
    ///
    /// # Errors
    /// When there is no such Deployment.
    pub fn scale(&self, deployment: &str, replicas: u32) -> Result<(), SandboxError> {
        let namespace = self.namespace();
        self.engine
            .change(&keys::DEPLOYMENTS, namespace, deployment, |value| {
                value["spec"]["replicas"] = replicas.into();
            })
    }

    /// Changes the Cluster object.
    ///
    /// # Errors
    /// When it is gone.
    pub fn update_cluster(&self, change: impl FnOnce(&mut Value)) -> Result<(), SandboxError> {
        self.engine.change(&keys::CLUSTERS, "", self.namespace(), change)
    }

    /// Sets `spec.hibernation.enabled` and, as when that is done, `status.hibernated`. Replica counts are
    /// left alone: what writes to a hibernated shoot is seen in the audit log.
    ///
    /// # Errors
    /// When the Cluster is gone.
    pub fn set_hibernated(&self, on: bool) -> Result<(), SandboxError> {
        self.update_cluster(|cluster| {
            let shoot = &mut cluster["spec"]["shoot"];
            shoot["spec"]["hibernation"] = json!({ "enabled": on });
            shoot["status"]["hibernated"] = on.into();
        })
    }

    /// Sets `status.lastOperation`, for instance `("Migrate", "Processing")`.
    ///
    /// # Errors
    /// When the Cluster is gone.
    pub fn set_last_operation(&self, operation: &str, state: &str) -> Result<(), SandboxError> {
        let now = time::seconds(self.engine.clock.at(Instant::now()));
        self.update_cluster(|cluster| {
            let last = objects::last_operation(operation, state, &now);
            cluster["spec"]["shoot"]["status"]["lastOperation"] = last;
        })
    }

    /// Sets the Shoot's deletionTimestamp, with which its deletion begins.
    ///
    /// # Errors
    /// When the Cluster is gone.
    pub fn mark_deleting(&self) -> Result<(), SandboxError> {
        let now = time::seconds(self.engine.clock.at(Instant::now()));
        self.update_cluster(|cluster| {
            cluster["spec"]["shoot"]["metadata"]["deletionTimestamp"] = now.into();
        })
    }

    /// Makes the probe's token invalid and writes a kubeconfig with a new one into its Secret.
    ///
    /// # Errors
    /// When the Secret is gone.
    pub fn rotate_kubeconfig(&self) -> Result<(), SandboxError> {
        self.engine.api.revoke(PROBE_USER);
        let kubeconfig = STANDARD.encode(self.engine.api.kubeconfig(PROBE_USER));
        let namespace = self.namespace();
        self.engine
            .change(&keys::SECRETS, namespace, PROBE_SECRET, |value| {
                value["data"]["kubeconfig"] = kubeconfig.into();
            })
    }

    /// The kubeconfig that the probe's Secret was made with, or the newest after a rotation.
    pub fn probe_kubeconfig(&self) -> String {
        self.engine.api.kubeconfig(PROBE_USER)
    }

    /// Ends the simulators and the API server and removes the Cluster and the namespace.
    pub(crate) async fn delete(&self) -> Result<(), SandboxError> {
        self.engine.stop.cancel();
        let store = self.engine.seed.store();
        for resource in [&keys::CLUSTERS, &keys::NAMESPACES] {
            store.discard(resource, "", &self.engine.namespace)?;
        }
        self.engine.api.stop().await
    }

    /// Tells the simulators that something changed on the seed.
    pub(crate) fn poke(&self) {
        self.engine.poke();
    }

    // --- asking

    pub fn nodes(&self) -> Vec<NodeView> {
        let store = self.engine.api.store();
        let nodes = store.all(&keys::NODES, None);
        nodes.iter().map(|node| views::node(node, store)).collect()
    }

    /// How often a node was marked Unknown so far.
    pub fn marked_unknown(&self) -> u64 {
        self.engine.sim.lock().lifecycle.marked_unknown
    }

    /// How many machines were replaced so far.
    pub fn machines_replaced(&self) -> u64 {
        self.engine.sim.lock().machines.replaced
    }

    pub fn machines(&self) -> Vec<MachineView> {
        self.engine
            .on_seed(&keys::MACHINES)
            .iter()
            .map(|machine| views::machine(machine))
            .collect()
    }

    /// A Deployment or StatefulSet of the control plane.
    pub fn workload(&self, name: &str) -> Option<WorkloadView> {
        self.workloads()
            .into_iter()
            .find(|workload| workload.name == name)
    }

    /// The pods of the control plane.
    pub fn pods(&self) -> Vec<PodView> {
        self.engine
            .on_seed(&keys::PODS)
            .iter()
            .map(|pod| views::pod(pod))
            .collect()
    }

    /// The Deployments and StatefulSets of the control plane.
    pub fn workloads(&self) -> Vec<WorkloadView> {
        [keys::DEPLOYMENTS, keys::STATEFUL_SETS]
            .iter()
            .flat_map(|resource| self.engine.on_seed(resource))
            .map(|object| views::workload(&object))
            .collect()
    }
}
