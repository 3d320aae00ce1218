//! The control-plane components of a shoot that the watchdog has to do with, labelled as Gardener labels them.

use serde_json::{Value, json};

use crate::fixtures::{CA, KCM, MCM};

/// Annotation on a pod template: the Service without which the pod crashes.
pub(super) const NEEDS_ANNOTATION: &str = "sandbox.watchdog/needs";

/// The Service of the API servers.
const API_SERVER: &str = "kube-apiserver";

#[derive(Debug, Clone, Copy)]
pub(super) struct Component {
    /// Name of the Deployment or StatefulSet.
    name: &'static str,
    /// Label `role`.
    role: &'static str,
    /// Label `app`.
    app: &'static str,
    pub(super) stateful: bool,
    /// The Service in front of it and its port.
    service: Option<(&'static str, u16)>,
    /// The Service that it cannot live without.
    needs: &'static str,
}

const fn controller(name: &'static str, role: &'static str) -> Component {
    Component {
        name,
        role,
        app: "kubernetes",
        stateful: false,
        service: None,
        needs: API_SERVER,
    }
}

pub(super) const COMPONENTS: [Component; 5] = [
    Component {
        name: "etcd-main",
        role: "main",
        app: "etcd-statefulset",
        stateful: true,
        service: Some(("etcd-main-client", 2379)),
        needs: "",
    },
    Component {
        service: Some((API_SERVER, 443)),
        needs: "etcd-main-client",
        ..controller(API_SERVER, "apiserver")
    },
    controller(KCM, "controller-manager"),
    controller(MCM, MCM),
    controller(CA, CA),
];

impl Component {
    fn labels(&self) -> Value {
        json!({ "app": self.app, "role": self.role, "gardener.cloud/role": "controlplane" })
    }

    fn selector(&self) -> Value {
        json!({ "app": self.app, "role": self.role })
    }

    /// The Deployment or StatefulSet with one replica.
    pub(super) fn workload(&self) -> Value {
        json!({
            "metadata": { "name": self.name, "labels": self.labels() },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": self.selector() },
                "template": {
                    "metadata": { "labels": self.labels(), "annotations": { NEEDS_ANNOTATION: self.needs } },
                    "spec": { "containers": [{ "name": self.name, "image": "none" }] },
                },
            },
        })
    }

    /// The Service, where there is one.
    pub(super) fn service(&self) -> Option<Value> {
        let (name, port) = self.service?;
        Some(json!({
            "metadata": { "name": name, "labels": self.labels() },
            "spec": {
                "selector": self.selector(),
                "ports": [{ "name": "client", "port": port, "protocol": "TCP" }],
                "clusterIP": "None",
            },
        }))
    }
}
