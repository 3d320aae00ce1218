//! The nodes of a shoot: simulated kubelets that can be cut off, which come and go with their Machines on the seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::future::join_all;
use jiff::SignedDuration;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::kubelet::Kubelet;
use crate::real::{bounded, create_unless_there, machine_resource};

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// The kubelets that lose their connection to the API server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cut {
    /// All of them, those to come included.
    All,
    /// Those in one zone, to come included.
    Zone(String),
    /// These nodes.
    Nodes(Vec<String>),
}

// === impl Cut ===

impl Cut {
    /// True if it affects a node of this name in this zone.
    pub fn hits(&self, node: &str, zone: &str) -> bool {
        match self {
            Self::All => true,
            Self::Zone(cut) => cut == zone,
            Self::Nodes(cut) => cut.iter().any(|name| name == node),
        }
    }
}

/// All nodes of a shoot. They stop renewing when this is dropped; their objects stay.
#[must_use = "the kubelets stop when this is dropped"]
pub struct RunningKubelets {
    shoot: Client,
    machines: Api<DynamicObject>,
    renew_interval: Duration,
    spread: bool,
    count: AtomicU32,
    state: Mutex<FleetState>,
}

#[derive(Default)]
struct FleetState {
    /// By name.
    running: BTreeMap<String, RunningKubelet>,
    cuts: Vec<Cut>,
}

struct RunningKubelet {
    kubelet: Arc<Kubelet>,
    _task: AbortOnDropHandle<()>,
}

// === impl RunningKubelets ===

impl RunningKubelets {
    /// None yet. Their Machines are in the shoot's namespace on the seed. `renew_interval` is how often a Lease is
    /// renewed; it lasts four times as long, as in a real kubelet.
    pub fn new(shoot: &Client, seed: &Client, namespace: &str, renew_interval: Duration) -> Self {
        Self {
            shoot: shoot.clone(),
            machines: Api::namespaced_with(seed.clone(), namespace, &machine_resource()),
            renew_interval,
            spread: false,
            count: AtomicU32::new(0),
            state: Mutex::default(),
        }
    }

    /// They renew at different times, spread over the interval, and not one right after the other.
    pub fn spread(mut self) -> Self {
        self.spread = true;
        self
    }

    /// The name of a node to come.
    pub fn next_name(&self) -> String {
        format!("node-{}", self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a node with a fresh Lease and Ready conditions, lets its Machine run, and starts renewing.
    pub async fn start(&self, node: &str, zone: &str) -> anyhow::Result<()> {
        let kubelet = Arc::new(Kubelet::new(&self.shoot, node, zone, self.renew_interval));
        kubelet.register().await?;
        self.set_machine(node, zone, "Running").await?;
        let share = if self.spread {
            rand::random_range(0.0..1.0)
        } else {
            0.0
        };
        let (runs, first) = (kubelet.clone(), self.renew_interval.mul_f64(share));
        let mut state = self.state.lock();
        kubelet.set_cut(state.is_cut(&kubelet));
        let task = tokio::spawn(async move { runs.run(first).await });
        let running = RunningKubelet {
            kubelet,
            _task: AbortOnDropHandle::new(task),
        };
        state.running.insert(node.to_owned(), running);
        Ok(())
    }

    /// Makes the Machine of a node unless it is there, and sets its phase. It has the name of its node.
    pub(super) async fn set_machine(&self, node: &str, zone: &str, phase: &str) -> anyhow::Result<()> {
        let data = json!({"spec": {"nodeTemplate": {"metadata": {"labels": {ZONE: zone}}}}});
        let mut machine = DynamicObject::new(node, &machine_resource()).data(data);
        machine.metadata.labels = Some([("node".to_owned(), node.to_owned())].into());
        create_unless_there(&self.machines, &machine).await?;
        let status = Patch::Merge(json!({"status": {"currentStatus": {"phase": phase}}}));
        let params = PatchParams::default();
        let set = self.machines.patch_status(node, &params, &status);
        bounded("set the phase", set).await.map(drop)
    }

    /// Ends a kubelet.
    pub fn stop(&self, node: &str) {
        self.state.lock().running.remove(node);
    }

    /// Names and zones of the nodes.
    pub fn list(&self) -> Vec<(String, String)> {
        let state = self.state.lock();
        let kubelets = state.kubelets();
        kubelets.map(|one| (one.name.clone(), one.zone.clone())).collect()
    }

    /// True if a new node of this name would not get through.
    pub(super) fn is_cut(&self, node: &str, zone: &str) -> bool {
        self.state.lock().cuts.iter().any(|cut| cut.hits(node, zone))
    }

    /// Cuts the network between the API server and nodes. When this returns, nothing of theirs is on its way any more.
    pub async fn cut(&self, cut: Cut) {
        self.cut_now(cut);
        let kubelets: Vec<_> = self.state.lock().kubelets().cloned().collect();
        join_all(kubelets.iter().map(|kubelet| kubelet.settle())).await;
    }

    /// The same without waiting for requests that are on their way.
    pub fn cut_now(&self, cut: Cut) {
        let mut state = self.state.lock();
        state.cuts.push(cut);
        state.apply_cuts();
    }

    /// Heals the network: the nodes renew again at their next turn.
    pub fn reconnect(&self) {
        let mut state = self.state.lock();
        state.cuts.clear();
        state.apply_cuts();
    }

    /// Sets the clock of a node ahead of everyone else's (negative: behind).
    pub fn set_clock_skew(&self, node: &str, skew: SignedDuration) -> anyhow::Result<()> {
        let state = self.state.lock();
        let running = state.running.get(node).context("no such node")?;
        running.kubelet.set_clock_skew(skew);
        Ok(())
    }
}

// === impl FleetState ===

impl FleetState {
    fn kubelets(&self) -> impl Iterator<Item = &Arc<Kubelet>> {
        self.running.values().map(|running| &running.kubelet)
    }

    fn is_cut(&self, kubelet: &Kubelet) -> bool {
        self.cuts.iter().any(|cut| cut.hits(&kubelet.name, &kubelet.zone))
    }

    fn apply_cuts(&self) {
        for kubelet in self.kubelets() {
            kubelet.set_cut(self.is_cut(kubelet));
        }
    }
}
