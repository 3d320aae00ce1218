//! The part of a shoot's own control plane: the node lifecycle of its kube-controller-manager, and a leader election.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use watchdog_sandbox::ApiServer;
use watchdog_sandbox::resource::keys;

use super::timing::SimTiming;
use crate::nodes::LEASE_NAMESPACE;

/// Marks nodes without a sign of life.
#[derive(Debug)]
pub(super) struct NodeLifecycle {
    shoot: ApiServer,
    period: Duration,
    grace: Duration,
    /// True if its Deployment has a pod.
    pub(super) running: AtomicBool,
    /// How often a node was marked Unknown.
    pub(super) marked_unknown: AtomicU64,
}

/// The renewals that were seen, and when: not what a Lease says is judged.
type Renewals = HashMap<String, (String, Instant)>;

// === impl NodeLifecycle ===

impl NodeLifecycle {
    pub(super) fn new(shoot: &ApiServer, timing: &SimTiming) -> Self {
        Self {
            shoot: shoot.clone(),
            period: timing.node_monitor_period,
            grace: timing.node_monitor_grace_period,
            running: AtomicBool::new(false),
            marked_unknown: AtomicU64::new(0),
        }
    }

    /// Until it is dropped.
    pub(super) async fn run(&self) {
        let mut seen = Renewals::new();
        loop {
            sleep(self.period).await;
            if self.running.load(Ordering::SeqCst) && self.shoot.is_reachable() {
                self.look_at_all(&mut seen);
            } else {
                // A new process starts from scratch: every node gets a full grace period.
                seen.clear();
            }
        }
    }

    fn look_at_all(&self, seen: &mut Renewals) {
        let (store, now) = (self.shoot.store(), Instant::now());
        let nodes = store.all(&keys::NODES, None);
        seen.retain(|name, _| nodes.iter().any(|node| node.name() == name));
        for node in nodes {
            let lease = store.find(&keys::LEASES, LEASE_NAMESPACE, node.name());
            let renewed = lease.map_or(String::new(), |lease| lease.text("/spec/renewTime").to_owned());
            let known = seen
                .entry(node.name().to_owned())
                .or_insert_with(|| (renewed.clone(), now));
            if known.0 != renewed {
                *known = (renewed, now);
            }
            if now.duration_since(known.1) > self.grace && node_ready(node.value()) != "Unknown" {
                self.marked_unknown.fetch_add(1, Ordering::SeqCst);
                // A node that is gone is not marked.
                let _ = store.change(&keys::NODES, "", node.name(), mark_unknown);
            }
        }
    }
}

/// Renews a leader Lease, whatever happens to the nodes: it is what makes the revision of an idle server grow.
pub(super) async fn elect(shoot: ApiServer, every: Duration) {
    let (namespace, name) = ("kube-system", "kube-scheduler");
    loop {
        if shoot.is_reachable() {
            let renewed = json!(Timestamp::now().to_string());
            let lease = json!({ "metadata": { "name": name }, "spec": { "renewTime": renewed } });
            // The second fails where the first has made it.
            let _ = shoot.create(&keys::LEASES, namespace, lease);
            let renew = |lease: &mut Value| lease["spec"]["renewTime"] = renewed;
            let _ = shoot.store().change(&keys::LEASES, namespace, name, renew);
        }
        sleep(every).await;
    }
}

/// Status of a Node's Ready condition; empty when it has none.
pub(super) fn node_ready(node: &Value) -> &str {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    ready
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or_default()
}

fn mark_unknown(node: &mut Value) {
    let now = json!(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let conditions = node["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        condition["status"] = "Unknown".into();
        condition["reason"] = "NodeStatusUnknown".into();
        condition["message"] = "Kubelet stopped posting node status.".into();
        condition["lastTransitionTime"] = now.clone();
    }
}
