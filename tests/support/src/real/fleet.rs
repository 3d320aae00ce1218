//! The nodes of a shoot: simulated kubelets that can be cut off, which come and go with their Machines on the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::kubelet::RealKubelet;
use super::{bounded, create_unless_there, machine_resource};

/// All nodes of a shoot. They stop renewing when this is dropped; their objects stay.
#[must_use = "the kubelets stop when this is dropped"]
pub struct RunningKubelets {
    shoot: Client,
    machines: Api<DynamicObject>,
    renew_interval: Duration,
    count: AtomicU32,
    state: Mutex<FleetState>,
}

#[derive(Default)]
struct FleetState {
    /// By name.
    running: BTreeMap<String, RunningKubelet>,
    cut_all: bool,
    cut_zones: BTreeSet<String>,
}

struct RunningKubelet {
    kubelet: Arc<RealKubelet>,
    _task: AbortOnDropHandle<()>,
}

// === impl RunningKubelets ===

impl RunningKubelets {
    /// None yet. Their Machines are in the shoot's namespace on the seed. `renew_interval` is how often a Lease is
    /// renewed and the conditions are posted; a Lease lasts four times as long, as in a real kubelet.
    pub fn new(shoot: &Client, seed: &Client, namespace: &str, renew_interval: Duration) -> Self {
        Self {
            shoot: shoot.clone(),
            machines: Api::namespaced_with(seed.clone(), namespace, &machine_resource()),
            renew_interval,
            count: AtomicU32::new(0),
            state: Mutex::default(),
        }
    }

    /// The name of a node to come.
    pub fn next_name(&self) -> String {
        format!("node-{}", self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a node with a fresh Lease and Ready conditions, lets its Machine run, and starts renewing.
    ///
    /// # Errors
    /// When an API server does not answer.
    pub async fn start(&self, node: &str, zone: &str) -> anyhow::Result<()> {
        let kubelet = Arc::new(RealKubelet::new(&self.shoot, node.to_owned(), zone.to_owned()));
        kubelet.register(self.renew_interval).await?;
        self.run_machine(node).await?;
        let (runs, every) = (kubelet.clone(), self.renew_interval);
        let task = tokio::spawn(async move { runs.run(every).await });
        let mut state = self.state.lock().await;
        if state.is_cut(zone) {
            kubelet.set_cut(true).await;
        }
        let running = RunningKubelet {
            kubelet,
            _task: AbortOnDropHandle::new(task),
        };
        state.running.insert(node.to_owned(), running);
        Ok(())
    }

    /// A Machine as machine-controller-manager keeps it for a node that has joined.
    async fn run_machine(&self, node: &str) -> anyhow::Result<()> {
        let name = format!("machine-{node}");
        let data = json!({"spec": {"nodeTemplate": {}}});
        let mut machine = DynamicObject::new(&name, &machine_resource()).data(data);
        machine.metadata.labels = Some([("node".to_owned(), node.to_owned())].into());
        create_unless_there(&self.machines, &machine).await?;
        let status = Patch::Merge(json!({"status": {"currentStatus": {"phase": "Running"}}}));
        let params = PatchParams::default();
        bounded(
            "set the phase",
            self.machines.patch_status(&name, &params, &status),
        )
        .await?;
        Ok(())
    }

    /// Ends a kubelet.
    pub async fn stop(&self, node: &str) {
        self.state.lock().await.running.remove(node);
    }

    /// Names and zones of the nodes.
    pub async fn list(&self) -> Vec<(String, String)> {
        let state = self.state.lock().await;
        let all = state.running.iter();
        all.map(|(name, running)| (name.clone(), running.kubelet.zone.clone()))
            .collect()
    }

    pub async fn is_cut(&self, zone: &str) -> bool {
        self.state.lock().await.is_cut(zone)
    }

    /// Cuts the network between the API server and the nodes of a zone, or all of them, those to come included. When
    /// this returns, nothing of theirs is on its way any more.
    pub async fn cut(&self, zone: Option<&str>) {
        let mut state = self.state.lock().await;
        match zone {
            None => state.cut_all = true,
            Some(zone) => _ = state.cut_zones.insert(zone.to_owned()),
        }
        state.apply_cuts().await;
    }

    /// Heals the network: the nodes renew again at their next turn.
    pub async fn reconnect(&self) {
        let mut state = self.state.lock().await;
        state.cut_all = false;
        state.cut_zones.clear();
        state.apply_cuts().await;
    }
}

// === impl FleetState ===

impl FleetState {
    fn is_cut(&self, zone: &str) -> bool {
        self.cut_all || self.cut_zones.contains(zone)
    }

    async fn apply_cuts(&self) {
        let kubelets = self.running.values().map(|running| &running.kubelet);
        join_all(kubelets.map(|kubelet| kubelet.set_cut(self.is_cut(&kubelet.zone)))).await;
    }
}
