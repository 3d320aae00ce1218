//! The objects that the weeder reads, reduced to what it reads of them. Reading one fails only on broken JSON.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::Deserialize;
use serde::de::IgnoredAny;
use watchdog_api::lenient::{Keep, Lenient, Subset};
use watchdog_api::names::SERVICE_NAME_LABEL;

use super::trimmed::{malformed, meta, resource};
use crate::domain::moment::Moment;
use crate::domain::pods::{Container, Owner, Pod, PodKey, crash_loop};
use crate::domain::readiness::{Endpoints, Slice, SliceKey};

/// A `v1` Pod.
#[derive(Debug, Clone, Deserialize)]
pub struct PodObject {
    #[serde(default, deserialize_with = "meta")]
    metadata: ObjectMeta,
    #[serde(default = "absent")]
    status: Lenient<PodStatus>,
}

/// A `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Debug, Clone, Deserialize)]
pub struct SliceObject {
    #[serde(default, deserialize_with = "meta")]
    metadata: ObjectMeta,
    #[serde(default = "absent")]
    endpoints: Lenient<SliceEndpoints>,
}

/// A `v1` Endpoints: all endpoints of the service of the same name.
#[derive(Debug, Clone, Deserialize)]
pub struct EndpointsObject {
    #[serde(default, deserialize_with = "meta")]
    metadata: ObjectMeta,
    #[serde(default = "absent")]
    subsets: Lenient<Subsets>,
}

/// A `v1` Namespace.
#[derive(Debug, Clone, Deserialize)]
pub struct NamespaceObject {
    #[serde(default, deserialize_with = "meta")]
    metadata: ObjectMeta,
}

/// What is read of a pod's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    init_container_statuses: Option<Vec<ContainerStatus>>,
    container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    restart_count: i32,
    state: Option<ContainerState>,
    last_state: Option<ContainerState>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    finished_at: Option<String>,
}

/// The endpoints of a slice. Null is how Go writes none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
struct SliceEndpoints(Option<Vec<SliceEndpoint>>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct SliceEndpoint {
    conditions: Option<Conditions>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
}

/// The subsets of an Endpoints. Null is how Go writes none.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
struct Subsets(Option<Vec<EndpointSubset>>);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EndpointSubset {
    addresses: Option<Vec<IgnoredAny>>,
    not_ready_addresses: Option<Vec<IgnoredAny>>,
}

// === impl PodObject ===

impl PodObject {
    /// What the rules read; none when the object does not say which pod it is.
    #[must_use]
    pub fn into_pod(self) -> Option<Pod> {
        let meta = self.metadata;
        let key = PodKey {
            namespace: meta.namespace?.into(),
            name: meta.name?.into(),
        };
        let status = self.status.as_result().unwrap_or_else(|reason| {
            malformed("pod", &key.namespace, &key.name, reason);
            const {
                &PodStatus {
                    init_container_statuses: None,
                    container_statuses: None,
                }
            }
        });
        let init = status
            .init_container_statuses
            .iter()
            .flatten()
            .map(|status| status.container(true));
        let main = status
            .container_statuses
            .iter()
            .flatten()
            .map(|status| status.container(false));
        let crash = crash_loop(init.chain(main));
        let owner = meta
            .owner_references
            .unwrap_or_default()
            .into_iter()
            .find(|o| o.controller == Some(true));
        Some(Pod {
            uid: meta.uid?,
            resource_version: meta.resource_version.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            owner: owner.map(|owner| Owner {
                api_version: owner.api_version,
                kind: owner.kind,
                name: owner.name,
                uid: owner.uid,
            }),
            deleting: meta.deletion_timestamp.is_some(),
            crash,
            key,
        })
    }
}

impl ContainerStatus {
    fn container(&self, init: bool) -> Container {
        let waiting = self.state.as_ref().and_then(|state| state.waiting.as_ref());
        let ended = self
            .last_state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        let ended_at = ended.and_then(|ended| ended.finished_at.as_ref()?.parse::<jiff::Timestamp>().ok());
        Container {
            name: self.name.clone(),
            init,
            restarts: self.restart_count,
            waiting: waiting.and_then(|waiting| waiting.reason.clone()),
            ended_at: ended_at.map(|at| Moment(at.as_microsecond())),
        }
    }
}

// === impl SliceObject ===

impl SliceObject {
    /// What the rules read; none when the object does not say which slice it is.
    #[must_use]
    pub fn into_slice(self) -> Option<Slice> {
        let key = slice_key(&self.metadata)?;
        let service = self
            .metadata
            .labels
            .and_then(|mut labels| labels.remove(SERVICE_NAME_LABEL));
        let endpoints = match self.endpoints.as_result() {
            Ok(endpoints) => {
                let ready = |endpoint: &SliceEndpoint| endpoint.conditions.as_ref().and_then(|c| c.ready);
                Endpoints::of(endpoints.0.iter().flatten().map(ready))
            }
            Err(reason) => {
                malformed("endpointslice", &key.namespace, &key.name, reason);
                Endpoints::default()
            }
        };
        Some(Slice {
            key,
            service: service.map(Into::into),
            endpoints,
        })
    }
}

// === impl EndpointsObject ===

impl EndpointsObject {
    /// What the rules read, as the one slice of its service; none when the object does not say which it is.
    #[must_use]
    pub fn into_slice(self) -> Option<Slice> {
        let key = slice_key(&self.metadata)?;
        let count = |addresses: &Option<Vec<IgnoredAny>>| addresses.as_ref().map_or(0, Vec::len);
        let endpoints = match self.subsets.as_result() {
            Ok(subsets) => {
                let subsets = subsets.0.iter().flatten();
                let conditions = subsets.flat_map(|subset| {
                    let ready = std::iter::repeat_n(Some(true), count(&subset.addresses));
                    ready.chain(std::iter::repeat_n(
                        Some(false),
                        count(&subset.not_ready_addresses),
                    ))
                });
                Endpoints::of(conditions)
            }
            Err(reason) => {
                malformed("endpoints", &key.namespace, &key.name, reason);
                Endpoints::default()
            }
        };
        Some(Slice {
            service: Some(key.name.clone()),
            key,
            endpoints,
        })
    }
}

// === impl NamespaceObject ===

impl NamespaceObject {
    /// Its name, and whether it is terminating.
    #[must_use]
    pub fn name_and_end(&self) -> (&str, bool) {
        (
            self.metadata.name.as_deref().unwrap_or_default(),
            self.metadata.deletion_timestamp.is_some(),
        )
    }
}

// === kinds ===

resource!(PodObject, NamespaceResourceScope, "", "v1", "Pod", "pods");
resource!(
    SliceObject,
    NamespaceResourceScope,
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices"
);
resource!(
    EndpointsObject,
    NamespaceResourceScope,
    "",
    "v1",
    "Endpoints",
    "endpoints"
);
resource!(
    NamespaceObject,
    ClusterResourceScope,
    "",
    "v1",
    "Namespace",
    "namespaces"
);

// === reading ===

impl Subset for PodStatus {
    const KEEP: Keep = Keep::Fields(&[
        ("initContainerStatuses", CONTAINER_STATUS),
        ("containerStatuses", CONTAINER_STATUS),
    ]);
}

const CONTAINER_STATUS: Keep = Keep::Fields(&[
    ("name", Keep::All),
    ("restartCount", Keep::All),
    (
        "state",
        Keep::Fields(&[("waiting", Keep::Fields(&[("reason", Keep::All)]))]),
    ),
    (
        "lastState",
        Keep::Fields(&[("terminated", Keep::Fields(&[("finishedAt", Keep::All)]))]),
    ),
]);

impl Subset for SliceEndpoints {
    const KEEP: Keep = Keep::Fields(&[("conditions", Keep::Fields(&[("ready", Keep::All)]))]);
}

impl Subset for Subsets {
    const KEEP: Keep = Keep::Fields(&[
        ("addresses", Keep::Fields(&[])),
        ("notReadyAddresses", Keep::Fields(&[])),
    ]);
}

fn absent<T: Default>() -> Lenient<T> {
    Lenient::Ok(T::default())
}

fn slice_key(meta: &ObjectMeta) -> Option<SliceKey> {
    Some(SliceKey {
        namespace: meta.namespace.as_deref()?.into(),
        name: meta.name.as_deref()?.into(),
    })
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
