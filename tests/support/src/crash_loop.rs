//! A crash loop for the weeder: a kube-apiserver that waits in CrashLoopBackOff, and the Service of etcd, which it
//! needs. Written through the API of a seed as its kubelets and controllers write them.

use std::collections::BTreeSet;
use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Endpoints, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fixtures::serves_endpoint_slices;
use crate::real::create_namespace;
use crate::wait::{self, BOUND};

const SERVICE: &str = "etcd-main-client";

/// The controller of all pods, so that one is the successor of another.
const CONTROLLER: &str = "kube-apiserver";

/// When that happened which made the endpoints change, in whole seconds, as the endpoints controller writes it.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// One namespace of a seed.
pub struct CrashingControlPlane {
    seed: Client,
    namespace: String,
    pods: Api<Pod>,
    /// True if the seed serves `discovery.k8s.io/v1`.
    slices: bool,
}

// === impl CrashingControlPlane ===

impl CrashingControlPlane {
    /// Makes the namespace unless it is there.
    pub async fn new(seed: &Client, namespace: &str) -> anyhow::Result<Self> {
        create_namespace(seed, namespace).await?;
        Ok(Self {
            seed: seed.clone(),
            namespace: namespace.to_owned(),
            pods: Api::namespaced(seed.clone(), namespace),
            slices: serves_endpoint_slices(seed).await?,
        })
    }

    /// etcd becomes ready or not.
    pub async fn set_ready(&self, is_ready: bool) -> anyhow::Result<()> {
        self.set_service_ready(SERVICE, is_ready).await
    }

    /// The same for any Service: as an EndpointSlice if the seed serves it, else as Endpoints.
    pub async fn set_service_ready(&self, service: &str, is_ready: bool) -> anyhow::Result<()> {
        let now = Timestamp::from_second(Timestamp::now().as_second())?;
        let annotations = json!({ TRIGGER_TIME: now.to_string() });
        let pod = json!({"kind": "Pod", "namespace": self.namespace, "name": format!("{service}-0")});
        if self.slices {
            let name = format!("{service}-played");
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": name, "labels": {"kubernetes.io/service-name": service}, "annotations": annotations,
                },
                "addressType": "IPv4", "ports": [{"port": 443}],
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": is_ready}, "targetRef": pod}],
            });
            let slices: Api<EndpointSlice> = Api::namespaced(self.seed.clone(), &self.namespace);
            return put(&slices, &name, slice).await;
        }
        let address = json!([{"ip": "10.0.0.1", "targetRef": pod}]);
        let subset = match is_ready {
            true => json!({"ports": [{"port": 443}], "addresses": address}),
            false => json!({"ports": [{"port": 443}], "notReadyAddresses": address}),
        };
        let endpoints = json!({
            "apiVersion": "v1", "kind": "Endpoints", "subsets": [subset],
            "metadata": {"name": service, "annotations": annotations},
        });
        let all: Api<Endpoints> = Api::namespaced(self.seed.clone(), &self.namespace);
        put(&all, service, endpoints).await
    }

    /// Makes a pod that waits in CrashLoopBackOff, and returns its UID.
    pub async fn crash(&self) -> anyhow::Result<String> {
        let labels = json!({"gardener.cloud/role": "controlplane", "role": "apiserver"});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "generateName": format!("{CONTROLLER}-"), "labels": labels,
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": CONTROLLER,
                    "uid": format!("{}-{CONTROLLER}", self.namespace), "controller": true,
                }],
            },
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }))?;
        let pod = self.pods.create(&PostParams::default(), &pod).await?;
        // A while before it is seen: rules compare the clocks of nodes in whole seconds.
        let crashed_at = Timestamp::from_second(Timestamp::now().as_second() - 10)?;
        let status = json!([{
            "name": "main", "image": "none", "imageID": "", "ready": false, "restartCount": 7,
            "state": {"waiting": {
                "reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container",
            }},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": crashed_at.to_string()}},
        }]);
        let patch = Patch::Merge(json!({"status": {"containerStatuses": status}}));
        let params = PatchParams::default();
        self.pods.patch_status(&pod.name_any(), &params, &patch).await?;
        Ok(pod.uid().unwrap_or_default())
    }

    /// See [`uids`].
    pub async fn uids(&self) -> anyhow::Result<BTreeSet<String>> {
        uids(&self.pods).await
    }

    /// Waits until the weeder has deleted all pods.
    pub async fn wait_weeded(&self) -> anyhow::Result<()> {
        let what = format!("the pods of {} are weeded", self.namespace);
        wait::until_true(&what, BOUND, || async { Ok(self.uids().await?.is_empty()) }).await
    }
}

/// The UIDs of the pods that nobody has deleted. An API server marks a pod before it removes it, and on a slow machine
/// the weeder may have given up waiting in between. Then the pod's kubelet removes it; here there is none.
pub async fn uids(pods: &Api<Pod>) -> anyhow::Result<BTreeSet<String>> {
    let pods = pods.list(&ListParams::default()).await?.items;
    let left = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(left.filter_map(Pod::uid).collect())
}

/// Waits until an object that is written is younger than all that there are: times of objects are whole seconds.
pub async fn next_second() -> anyhow::Result<()> {
    let now = Timestamp::now().as_second();
    wait::until_true("the next second", BOUND, || async {
        Ok(Timestamp::now().as_second() > now)
    })
    .await
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
