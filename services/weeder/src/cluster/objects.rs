//! Reads from the objects of the seed what the rules need.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::api::discovery::v1::Endpoint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use watchdog_api::names::{LAST_CHANGE_ANNOTATION, SERVICE_NAME_LABEL};
use watchdog_api::text;
use watchdog_api::trimmed_object::{EndpointsObject, PodObject, SliceObject, TrimmedObject};
use watchdog_api::unix_time::UnixTime;

use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::{ControllerRef, CrashLoop, Pod};
use crate::domain::readiness::{Endpoints, Slice, SliceWrite};
use crate::metrics::{MALFORMED, ObjectKind};

/// Characters of a termination message that are kept; the kubelet allows 4 KiB.
const MAX_EXIT_MESSAGE: usize = 200;

/// None for a pod that is in no crash loop or is being deleted, and for an object without name, namespace or UID, or
/// with one that no API server would take.
pub(crate) fn pod(object: PodObject) -> Option<Pod> {
    let key = key_of(&object)?;
    let meta = object.metadata;
    let status = object.kept.unwrap_or_else(|reason| {
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

/// The slice of an object, with these endpoints, by whether each is ready. A malformed object counts as having none.
fn slice_of<T>(
    kind: &'static str,
    object: &TrimmedObject<T>,
    service: Option<Arc<str>>,
    is_ready: impl FnOnce(&T) -> Vec<bool>,
) -> Option<Slice> {
    let key = key_of(object)?;
    let endpoints = match &object.kept {
        Ok(kept) => Endpoints::of(is_ready(kept)),
        Err(reason) => {
            malformed(kind, &key.namespace, &key.name, reason);
            Endpoints::default()
        }
    };
    let meta = &object.metadata;
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

/// None when the object has no name or namespace.
pub(crate) fn slice(object: SliceObject) -> Option<Slice> {
    let labels = object.metadata.labels.as_ref();
    let service = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL));
    let service = service.and_then(|service| text::name(service).ok());
    slice_of("endpointslice", &object, service, |endpoints| {
        endpoints.iter().flatten().map(is_ready).collect()
    })
}

/// The one slice of its service; none when the object has no name or namespace.
pub(crate) fn slice_of_endpoints(object: EndpointsObject) -> Option<Slice> {
    let service = object.metadata.name.as_deref().map(Into::into);
    slice_of("endpoints", &object, service, |subsets| {
        let addresses = subsets.iter().flatten().flat_map(|subset| {
            let ready = subset.addresses.iter().flatten().map(|_| true);
            ready.chain(subset.not_ready_addresses.iter().flatten().map(|_| false))
        });
        addresses.collect()
    })
}

/// None without a name that an API server would take: it is in every message about the object.
fn key_of<T>(object: &TrimmedObject<T>) -> Option<NamespacedName> {
    if let Some(reason) = &object.metadata_fault {
        malformed("metadata", "", "", reason);
    }
    let meta = &object.metadata;
    Some(NamespacedName {
        namespace: text::name(meta.namespace.as_deref()?).ok()?,
        name: text::name(meta.name.as_deref()?).ok()?,
    })
}

/// Says that an object cannot be read.
fn malformed(kind: &'static str, namespace: &str, name: &str, reason: &str) {
    MALFORMED.inc(ObjectKind(kind));
    tracing::warn!(kind, namespace, name, error = reason, "object cannot be read");
}

#[cfg(test)]
mod tests;
