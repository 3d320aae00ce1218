//! The objects that the weeder reads, reduced to what it reads of them. Reading one fails only on broken JSON.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{self, ContainerStatus, EndpointSubset, PodStatus};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use watchdog_api::names::{LAST_CHANGE_ANNOTATION, SERVICE_NAME_LABEL};
use watchdog_api::subset::{Keep, Subset};
use watchdog_api::unix_time::UnixTime;
use watchdog_api::{keep, text, trimmed};

use super::malformed;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::{ControllerRef, CrashLoop, Pod};
use crate::domain::readiness::{Endpoints, Slice, SliceWrite};

/// Characters of a termination message that are kept; the kubelet allows 4 KiB.
const MAX_EXIT_MESSAGE: usize = 200;

/// An object of which only this field is kept beside the metadata.
#[derive(Debug, Clone)]
pub(crate) struct TrimmedObject<T> {
    metadata: ObjectMeta,
    kept: Result<T, String>,
}

/// A `v1` Pod.
pub(crate) type PodObject = TrimmedObject<PodStatus>;

/// A `discovery.k8s.io/v1` `EndpointSlice`.
pub(crate) type SliceObject = TrimmedObject<Option<Vec<Endpoint>>>;

/// A `v1` Endpoints: all endpoints of the service of the same name.
pub(crate) type EndpointsObject = TrimmedObject<Option<Vec<EndpointSubset>>>;

// === impl PodObject ===

impl PodObject {
    /// None for a pod that is in no crash loop or is being deleted, and for an object without name, namespace or UID,
    /// or with one that no API server would take.
    pub(crate) fn into_pod(self) -> Option<Pod> {
        let meta = self.metadata;
        let key = key_of(&meta)?;
        let status = self.kept.unwrap_or_else(|reason| {
            malformed("pod", &key.namespace, &key.name, &reason);
            PodStatus::default()
        });
        let is_deleted = meta.deletion_timestamp.is_some();
        let phase = status.phase.clone();
        let crash = CrashLoop::of_pod(is_deleted, phase.as_deref(), containers(status))?;
        let mut owners = meta.owner_references.into_iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        Some(Pod {
            uid: meta.uid?,
            resource_version: meta.resource_version.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            owner: owner.map(|owner| ControllerRef {
                api_version: owner.api_version,
                kind: owner.kind,
                name: owner.name,
                uid: owner.uid,
            }),
            created: moment(meta.creation_timestamp.as_ref()),
            crash,
            key,
        })
    }
}

fn moment(time: Option<&Time>) -> Option<UnixTime> {
    time.map(|Time(time)| UnixTime::from(*time))
}

/// The containers of a pod, each with the reason for which it waits.
fn containers(status: PodStatus) -> impl Iterator<Item = (Option<String>, CrashLoop)> {
    let init = status.init_container_statuses.into_iter().flatten();
    let main = status.container_statuses.into_iter().flatten();
    init.map(|status| container(true, status))
        .chain(main.map(|status| container(false, status)))
}

/// The reason for which a container waits, and how its last run ended.
fn container(init: bool, status: ContainerStatus) -> (Option<String>, CrashLoop) {
    let waiting = status
        .state
        .and_then(|state| state.waiting)
        .and_then(|waiting| waiting.reason);
    let ended = status.last_state.and_then(|state| state.terminated);
    let exit_code = ended.as_ref().map(|ended| ended.exit_code);
    let ended = ended.unwrap_or_default();
    let message = ended.message.unwrap_or_default();
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let crash = CrashLoop {
        container: text::printable_name(&status.name),
        init,
        restarts: status.restart_count,
        exit_code,
        reason: text::printable_name(&ended.reason.unwrap_or_default()),
        message: message
            .chars()
            .filter(|c| text::is_printable(*c))
            .take(MAX_EXIT_MESSAGE)
            .collect(),
        ended_at: moment(ended.finished_at.as_ref()),
    };
    (waiting, crash)
}

/// Unset counts as ready, as the API defines it. With `publishNotReadyAddresses` every endpoint is `ready`, and only
/// `serving` shows the readiness of its pod.
fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.is_none_or(|conditions| conditions.ready.unwrap_or(true) && conditions.serving.unwrap_or(true))
}

/// A slice with these endpoints, by whether each is ready. A malformed object counts as having none.
fn slice(
    kind: &'static str,
    meta: &ObjectMeta,
    service: Option<Arc<str>>,
    endpoints: Result<Vec<bool>, &String>,
) -> Option<Slice> {
    let key = key_of(meta)?;
    let endpoints = endpoints.map(Endpoints::of).unwrap_or_else(|reason| {
        malformed(kind, &key.namespace, &key.name, reason);
        Endpoints::default()
    });
    let triggered = meta
        .annotations
        .as_ref()
        .and_then(|all| all.get(LAST_CHANGE_ANNOTATION));
    Some(Slice {
        key,
        service,
        endpoints,
        write: write(meta),
        triggered: triggered.and_then(|at| Some(UnixTime::from(at.parse::<jiff::Timestamp>().ok()?))),
    })
}

/// The last write of an object. API servers put their own time into managedFields.
fn write(meta: &ObjectMeta) -> Option<SliceWrite> {
    let times = meta.managed_fields.iter().flatten();
    let second = times.filter_map(|entry| moment(entry.time.as_ref())).max()?;
    let version = meta.resource_version.as_ref()?.parse().ok()?;
    Some(SliceWrite { second, version })
}

// === impl SliceObject ===

impl SliceObject {
    /// None when the object has no name or namespace.
    pub(crate) fn into_slice(self) -> Option<Slice> {
        let labels = self.metadata.labels.as_ref();
        let service = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL));
        let service = service.and_then(|service| text::name(service).ok());
        let endpoints = self.kept.as_ref();
        let endpoints = endpoints.map(|all| all.iter().flatten().map(is_ready).collect());
        slice("endpointslice", &self.metadata, service, endpoints)
    }
}

// === impl EndpointsObject ===

impl EndpointsObject {
    /// The one slice of its service; none when the object has no name or namespace.
    pub(crate) fn into_slice(self) -> Option<Slice> {
        let endpoints = self.kept.as_ref().map(|subsets| {
            let addresses = subsets.iter().flatten().flat_map(|subset| {
                let ready = subset.addresses.iter().flatten().map(|_| true);
                ready.chain(subset.not_ready_addresses.iter().flatten().map(|_| false))
            });
            addresses.collect()
        });
        let service = self.metadata.name.as_deref().map(Into::into);
        slice("endpoints", &self.metadata, service, endpoints)
    }
}

// === kinds ===

trimmed!(PodObject, v1::Pod);
trimmed!(SliceObject, EndpointSlice);
trimmed!(EndpointsObject, v1::Endpoints);

// === reading ===

/// The metadata that the weeder needs; of managedFields, which are often half of the object, only the times.
const METADATA: Keep = keep! {
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels",
    "ownerReferences", "annotations" => { LAST_CHANGE_ANNOTATION }, "managedFields" => { "time" },
};

/// Reads metadata. Other than for `watchdog_api`, an object with broken metadata has no name: the weeder deletes by
/// labels and owners, and must not act on what it only half understands.
fn metadata(object: &Subset) -> ObjectMeta {
    object.field("metadata").unwrap_or_else(|reason| {
        malformed("metadata", "", "", &reason);
        ObjectMeta::default()
    })
}

/// A field of an object.
pub(crate) trait KeptField: DeserializeOwned + Default {
    const NAME: &'static str;
    /// Its parts that are kept.
    const KEEP: Keep;
    const OBJECT: Keep = Keep::Fields(&[("metadata", METADATA), (Self::NAME, Self::KEEP)]);
}

impl KeptField for PodStatus {
    const NAME: &'static str = "status";
    const KEEP: Keep = Keep::Fields(&[
        ("phase", Keep::All),
        ("initContainerStatuses", CONTAINER_STATUS),
        ("containerStatuses", CONTAINER_STATUS),
    ]);
}

const CONTAINER_STATUS: Keep = keep! {
    "name",
    "restartCount",
    "state" => {
        "waiting" => { "reason" },
    },
    "lastState" => { "terminated" => { "exitCode", "reason", "message", "finishedAt" } },
};

impl KeptField for Option<Vec<Endpoint>> {
    const NAME: &'static str = "endpoints";
    const KEEP: Keep = keep! { "conditions" => { "ready", "serving" } };
}

impl KeptField for Option<Vec<EndpointSubset>> {
    const NAME: &'static str = "subsets";
    const KEEP: Keep = keep! { "addresses" => {}, "notReadyAddresses" => {} };
}

impl<'de, T: KeptField> Deserialize<'de> for TrimmedObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Subset::read(deserializer, &T::OBJECT)?;
        Ok(Self {
            metadata: metadata(&object),
            kept: object.field(T::NAME),
        })
    }
}

/// None without a name that an API server would take: it is in every message about the object.
fn key_of(meta: &ObjectMeta) -> Option<NamespacedName> {
    Some(NamespacedName {
        namespace: text::name(meta.namespace.as_deref()?).ok()?,
        name: text::name(meta.name.as_deref()?).ok()?,
    })
}

#[cfg(test)]
mod tests;
