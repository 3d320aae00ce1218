//! The objects of a control plane, as a seed's kubelets and controllers write them.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Endpoints, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use watchdog_test_support::fixtures::serves_endpoint_slices;

/// Label of all pods that are played here.
pub(super) const SELECTOR: &str = "acceptance.test/played=true";

/// When that happened which made the endpoints change: as the endpoints controller writes it, in whole seconds of a
/// pod's condition.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Writes them.
#[derive(Clone)]
pub struct Writer {
    seed: Client,
    /// True if the seed serves `discovery.k8s.io/v1`.
    slices: bool,
}

// === impl Writer ===

impl Writer {
    pub async fn new(seed: &Client) -> anyhow::Result<Self> {
        Ok(Self {
            seed: seed.clone(),
            slices: serves_endpoint_slices(seed).await?,
        })
    }

    pub(super) const fn client(&self) -> &Client {
        &self.seed
    }

    /// A pod that runs.
    pub async fn create(&self, namespace: &str, component: &str, role: &str) -> anyhow::Result<Pod> {
        let labels =
            json!({"gardener.cloud/role": "controlplane", "role": role, "acceptance.test/played": "true"});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "generateName": format!("{component}-"), "labels": labels,
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": component,
                    "uid": format!("{namespace}-{component}"), "controller": true,
                }],
            },
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }))?;
        let pods = Api::<Pod>::namespaced(self.seed.clone(), namespace);
        Ok(pods.create(&PostParams::default(), &pod).await?)
    }

    /// True if a pod is not there, as far as the seed tells.
    pub async fn is_gone(&self, namespace: &str, pod: &str) -> bool {
        let pods = Api::<Pod>::namespaced(self.seed.clone(), namespace);
        matches!(pods.get_opt(pod).await, Ok(None))
    }

    /// It waits in CrashLoopBackOff from now on. Somebody may have deleted it meanwhile.
    pub async fn crash(&self, namespace: &str, pod: &str) -> anyhow::Result<()> {
        let waiting =
            json!({"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"});
        let status = json!([{
            "name": "main", "image": "none", "imageID": "", "ready": false, "restartCount": 7,
            "state": {"waiting": waiting},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": crashed_at().to_string()}},
        }]);
        let patch = Patch::Merge(json!({"status": {"containerStatuses": status}}));
        let pods = Api::<Pod>::namespaced(self.seed.clone(), namespace);
        match pods.patch_status(pod, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// The pods behind a Service, and which of them are ready: as EndpointSlice if the seed serves it, else as
    /// Endpoints.
    pub async fn publish(
        &self,
        namespace: &str,
        service: &str,
        pods: &[(String, bool)],
    ) -> anyhow::Result<()> {
        // Members that become ready together are ready since the same second.
        let now = jiff::Timestamp::now().as_second();
        for (pod, ready) in pods {
            self.show_readiness(namespace, pod, *ready, now).await?;
        }
        match self.slices {
            true => self.publish_slice(namespace, service, pods, now).await,
            false => self.publish_endpoints(namespace, service, pods, now).await,
        }
    }

    async fn publish_slice(
        &self,
        namespace: &str,
        service: &str,
        pods: &[(String, bool)],
        now: i64,
    ) -> anyhow::Result<()> {
        let endpoint = |(index, (pod, ready)): (usize, &(String, bool))| {
            json!({
                "addresses": [address(index)], "conditions": {"ready": ready}, "targetRef": target(namespace, pod),
            })
        };
        let endpoints: Vec<_> = pods.iter().enumerate().map(endpoint).collect();
        let name = format!("{service}-played");
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "labels": {"kubernetes.io/service-name": service}, "annotations": triggered(now)?,
            },
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 443}],
        });
        let api = Api::<EndpointSlice>::namespaced(self.seed.clone(), namespace);
        put(&api, &name, slice).await
    }

    async fn publish_endpoints(
        &self,
        namespace: &str,
        service: &str,
        pods: &[(String, bool)],
        now: i64,
    ) -> anyhow::Result<()> {
        let addresses = |wanted: bool| -> Vec<Value> {
            let of = pods.iter().enumerate().filter(|(_, (_, ready))| *ready == wanted);
            of.map(|(index, (pod, _))| json!({"ip": address(index), "targetRef": target(namespace, pod)}))
                .collect()
        };
        let mut subset = json!({"ports": [{"port": 443}]});
        for (key, list) in [
            ("addresses", addresses(true)),
            ("notReadyAddresses", addresses(false)),
        ] {
            if let (Some(subset), false) = (subset.as_object_mut(), list.is_empty()) {
                subset.insert(key.to_owned(), list.into());
            }
        }
        let endpoints = json!({
            "apiVersion": "v1", "kind": "Endpoints", "subsets": [subset],
            "metadata": {"name": service, "annotations": triggered(now)?},
        });
        let api = Api::<Endpoints>::namespaced(self.seed.clone(), namespace);
        put(&api, service, endpoints).await
    }

    /// Since now, or since before the latest crash. Somebody may have deleted the pod meanwhile.
    async fn show_readiness(&self, namespace: &str, pod: &str, ready: bool, now: i64) -> anyhow::Result<()> {
        let since = jiff::Timestamp::from_second(if ready { now } else { now - 20 })?;
        let status = if ready { "True" } else { "False" };
        let condition = json!({"type": "Ready", "status": status, "lastTransitionTime": since.to_string()});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        let pods = Api::<Pod>::namespaced(self.seed.clone(), namespace);
        match pods.patch_status(pod, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

/// The annotations of endpoints that changed at this second.
fn triggered(second: i64) -> anyhow::Result<Value> {
    let time = jiff::Timestamp::from_second(second)?;
    Ok(json!({ TRIGGER_TIME: time.to_string() }))
}

/// Containers crashed a while before they are seen to: rules compare the clocks of nodes in whole seconds.
fn crashed_at() -> jiff::Timestamp {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second() - 10).unwrap_or(now)
}

/// Changes an object, or creates it.
async fn put<K>(api: &Api<K>, name: &str, object: Value) -> anyhow::Result<()>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let patch = Patch::Merge(&object);
    match api.patch(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let object = serde_json::from_value(object)?;
            Ok(api.create(&PostParams::default(), &object).await.map(drop)?)
        }
        other => Ok(other.map(drop)?),
    }
}

fn target(namespace: &str, pod: &str) -> Value {
    json!({"kind": "Pod", "namespace": namespace, "name": pod})
}

fn address(index: usize) -> String {
    format!("10.0.0.{}", index + 1)
}
