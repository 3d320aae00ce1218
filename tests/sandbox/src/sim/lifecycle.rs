//! The node lifecycle controller of the shoot's kube-controller-manager.

use std::collections::HashMap;

use serde_json::Value;
use tokio::time::Instant;

use super::{StepInputs, kubelets::LEASE_NAMESPACE, node_ready};
use crate::{resource::keys, store::object::Object, time};

/// The controller's record of a node. It judges by when it *saw* a renewal, not by what the Lease says.
#[derive(Debug)]
struct SeenRenewal {
    renew_time: String,
    at: Instant,
}

/// Marks nodes without a sign of life.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    seen: HashMap<String, SeenRenewal>,
    due: Option<Instant>,
    /// How often a node was marked Unknown.
    pub(crate) marked_unknown: u64,
}

impl Lifecycle {
    /// Looks at all nodes when it is time to, if `running`.
    pub(crate) fn step(&mut self, running: bool, around: &StepInputs<'_>) -> Option<Instant> {
        if !running {
            // A new process starts from scratch: every node gets a full grace period.
            self.seen.clear();
            self.due = None;
            return None;
        }
        let due = *self.due.get_or_insert(around.now);
        if around.now < due {
            return Some(due);
        }
        self.due = Some(around.now + around.timing.node_monitor_period);
        let nodes = around.shoot.all(&keys::NODES, None);
        self.seen
            .retain(|name, _| nodes.iter().any(|node| node.name() == name));
        for node in &nodes {
            self.look_at(node, around);
        }
        self.due
    }

    fn look_at(&mut self, node: &Object, around: &StepInputs<'_>) {
        let lease = around.shoot.find(&keys::LEASES, LEASE_NAMESPACE, node.name());
        let renew_time = lease
            .as_ref()
            .map(|lease| lease.text("/spec/renewTime"))
            .unwrap_or_default();
        let at = match self.seen.get(node.name()) {
            Some(seen) if seen.renew_time == renew_time => seen.at,
            _ => around.now,
        };
        let renew_time = renew_time.to_owned();
        self.seen
            .insert(node.name().to_owned(), SeenRenewal { renew_time, at });
        let silent = around.now.duration_since(at) > around.timing.node_monitor_grace_period;
        if silent && node_ready(node) != "Unknown" {
            self.marked_unknown += 1;
            let now = time::seconds(around.wall);
            let marked = around
                .shoot
                .change(&keys::NODES, "", node.name(), |node| mark_unknown(node, &now));
            around.report("marking a node Unknown", marked);
        }
    }
}

fn mark_unknown(node: &mut Value, now: &str) {
    if let Some(conditions) = node
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut)
    {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            condition.insert("status".into(), "Unknown".into());
            condition.insert("reason".into(), "NodeStatusUnknown".into());
            condition.insert("message".into(), "Kubelet stopped posting node status.".into());
            condition.insert("lastTransitionTime".into(), now.into());
        }
    }
}
