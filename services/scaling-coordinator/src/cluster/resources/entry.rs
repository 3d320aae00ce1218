//! One object in the index.

use k8s_openapi::api::autoscaling::v1::Scale;
use watchdog_api::workload::{RecordedReplicas, Workload, WorkloadStatus};

use crate::cluster::object_index::version_of;
use crate::domain::observed::{Observed, ObservedResource};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourceEntry {
    pub(super) uid: Option<String>,
    pub(super) observed: Observed,
    /// True if the object carries meltdown-protection-active, even if the coordinator cannot use the object.
    pub(super) protected: bool,
    /// The Pods that exist, by the status or by the scale sub-resource.
    pub(super) pods: i32,
}

impl ResourceEntry {
    /// The entry of an object that was known as `old`. Writers that were known stay known: the last annotation of a
    /// watchdog may go together with the change of the replicas, if the watch is quicker than the reconciliation.
    pub(super) fn of(
        workload: &Workload,
        scale: Option<&Scale>,
        old: Option<&Self>,
        shows_ready: bool,
    ) -> Self {
        let mut observed = observed(workload);
        let status = workload.status.as_ref().ok();
        let mut pods = status.and_then(|status| status.replicas).unwrap_or(0);
        if let Observed::Present(seen) = &mut observed {
            let known = old.and_then(|old| old.observed.seen());
            if seen.writers.is_none() && known.is_some_and(|known| known.writers.is_some()) {
                seen.writers = Some(Box::new(workload.writers()));
            }
            if needs_scale(workload, shows_ready) {
                seen.replicas = None;
                pods = complete(seen, scale, old).unwrap_or(pods);
            }
        }
        Self {
            uid: workload.metadata.uid.clone(),
            observed,
            protected: workload.is_meltdown_protected(),
            pods,
        }
    }
}

/// True if only the scale sub-resource shows how many replicas are wanted, or how many Pods exist. `shows_ready` says
/// that objects of this kind show how many are ready.
pub(super) fn needs_scale(workload: &Workload, shows_ready: bool) -> bool {
    let shows_pods = |status: &WorkloadStatus| status.replicas.or(status.ready_replicas).is_some();
    let lacks_pods = workload.status.as_ref().is_ok_and(|status| !shows_pods(status));
    matches!(workload.replicas, Ok(None)) || (lacks_pods && !shows_ready)
}

/// Adds the replicas that an object does not show: from the scale sub-resource, or as they are known. Those of another
/// version do not count. Returns the Pods that exist.
fn complete(
    seen: &mut ObservedResource,
    scale: Option<&Scale>,
    known: Option<&ResourceEntry>,
) -> Option<i32> {
    let version = Some(&*seen.resource_version);
    let scale = scale.filter(|scale| scale.metadata.resource_version.as_deref() == version);
    if let Some(scale) = scale {
        // The API server leaves out a zero.
        seen.replicas = scale.spec.as_ref().map(|spec| spec.replicas.unwrap_or(0));
        return scale.status.as_ref().map(|status| status.replicas);
    }
    let (known, pods) = known.and_then(|known| Some((known.observed.seen()?, known.pods)))?;
    let is_same = known.resource_version == seen.resource_version;
    seen.replicas = known.replicas.filter(|_| is_same);
    is_same.then_some(pods)
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
