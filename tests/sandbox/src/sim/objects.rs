//! The objects that make a shoot, as Gardener and kubelets write them.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    spec::{POOL, SimulatedShootSpec},
    timing::{SimTiming, go_duration},
};
use crate::time;

/// Annotation on a pod template: comma-separated services without which the pod crashes.
pub(crate) const NEEDS_ANNOTATION: &str = "sandbox.watchdog/needs";

/// Name of the Secret with the kubeconfig for the probe.
pub const PROBE_SECRET: &str = "shoot-access-dependency-watchdog-probe";

/// Conditions that kubelets report; all but Ready are bad when True.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The Cluster object of a shoot.
pub(crate) fn cluster(spec: &SimulatedShootSpec, timing: &SimTiming, now: Timestamp) -> Value {
    let now = time::seconds(now);
    let grace = go_duration(timing.node_monitor_grace_period);
    json!({
        "metadata": { "name": spec.namespace() },
        "spec": {
            "shoot": {
                "apiVersion": "core.gardener.cloud/v1beta1",
                "kind": "Shoot",
                "metadata": { "name": spec.name, "namespace": "garden-sandbox" },
                "spec": {
                    "hibernation": { "enabled": false },
                    "kubernetes": { "kubeControllerManager": { "nodeMonitorGracePeriod": grace } },
                    "provider": { "workers": [{ "name": POOL }] },
                },
                "status": {
                    "hibernated": false,
                    "lastOperation": last_operation("Reconcile", "Succeeded", &now),
                },
            },
        },
    })
}

/// `status.lastOperation` of a Shoot.
pub(crate) fn last_operation(operation: &str, state: &str, now: &str) -> Value {
    json!({
        "type": operation,
        "state": state,
        "progress": if state == "Succeeded" { 100 } else { 50 },
        "lastUpdateTime": now,
        "description": format!("{operation} {state}"),
    })
}

/// A Node as its kubelet registers it.
pub(crate) fn node(name: &str, zone: &str, now: Timestamp) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/zone": zone,
                "topology.kubernetes.io/region": "loopback",
                "worker.gardener.cloud/pool": POOL,
                "node.kubernetes.io/role": "node",
            },
        },
        "spec": { "providerID": format!("sandbox:///{zone}/{name}") },
        "status": { "conditions": conditions(now) },
    })
}

/// The conditions that a healthy kubelet posts.
pub(crate) fn conditions(now: Timestamp) -> Value {
    let now = time::seconds(now);
    CONDITIONS
        .iter()
        .map(|kind| {
            let ready = *kind == "Ready";
            json!({
                "type": kind,
                "status": if ready { "True" } else { "False" },
                "reason": if ready { "KubeletReady".to_owned() } else { format!("KubeletHasNo{kind}") },
                "message": if ready { "kubelet is posting ready status" } else { "kubelet has no pressure" },
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            })
        })
        .collect()
}

/// A Machine, `node` being the name of its node (the same as its own here).
pub(crate) fn machine(name: &str, namespace: &str, zone: &str, now: Timestamp) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": { "node": name, "name": namespace },
        },
        "spec": {
            "class": { "apiGroup": "machine.sapcloud.io", "kind": "MachineClass", "name": namespace },
            "providerID": format!("sandbox:///{zone}/{name}"),
            "nodeTemplate": { "metadata": { "labels": { "topology.kubernetes.io/zone": zone } } },
        },
        "status": {
            "node": name,
            "currentStatus": { "phase": "Running", "lastUpdateTime": time::seconds(now) },
        },
    })
}

/// A control-plane component of a shoot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Component {
    /// Name of the Deployment or StatefulSet.
    pub(crate) name: &'static str,
    /// Label `role`.
    pub(crate) role: &'static str,
    /// Label `app`.
    pub(crate) app: &'static str,
    /// True if it is a StatefulSet.
    pub(crate) stateful: bool,
    /// The Service in front of it and its port.
    pub(crate) service: Option<(&'static str, u16)>,
    /// The Service that it cannot live without.
    pub(crate) needs: &'static str,
}

/// The components that the watchdog has to do with, labelled as Gardener labels them.
pub(crate) const COMPONENTS: [Component; 5] = [
    Component {
        name: "etcd-main",
        role: "main",
        app: "etcd-statefulset",
        stateful: true,
        service: Some(("etcd-main-client", 2379)),
        needs: "",
    },
    Component {
        name: "kube-apiserver",
        role: "apiserver",
        app: "kubernetes",
        stateful: false,
        service: Some(("kube-apiserver", 443)),
        needs: "etcd-main-client",
    },
    Component {
        name: "kube-controller-manager",
        role: "controller-manager",
        app: "kubernetes",
        stateful: false,
        service: None,
        needs: "kube-apiserver",
    },
    Component {
        name: "machine-controller-manager",
        role: "machine-controller-manager",
        app: "kubernetes",
        stateful: false,
        service: None,
        needs: "kube-apiserver",
    },
    Component {
        name: "cluster-autoscaler",
        role: "cluster-autoscaler",
        app: "kubernetes",
        stateful: false,
        service: None,
        needs: "kube-apiserver",
    },
];

impl Component {
    fn labels(&self) -> Value {
        json!({ "app": self.app, "role": self.role, "gardener.cloud/role": "controlplane" })
    }

    /// The Deployment or StatefulSet with one replica.
    pub(crate) fn workload(&self) -> Value {
        let mut annotations = json!({});
        if !self.needs.is_empty() {
            annotations[NEEDS_ANNOTATION] = self.needs.into();
        }
        let selector = json!({ "app": self.app, "role": self.role });
        let mut spec = json!({
            "replicas": 1,
            "selector": { "matchLabels": selector },
            "template": {
                "metadata": { "labels": self.labels(), "annotations": annotations },
                "spec": { "containers": [{ "name": self.name, "image": "none" }] },
            },
        });
        if self.stateful {
            spec["serviceName"] = self.name.into();
        }
        json!({ "metadata": { "name": self.name, "labels": self.labels() }, "spec": spec })
    }

    /// The Service, where there is one.
    pub(crate) fn service(&self) -> Option<Value> {
        let (name, port) = self.service?;
        Some(json!({
            "metadata": { "name": name, "labels": self.labels() },
            "spec": {
                "selector": { "app": self.app, "role": self.role },
                "ports": [{ "name": "client", "port": port, "protocol": "TCP" }],
                "clusterIP": "None",
            },
        }))
    }
}

/// `spec` of a kubelet's Lease.
pub(crate) fn lease_spec(node: &str, timing: &SimTiming, renewed: Timestamp) -> Value {
    json!({
        "holderIdentity": node,
        "leaseDurationSeconds": timing.lease_seconds(),
        "renewTime": time::micros(renewed),
    })
}

/// How much later than `renew_interval` a kubelet may renew (its jitter factor is 0.04).
pub(crate) fn renew_jitter(interval: Duration) -> Duration {
    interval.mul_f64(rand::random_range(0.0..0.04))
}
