//! The kubelets of one shoot: each renews its Lease and posts its Node's conditions, unless it is cut off.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde_json::json;
use tokio::time::Instant;

use super::{StepInputs, objects, spec::Cut};
use crate::{resource::keys, store::WriteOptions, time};

/// Namespace of the kubelets' Leases.
pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";

#[derive(Debug, Clone)]
struct Kubelet {
    zone: String,
    due: Instant,
    /// How far its clock is ahead of ours.
    skew: SignedDuration,
}

/// All kubelets of a shoot, driven by one task.
#[derive(Debug, Default)]
pub(crate) struct Kubelets {
    kubelets: BTreeMap<String, Kubelet>,
    cut_all: bool,
    cut_zones: BTreeSet<String>,
    cut_nodes: BTreeSet<String>,
}

impl Kubelets {
    /// Starts a kubelet; its renewals are spread over the interval.
    pub(crate) fn start(&mut self, node: &str, zone: &str, around: &StepInputs<'_>) {
        let spread = around.timing.renew_interval.mul_f64(rand::random_range(0.0..1.0));
        let due = around.now + spread;
        self.kubelets.insert(
            node.into(),
            Kubelet {
                zone: zone.into(),
                due,
                skew: SignedDuration::ZERO,
            },
        );
        self.post(node, around);
    }

    /// Ends a kubelet.
    pub(crate) fn stop(&mut self, node: &str) {
        self.kubelets.remove(node);
    }

    /// Cuts kubelets off.
    pub(crate) fn cut(&mut self, cut: Cut) {
        match cut {
            Cut::All => self.cut_all = true,
            Cut::Zone(zone) => {
                self.cut_zones.insert(zone);
            }
            Cut::Nodes(nodes) => self.cut_nodes.extend(nodes),
        }
    }

    /// Reconnects everything; each kubelet gets through at its next try.
    pub(crate) fn heal(&mut self) {
        self.cut_all = false;
        self.cut_zones.clear();
        self.cut_nodes.clear();
    }

    /// True if a node of this name in this zone is cut off.
    pub(crate) fn is_cut(&self, node: &str, zone: &str) -> bool {
        self.cut_all || self.cut_zones.contains(zone) || self.cut_nodes.contains(node)
    }

    /// Sets a node's clock ahead (or, negative, back).
    pub(crate) fn set_skew(&mut self, node: &str, skew: SignedDuration) -> bool {
        match self.kubelets.get_mut(node) {
            Some(kubelet) => {
                kubelet.skew = skew;
                true
            }
            None => false,
        }
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, around: &StepInputs<'_>) -> Option<Instant> {
        // Renewals within a hundredth of the interval share a wake-up.
        let horizon = around.now + around.timing.renew_interval / 100;
        let due: Vec<String> = self
            .kubelets
            .iter()
            .filter(|(_, kubelet)| kubelet.due <= horizon)
            .map(|(name, _)| name.clone())
            .collect();
        for node in due {
            self.post(&node, around);
            if let Some(kubelet) = self.kubelets.get_mut(&node) {
                let interval = around.timing.renew_interval;
                kubelet.due = around.now + interval + objects::renew_jitter(interval);
            }
        }
        self.kubelets.values().map(|kubelet| kubelet.due).min()
    }

    /// Renews the Lease and, if it is not Ready, the Node of one kubelet.
    fn post(&self, node: &str, around: &StepInputs<'_>) {
        let Some(kubelet) = self.kubelets.get(node) else {
            return;
        };
        if self.is_cut(node, &kubelet.zone) {
            return;
        }
        let renewed = around.wall.saturating_add(kubelet.skew).unwrap_or(around.wall);
        let options = WriteOptions::default();
        let spec = objects::lease_spec(node, around.timing, renewed);
        let store = around.shoot;
        let renewal = store.change(&keys::LEASES, LEASE_NAMESPACE, node, |lease| {
            lease["spec"]["renewTime"] = time::micros(renewed).into();
        });
        let renewal = match renewal {
            Err(error) if error.code == 404 => {
                let lease = json!({ "metadata": { "name": node }, "spec": spec });
                store.create(&keys::LEASES, LEASE_NAMESPACE, lease, &options)
            }
            other => other,
        };
        around.report("lease renewal", renewal);
        let ready = match store.find(&keys::NODES, "", node) {
            Some(object) => super::node_ready(&object) == "True",
            None => {
                let object = objects::node(node, &kubelet.zone, around.wall);
                let registered = store.create(&keys::NODES, "", object, &options);
                around.report("node registration", registered);
                true
            }
        };
        if !ready {
            let posted = store.change(&keys::NODES, "", node, |object| {
                object["status"]["conditions"] = objects::conditions(around.wall);
            });
            around.report("node status", posted);
        }
    }
}
