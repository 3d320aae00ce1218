//! One object in the index.

use k8s_openapi::api::autoscaling::v1::Scale;
use watchdog_api::workload::{RecordedReplicas, Workload};

use crate::cluster::object_index::version_of;
use crate::domain::observed::{Observed, ObservedResource};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourceEntry {
    pub(super) uid: Option<String>,
    pub(super) observed: Observed,
    /// True if the object carries meltdown-protection-active, even if the coordinator cannot use the object.
    pub(super) protected: bool,
}

impl ResourceEntry {
    /// The entry of an object that was known as `old`. Writers that were known stay known: the last annotation of a
    /// watchdog may go together with the change of the replicas, if the watch is quicker than the reconciliation.
    pub(super) fn of(workload: &Workload, scale: Option<&Scale>, old: Option<&Self>) -> Self {
        let mut observed = observed(workload);
        if let Observed::Present(seen) = &mut observed {
            let known = old.and_then(|old| old.observed.seen());
            if seen.writers.is_none() && known.is_some_and(|known| known.writers.is_some()) {
                seen.writers = Some(Box::new(workload.writers()));
            }
            if seen.replicas.is_none() {
                complete(seen, scale, known);
            }
        }
        Self {
            uid: workload.metadata.uid.clone(),
            observed,
            protected: workload.is_meltdown_protected(),
        }
    }
}

/// Adds the replicas that an object does not show: from the scale sub-resource, or as they are known. Those of another
/// version do not count.
fn complete(seen: &mut ObservedResource, scale: Option<&Scale>, known: Option<&ObservedResource>) {
    let version = Some(&*seen.resource_version);
    let scale = scale.filter(|scale| scale.metadata.resource_version.as_deref() == version);
    if let Some(scale) = scale {
        // The API server leaves out a zero.
        seen.replicas = scale.spec.as_ref().map(|spec| spec.replicas.unwrap_or(0));
        if seen.ready == 0 {
            // There is no count of the ready replicas in a scale sub-resource.
            seen.ready = scale.status.as_ref().map_or(0, |status| status.replicas);
        }
    } else if let Some(known) = known.filter(|known| known.resource_version == seen.resource_version) {
        (seen.replicas, seen.ready) = (known.replicas, known.ready);
    }
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
        current: workload.is_observed(),
        recorded: workload.recorded_replicas(),
        protected: workload.is_meltdown_protected(),
        ignore_scaling: workload.ignore_scaling(),
        writers: is_scaled.then(|| Box::new(workload.writers())),
    })
}
