//! The node lifecycle controller of the shoot's kube-controller-manager.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{StepInputs, kubelets::LEASE_NAMESPACE, node_ready, objects::UNREACHABLE_TAINT};
use crate::{
    resource::keys,
    store::object::{Object, child_mut},
    time,
};

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
        let seen = self
            .seen
            .entry(node.name().to_owned())
            .or_insert_with(|| SeenRenewal {
                renew_time: renew_time.to_owned(),
                at: around.now,
            });
        if seen.renew_time != renew_time {
            *seen = SeenRenewal {
                renew_time: renew_time.to_owned(),
                at: around.now,
            };
        }
        let silent = around.now.duration_since(seen.at) > around.timing.node_monitor_grace_period;
        let ready = node_ready(node);
        if silent && ready != "Unknown" {
            self.marked_unknown += 1;
            change(around, "marking a node Unknown", node.name(), mark_unknown);
        } else if !silent && ready == "True" && tainted(node) {
            change(around, "removing a taint", node.name(), remove_taint);
        }
    }
}

/// True if the unreachable taint is on a node.
pub(crate) fn tainted(node: &Object) -> bool {
    let taints = node.value().pointer("/spec/taints").and_then(Value::as_array);
    taints
        .into_iter()
        .flatten()
        .any(|taint| taint.get("key").and_then(Value::as_str) == Some(UNREACHABLE_TAINT))
}

fn change(around: &StepInputs<'_>, what: &'static str, node: &str, change: impl FnOnce(&mut Value, &str)) {
    let now = time::seconds(around.wall);
    let changed = around
        .shoot
        .change(&keys::NODES, "", node, |node| change(node, &now));
    around.report(what, changed);
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
    let taints = child_mut(node, "spec")
        .entry("taints")
        .or_insert_with(|| json!([]));
    if let Some(taints) = taints.as_array_mut() {
        for effect in ["NoSchedule", "NoExecute"] {
            taints.push(json!({ "key": UNREACHABLE_TAINT, "effect": effect, "timeAdded": now }));
        }
    }
}

fn remove_taint(node: &mut Value, _now: &str) {
    let spec = child_mut(node, "spec");
    if let Some(taints) = spec.get_mut("taints").and_then(Value::as_array_mut) {
        taints.retain(|taint| taint.get("key").and_then(Value::as_str) != Some(UNREACHABLE_TAINT));
        if taints.is_empty() {
            spec.remove("taints");
        }
    }
}
