//! One object in the index.

use k8s_openapi::api::autoscaling::v1::Scale;
use watchdog_api::prober::ResourceRef;
use watchdog_api::workload::{RecordedReplicas, Workload};

use crate::cluster::object_index::version_of;
use crate::domain::observed::{Observed, ObservedResource, ready_pods};
use crate::domain::resource_step::has_spec_replicas;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourceEntry {
    pub(super) uid: Option<String>,
    generation: Option<i64>,
    pub(super) observed: Observed,
    /// True if the object carries meltdown-protection-active, even if the coordinator cannot use the object.
    pub(super) protected: bool,
    /// True once the object has shown that Pods are ready. What is missing from then on is a zero, which controllers
    /// leave out.
    has_shown_ready: bool,
    /// The Pods that exist, by the scale sub-resource.
    pods: i32,
}

impl ResourceEntry {
    /// The entry of an object that was known as `old`. Writers that were known stay known: the last annotation of a
    /// watchdog may go together with the change of the replicas, if the watch is quicker than the reconciliation.
    pub(super) fn of(
        reference: &ResourceRef,
        workload: &Workload,
        scale: Option<&Scale>,
        old: Option<&Self>,
    ) -> Self {
        let (mut observed, mut pods) = (observed(workload), 0);
        let has_shown_ready = has_shown_ready(reference, workload, old);
        if let Observed::Present(seen) = &mut observed {
            let known = old.and_then(|old| old.observed.seen());
            if seen.writers.is_none() && known.is_some_and(|known| known.writers.is_some()) {
                seen.writers = Some(Box::new(workload.writers()));
            }
            if needs_scale(reference, workload, old) {
                (seen.replicas, pods) = completed(workload, seen, scale, old);
                seen.outdated &= lacks_pods(reference, workload, old);
            }
            let status = workload.status.clone().unwrap_or_default();
            let exist = status.replicas.unwrap_or(pods);
            seen.ready = ready_pods(status.ready_replicas, has_shown_ready, exist);
        }
        Self {
            uid: workload.metadata.uid.clone(),
            generation: workload.metadata.generation,
            observed,
            protected: workload.is_meltdown_protected(),
            has_shown_ready,
            pods,
        }
    }
}

fn has_shown_ready(reference: &ResourceRef, workload: &Workload, old: Option<&ResourceEntry>) -> bool {
    let before = old.filter(|old| old.uid == workload.metadata.uid);
    has_spec_replicas(reference)
        || workload.ready_replicas().is_ok_and(|ready| ready > 0)
        || before.is_some_and(|before| before.has_shown_ready)
}

/// True if only the scale sub-resource shows how many replicas are wanted, or how many Pods exist.
pub(super) fn needs_scale(reference: &ResourceRef, workload: &Workload, old: Option<&ResourceEntry>) -> bool {
    matches!(workload.replicas, Ok(None)) || lacks_pods(reference, workload, old)
}

fn lacks_pods(reference: &ResourceRef, workload: &Workload, old: Option<&ResourceEntry>) -> bool {
    workload.status.as_ref().is_ok_and(|status| {
        status.replicas.is_none()
            && status.ready_replicas.is_none()
            && !has_shown_ready(reference, workload, old)
    })
}

/// The wanted replicas and the Pods that exist, of an object that does not show them: from the scale sub-resource of
/// this version, or as they are known. While its generation stays the same, an object wants the same replicas, so a
/// write of its status outdates nothing but the Pods.
fn completed(
    workload: &Workload,
    seen: &mut ObservedResource,
    scale: Option<&Scale>,
    known: Option<&ResourceEntry>,
) -> (Option<i32>, i32) {
    let version = Some(&*seen.resource_version);
    let scale = scale.filter(|scale| scale.metadata.resource_version.as_deref() == version);
    if let Some(scale) = scale {
        // The API server leaves out a zero.
        let replicas = scale.spec.as_ref().map(|spec| spec.replicas.unwrap_or(0));
        return (
            replicas,
            scale.status.as_ref().map_or(0, |status| status.replicas),
        );
    }
    let Some((known, before)) = known.and_then(|known| Some((known, known.observed.seen()?))) else {
        return (None, 0);
    };
    let metadata = &workload.metadata;
    let is_same_version = before.resource_version == seen.resource_version;
    let is_same_spec = metadata.generation.is_some()
        && (&metadata.uid, metadata.generation) == (&known.uid, known.generation);
    if !is_same_version && !is_same_spec {
        return (None, 0);
    }
    seen.outdated = before.outdated || !is_same_version;
    (before.replicas, known.pods)
}

fn observed(workload: &Workload) -> Observed {
    if workload.metadata.deletion_timestamp.is_some() {
        return Observed::Deleting;
    }
    let replicas = match &workload.replicas {
        Ok(replicas) => *replicas,
        Err(why) => return Observed::Unusable(format!("its spec cannot be read: {why}")),
    };
    let ready = match workload.ready_replicas() {
        Ok(ready) => ready,
        Err(why) => return Observed::Unusable(format!("its status cannot be read: {why}")),
    };
    let is_scaled =
        workload.is_meltdown_protected() || workload.recorded_replicas() != RecordedReplicas::Absent;
    Observed::Present(ObservedResource {
        resource_version: version_of(&workload.metadata).into(),
        replicas,
        ready,
        outdated: false,
        current: workload.is_observed(),
        recorded: workload.recorded_replicas(),
        protected: workload.is_meltdown_protected(),
        ignore_scaling: workload.ignore_scaling(),
        writers: is_scaled.then(|| Box::new(workload.writers())),
    })
}
