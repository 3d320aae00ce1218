//! One object in the index.

use std::sync::Arc;

use watchdog_api::workload::{IgnoreScaling, RecordedReplicas, Workload};

use crate::domain::observed::{Observed, ObservedResource};

/// The content of the scale sub-resource for one version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedScale {
    pub(crate) version: Arc<str>,
    pub(crate) replicas: i32,
    /// Replicas that exist: there is no count of the ready ones in a scale sub-resource.
    pub(crate) existing: i32,
}

#[derive(Debug)]
pub(super) struct ResourceEntry {
    pub(super) uid: Option<String>,
    pub(super) observed: Observed,
    /// True if the object carries meltdown-protection-active, even if the coordinator cannot use the object.
    pub(super) protected: bool,
    pub(super) scale: Option<ObservedScale>,
}

impl ResourceEntry {
    /// The entry of an object that was known as `old`. Writers that were known stay known: the last annotation of a
    /// watchdog may go together with the change of the replicas, if the watch is quicker than the reconciliation.
    pub(super) fn of(workload: &Workload, version: Arc<str>, old: Option<&Self>) -> Self {
        let mut observed = observed(workload, version);
        let had_writers =
            old.is_some_and(|old| old.observed.seen().is_some_and(|seen| seen.writers.is_some()));
        if let Observed::Present(seen) = &mut observed
            && had_writers
            && seen.writers.is_none()
        {
            seen.writers = Some(Box::new(workload.writers()));
        }
        Self {
            uid: workload.metadata.uid.clone(),
            observed,
            protected: workload.is_meltdown_protected(),
            // That of another version does not count.
            scale: old.and_then(|old| old.scale.clone()),
        }
    }

    pub(super) fn observed(&self) -> Observed {
        match (&self.observed, &self.scale) {
            (Observed::Present(seen), Some(scale))
                if seen.replicas.is_none() && scale.version == seen.resource_version =>
            {
                let ready = if seen.ready > 0 {
                    seen.ready
                } else {
                    scale.existing
                };
                Observed::Present(ObservedResource {
                    replicas: Some(scale.replicas),
                    ready,
                    ..seen.clone()
                })
            }
            (observed, _) => observed.clone(),
        }
    }
}

fn observed(workload: &Workload, resource_version: Arc<str>) -> Observed {
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
    let ignore_scaling = workload.ignore_scaling();
    let is_scaled =
        workload.is_meltdown_protected() || workload.recorded_replicas() != RecordedReplicas::Absent;
    Observed::Present(ObservedResource {
        resource_version,
        replicas,
        ready,
        current: workload.is_observed(),
        recorded: workload.recorded_replicas(),
        protected: workload.is_meltdown_protected(),
        ignored: ignore_scaling == IgnoreScaling::Yes,
        invalid_ignore_scaling: match ignore_scaling {
            IgnoreScaling::Invalid(text) => Some(text),
            IgnoreScaling::Yes | IgnoreScaling::No => None,
        },
        writers: is_scaled.then(|| Box::new(workload.writers())),
    })
}
