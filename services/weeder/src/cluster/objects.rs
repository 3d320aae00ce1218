//! The objects that the weeder reads, reduced to what it reads of them. Reading one fails only on broken JSON.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{self, ContainerStatus, EndpointSubset, ObjectReference, PodStatus};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;
use watchdog_api::lenient::{Keep, Lenient, Subset};
use watchdog_api::names::SERVICE_NAME_LABEL;
use watchdog_api::{keep, trimmed};

use super::malformed;
use super::trimmed::meta;
use crate::domain::evidence::{ContainerStop, EndpointPod};
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::namespaces::Namespace;
use crate::domain::pods::{ControllerRef, CrashLoop, Pod};
use crate::domain::readiness::{Endpoints, Slice};
use watchdog_api::unix_time::UnixTime;

/// Characters of a termination message that are kept; the kubelet allows 4 KiB.
const MAX_EXIT_MESSAGE: usize = 200;

/// A `v1` Pod.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PodObject {
    #[serde(default, deserialize_with = "meta")]
    metadata: ObjectMeta,
    #[serde(default)]
    status: Lenient<TrimmedPodStatus>,
}

/// A `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SliceObject {
    #[serde(default, deserialize_with = "meta")]
    metadata: ObjectMeta,
    #[serde(default)]
    endpoints: Lenient<SliceEndpoints>,
}

/// A `v1` Endpoints: all endpoints of the service of the same name.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct EndpointsObject {
    #[serde(default, deserialize_with = "meta")]
    metadata: ObjectMeta,
    #[serde(default)]
    subsets: Lenient<Subsets>,
}

/// A `v1` Namespace.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NamespaceObject {
    #[serde(default, deserialize_with = "meta")]
    metadata: ObjectMeta,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
struct TrimmedPodStatus(PodStatus);

/// The endpoints of a slice. Null is how Go writes none.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
struct SliceEndpoints(Option<Vec<Endpoint>>);

/// The subsets of an Endpoints. Null is how Go writes none.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
struct Subsets(Option<Vec<EndpointSubset>>);

// === impl PodObject ===

impl PodObject {
    /// None when the object has no name, namespace or UID.
    pub(crate) fn into_pod(self) -> Option<Pod> {
        let meta = self.metadata;
        let key = key_of(&meta)?;
        let (mut restarted, mut containers, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        match self.status {
            Lenient::Ok(TrimmedPodStatus(status)) => {
                let stays_down = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
                let init = status.init_container_statuses.unwrap_or_default().into_iter();
                let main = status.container_statuses.unwrap_or_default().into_iter();
                let init = init.map(|status| (true, status));
                let main = main.map(|status| (false, status));
                for (init, status) in init.chain(main) {
                    let ended_at = ended_at(&status);
                    if status.restart_count > 0 {
                        restarted.push(status.name.clone());
                    }
                    if status.restart_count > 0 || ended_at.is_some() {
                        ends.push(ended_at);
                    }
                    // kubelet starts nothing again in a pod that has ended, such as one that was evicted.
                    if !stays_down {
                        containers.push(crash_loop(init, status));
                    }
                }
            }
            Lenient::Malformed(reason) => malformed("pod", &key.namespace, &key.name, &reason),
        }
        let owner = controller(meta.owner_references.as_deref());
        Some(Pod {
            uid: meta.uid?,
            resource_version: meta.resource_version.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            owner: owner.map(|owner| ControllerRef {
                api_version: owner.api_version.clone(),
                kind: owner.kind.clone(),
                name: owner.name.clone(),
                uid: owner.uid.clone(),
            }),
            created: moment(meta.creation_timestamp.as_ref()),
            deleting: meta.deletion_timestamp.is_some(),
            restarted,
            crashes: CrashLoop::of(containers),
            last_ended: ends
                .into_iter()
                .collect::<Option<Vec<_>>>()
                .and_then(|ends| ends.into_iter().max()),
            key,
        })
    }

    /// For a pod behind an endpoint.
    pub(crate) fn endpoint_pod(&self) -> EndpointPod {
        let owner = controller(self.metadata.owner_references.as_deref());
        let status = self.status.as_result().ok();
        let mut conditions = status
            .and_then(|TrimmedPodStatus(status)| status.conditions.as_ref())
            .into_iter()
            .flatten();
        let ready = conditions.find(|condition| condition.type_ == "Ready");
        EndpointPod {
            created: moment(self.metadata.creation_timestamp.as_ref()),
            ready: ready.and_then(|ready| {
                let since = moment(ready.last_transition_time.as_ref())?;
                Some((ready.status == "True", since))
            }),
            replaces_in_place: owner.is_some_and(|owner| owner.kind == "StatefulSet"),
            stops: status.map(container_stops).unwrap_or_default(),
        }
    }
}

fn controller(owners: Option<&[OwnerReference]>) -> Option<&OwnerReference> {
    owners
        .unwrap_or_default()
        .iter()
        .find(|owner| owner.controller == Some(true))
}

fn moment(time: Option<&Time>) -> Option<UnixTime> {
    time.map(|Time(time)| UnixTime::from(*time))
}

/// When a container failed last: a moment ago, or before its present run.
fn ended_at(status: &ContainerStatus) -> Option<UnixTime> {
    let failed = status.state.as_ref().and_then(|state| state.terminated.as_ref());
    let failed = failed.filter(|ended| ended.exit_code != 0);
    let before = status
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    moment(failed.or(before)?.finished_at.as_ref())
}

/// The last time that each container of a pod did not run.
fn container_stops(TrimmedPodStatus(status): &TrimmedPodStatus) -> Vec<ContainerStop> {
    let containers = status.container_statuses.iter().flatten();
    let stop = |container: &ContainerStatus| {
        let ended = container.last_state.as_ref()?.terminated.as_ref()?;
        let running = container.state.as_ref().and_then(|state| state.running.as_ref());
        Some(ContainerStop {
            ended_at: moment(ended.finished_at.as_ref())?,
            started_at: moment(running?.started_at.as_ref())?,
        })
    };
    containers.filter_map(stop).collect()
}

/// The reason for which a container waits, and how its last run ended.
fn crash_loop(init: bool, status: ContainerStatus) -> (Option<String>, CrashLoop) {
    let waiting = status.state.and_then(|state| state.waiting);
    let ended = status.last_state.and_then(|state| state.terminated);
    let exit_code = ended.as_ref().map(|ended| ended.exit_code);
    let ended = ended.unwrap_or_default();
    let message = ended.message.unwrap_or_default();
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let crash = CrashLoop {
        container: status.name,
        init,
        restarts: status.restart_count,
        exit_code,
        reason: ended.reason.unwrap_or_default(),
        message: message
            .chars()
            .filter(|c| !c.is_control())
            .take(MAX_EXIT_MESSAGE)
            .collect(),
        ended_at: moment(ended.finished_at.as_ref()),
    };
    (waiting.and_then(|waiting| waiting.reason), crash)
}

/// Unset counts as ready, as the API defines it. With `publishNotReadyAddresses` every endpoint is `ready`, and only
/// `serving` shows the readiness of its pod.
fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.is_none_or(|conditions| conditions.ready.unwrap_or(true) && conditions.serving.unwrap_or(true))
}

/// A slice with these endpoints: whether each is ready, and its target. A malformed object counts as having none.
fn slice(
    kind: &'static str,
    key: NamespacedName,
    service: Option<Arc<str>>,
    endpoints: Result<Vec<(bool, Option<&ObjectReference>)>, &str>,
) -> Slice {
    let is_pod = |target: &&ObjectReference| target.kind.as_deref() == Some("Pod");
    let pod = |target: Option<&ObjectReference>| target.filter(is_pod)?.name.as_deref().map(Into::into);
    let (endpoints, pods) = match endpoints {
        Ok(endpoints) => (
            Endpoints::of(endpoints.iter().map(|(ready, _)| *ready)),
            endpoints.into_iter().map(|(_, target)| pod(target)).collect(),
        ),
        Err(reason) => {
            malformed(kind, &key.namespace, &key.name, reason);
            (Endpoints::default(), None)
        }
    };
    Slice {
        key,
        service,
        endpoints,
        pods,
    }
}

// === impl SliceObject ===

impl SliceObject {
    /// None when the object has no name or namespace.
    pub(crate) fn into_slice(self) -> Option<Slice> {
        let key = key_of(&self.metadata)?;
        let service = self
            .metadata
            .labels
            .and_then(|mut labels| labels.remove(SERVICE_NAME_LABEL));
        let endpoints = self.endpoints.as_result().map(|SliceEndpoints(endpoints)| {
            let endpoints = endpoints.iter().flatten();
            endpoints
                .map(|endpoint| (is_ready(endpoint), endpoint.target_ref.as_ref()))
                .collect()
        });
        Some(slice("endpointslice", key, service.map(Into::into), endpoints))
    }
}

// === impl EndpointsObject ===

impl EndpointsObject {
    /// The one slice of its service; none when the object has no name or namespace.
    pub(crate) fn into_slice(self) -> Option<Slice> {
        let key = key_of(&self.metadata)?;
        let endpoints = self.subsets.as_result().map(|Subsets(subsets)| {
            let addresses = subsets.iter().flatten().flat_map(|subset| {
                let ready = subset.addresses.iter().flatten().map(|address| (true, address));
                let not_ready = subset.not_ready_addresses.iter().flatten();
                ready.chain(not_ready.map(|address| (false, address)))
            });
            addresses
                .map(|(ready, address)| (ready, address.target_ref.as_ref()))
                .collect()
        });
        let service = Some(key.name.clone());
        Some(slice("endpoints", key, service, endpoints))
    }
}

// === impl NamespaceObject ===

impl NamespaceObject {
    /// With its name; none when the object has none.
    pub(crate) fn into_namespace(self) -> Option<(String, Namespace)> {
        let namespace = Namespace {
            uid: self.metadata.uid.unwrap_or_default(),
            terminating: self.metadata.deletion_timestamp.is_some(),
        };
        Some((self.metadata.name?, namespace))
    }
}

// === kinds ===

trimmed!(PodObject, v1::Pod);
trimmed!(SliceObject, EndpointSlice);
trimmed!(EndpointsObject, v1::Endpoints);
trimmed!(NamespaceObject, v1::Namespace);

// === reading ===

impl Subset for TrimmedPodStatus {
    const KEEP: Keep = Keep::Fields(&[
        ("phase", Keep::All),
        ("conditions", keep! { "type", "status", "lastTransitionTime" }),
        ("initContainerStatuses", CONTAINER_STATUS),
        ("containerStatuses", CONTAINER_STATUS),
    ]);
}

const CONTAINER_STATUS: Keep = keep! {
    "name",
    "restartCount",
    "state" => {
        "waiting" => { "reason" },
        "running" => { "startedAt" },
        "terminated" => { "exitCode", "finishedAt" },
    },
    "lastState" => { "terminated" => { "exitCode", "reason", "message", "finishedAt" } },
};

impl Subset for SliceEndpoints {
    const KEEP: Keep = keep! {
        "conditions" => { "ready", "serving" },
        "targetRef" => { "kind", "name" },
    };
}

impl Subset for Subsets {
    const KEEP: Keep = keep! {
        "addresses" => { "targetRef" => { "kind", "name" } },
        "notReadyAddresses" => { "targetRef" => { "kind", "name" } },
    };
}

fn key_of(meta: &ObjectMeta) -> Option<NamespacedName> {
    Some(NamespacedName {
        namespace: meta.namespace.as_deref()?.into(),
        name: meta.name.as_deref()?.into(),
    })
}

#[cfg(test)]
mod tests;
