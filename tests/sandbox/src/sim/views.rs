//! Views of a shoot for people and tests, read from its objects.

use serde_json::Value;

use super::node_ready;
use crate::{
    resource::keys,
    store::{Store, object::Object},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    pub zone: String,
    /// Status of its Ready condition: True, False or Unknown.
    pub ready: String,
    /// `renewTime` of its Lease; empty without one.
    pub renew_time: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineView {
    pub name: String,
    /// `status.currentStatus.phase`.
    pub phase: String,
}

/// A Deployment or StatefulSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadView {
    pub name: String,
    pub spec_replicas: i64,
    /// `status.readyReplicas`.
    pub ready_replicas: i64,
    /// The annotations whose key begins with `dependency-watchdog.gardener.cloud/`, without that.
    pub watchdog_annotations: std::collections::BTreeMap<String, String>,
}

/// A pod on the seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodView {
    pub name: String,
    pub uid: String,
    /// Status of its Ready condition is True.
    pub ready: bool,
    /// `restartCount` of its container.
    pub restarts: i64,
    /// Why its container waits; empty when it runs.
    pub waiting: String,
}

/// Prefix of the annotations that the watchdog writes.
const WATCHDOG_PREFIX: &str = "dependency-watchdog.gardener.cloud/";

pub(super) fn node(node: &Object, store: &Store) -> NodeView {
    let lease = store.find(&keys::LEASES, super::kubelets::LEASE_NAMESPACE, node.name());
    NodeView {
        name: node.name().into(),
        zone: node
            .label("topology.kubernetes.io/zone")
            .unwrap_or_default()
            .into(),
        ready: node_ready(node).into(),
        renew_time: lease
            .map(|lease| lease.text("/spec/renewTime").to_owned())
            .unwrap_or_default(),
    }
}

pub(super) fn machine(machine: &Object) -> MachineView {
    MachineView {
        name: machine.name().into(),
        phase: machine.text("/status/currentStatus/phase").into(),
    }
}

pub(super) fn workload(object: &Object) -> WorkloadView {
    let annotations = object
        .value()
        .pointer("/metadata/annotations")
        .and_then(Value::as_object);
    WorkloadView {
        name: object.name().into(),
        spec_replicas: object.number("/spec/replicas"),
        ready_replicas: object.number("/status/readyReplicas"),
        watchdog_annotations: annotations
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| {
                Some((
                    key.strip_prefix(WATCHDOG_PREFIX)?.to_owned(),
                    value.as_str()?.to_owned(),
                ))
            })
            .collect(),
    }
}

pub(super) fn pod(pod: &Object) -> PodView {
    PodView {
        name: pod.name().into(),
        uid: pod.uid().into(),
        ready: pod.value().pointer("/status/containerStatuses/0/ready") == Some(&Value::Bool(true)),
        restarts: pod.number("/status/containerStatuses/0/restartCount"),
        waiting: pod
            .text("/status/containerStatuses/0/state/waiting/reason")
            .into(),
    }
}
