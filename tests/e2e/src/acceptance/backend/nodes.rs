//! The nodes of a shoot with a real API server: one kubelet each, which come and go with their machines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kube::Client;
use tokio::sync::Mutex;

use watchdog_test_support::real::{FleetOptions, MachineOptions, RunningKubelets};

/// All nodes of a shoot.
pub(super) struct Nodes {
    shoot: Client,
    machines: MachineOptions,
    renew_interval: Duration,
    count: AtomicU32,
    state: Mutex<NodesState>,
}

#[derive(Default)]
struct NodesState {
    /// Name to zone and kubelet.
    running: BTreeMap<String, (String, RunningKubelets)>,
    cut_all: bool,
    cut_zones: BTreeSet<String>,
}

// === impl Nodes ===

impl Nodes {
    pub(super) fn new(shoot: Client, machines: MachineOptions, renew_interval: Duration) -> Self {
        Self {
            shoot,
            machines,
            renew_interval,
            count: AtomicU32::new(0),
            state: Mutex::default(),
        }
    }

    /// The name of a node to come.
    pub(super) fn next_name(&self) -> String {
        format!("node{}", self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Starts a kubelet, with a running Machine.
    pub(super) async fn start(&self, prefix: &str, zone: &str) -> anyhow::Result<()> {
        let options = FleetOptions {
            nodes: 1,
            prefix: prefix.to_owned(),
            zones: vec![zone.to_owned()],
            renew_interval: self.renew_interval,
            machines: self.machines.clone(),
        };
        let fleet = RunningKubelets::start(&self.shoot, options).await?;
        let mut state = self.state.lock().await;
        if state.is_cut(zone) {
            fleet.cut_all().await;
        }
        state.running.insert(node_name(prefix), (zone.to_owned(), fleet));
        Ok(())
    }

    /// Ends a kubelet.
    pub(super) async fn stop(&self, node: &str) {
        self.state.lock().await.running.remove(node);
    }

    pub(super) async fn list(&self) -> Vec<(String, String)> {
        let state = self.state.lock().await;
        let all = state.running.iter();
        all.map(|(name, (zone, _))| (name.clone(), zone.clone()))
            .collect()
    }

    pub(super) async fn is_cut(&self, zone: &str) -> bool {
        self.state.lock().await.is_cut(zone)
    }

    pub(super) async fn cut(&self, zone: Option<&str>) {
        let mut state = self.state.lock().await;
        match zone {
            None => state.cut_all = true,
            Some(zone) => _ = state.cut_zones.insert(zone.to_owned()),
        }
        for (of, fleet) in state.running.values() {
            if zone.is_none_or(|zone| zone == of) {
                fleet.cut_all().await;
            }
        }
    }

    pub(super) async fn reconnect(&self) {
        let mut state = self.state.lock().await;
        state.cut_all = false;
        state.cut_zones.clear();
        for (_, fleet) in state.running.values() {
            fleet.reconnect_all().await;
        }
    }
}

impl NodesState {
    fn is_cut(&self, zone: &str) -> bool {
        self.cut_all || self.cut_zones.contains(zone)
    }
}

/// A fleet of one calls its node so.
pub(super) fn node_name(prefix: &str) -> String {
    format!("{prefix}-0")
}
