//! The observed state of the resources of a shoot.

use std::sync::Arc;

use watchdog_api::names::COORDINATOR_FIELD_MANAGER;
use watchdog_api::prober::DependentResource;
use watchdog_api::workload::{FieldWriters, IgnoreScaling, RecordedReplicas};

use super::Direction;

/// A resource that exists, as last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedResource {
    /// The version that every write takes as its precondition.
    pub resource_version: Arc<str>,
    /// Wanted replicas; `None` when the object does not show them and the scale sub-resource has to be read.
    pub replicas: Option<i32>,
    /// Ready replicas.
    pub ready: i32,
    /// True if the ready replicas are those of an earlier status, because only the scale sub-resource shows how many
    /// Pods exist.
    pub outdated: bool,
    /// True if the status refers to the current specification.
    pub current: bool,
    /// The replica count that was recorded before it was scaled down.
    pub recorded: RecordedReplicas,
    /// True if the resource carries meltdown-protection-active.
    pub protected: bool,
    /// Its annotation ignore-scaling.
    pub ignore_scaling: IgnoreScaling,
    /// The last writers of its replicas and of meltdown-protection-active, where a watchdog scales it or has scaled it.
    /// Nearly all resources are in memory without them.
    pub writers: Option<Box<FieldWriters>>,
}

/// How many Pods of an object are ready. `shown` is its `status.readyReplicas`, which a kind need not have; `pods` is
/// how many exist.
pub(crate) fn ready_pods(shown: Option<i32>, has_shown_ready: bool, pods: i32) -> i32 {
    match shown {
        Some(ready) => ready,
        // Controllers leave out a zero.
        None if has_shown_ready => 0,
        None => pods,
    }
}

impl ObservedResource {
    /// True if the coordinator itself has set meltdown-protection-active, and not another watchdog.
    #[must_use]
    pub fn is_protected_by_coordinator(&self) -> bool {
        let writer = self
            .writers
            .as_deref()
            .and_then(|writers| writers.protection.as_deref());
        self.protected && writer == Some(COORDINATOR_FIELD_MANAGER)
    }

    /// Returns true if the coordinator has scaled it to fewer replicas than are recorded. That it does so to more than
    /// zero is rare: `scaleDown.replicas` of this configuration or of an earlier one.
    pub(crate) fn is_lowered(&self) -> bool {
        let writers = self.writers.as_deref();
        let writer = writers.and_then(|writers| writers.replicas.as_deref());
        let is_fewer = match (&self.recorded, self.replicas) {
            (RecordedReplicas::Count(recorded), Some(replicas)) => replicas < *recorded,
            _ => false,
        };
        self.protected && is_fewer && writer == Some(COORDINATOR_FIELD_MANAGER)
    }

    /// Counts the writes of another watchdog, whose place this one takes, as the coordinator's own.
    pub(crate) fn count_as_own(&mut self, predecessor: &str) {
        let Some(writers) = self.writers.as_deref_mut() else {
            return;
        };
        for writer in [&mut writers.replicas, &mut writers.protection] {
            if writer.as_deref() == Some(predecessor) {
                *writer = Some(COORDINATOR_FIELD_MANAGER.to_owned());
            }
        }
    }

    pub(crate) fn is_ignored(&self) -> bool {
        self.ignore_scaling == IgnoreScaling::Yes
    }

    /// A clause about an annotation that an operator has to correct.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let IgnoreScaling::Invalid(text) = &self.ignore_scaling else {
            return None;
        };
        Some(format!(
            "its annotation ignore-scaling is {text:?}, which is neither true nor false, so it is scaled as usual"
        ))
    }
}

/// The observed state of a configured resource of a shoot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// It exists.
    Present(ObservedResource),
    /// It does not exist.
    Absent,
    /// It is being deleted: as good as absent, its controller stops its pods.
    Deleting,
    /// It exists and cannot be worked with, for this reason.
    Unusable(String),
    /// It was not seen yet. A read shows it, and so does the list of its kind.
    NotListed,
    /// The state is not known yet and cannot be read, for this reason.
    Unknown(String),
}

impl Dependent {
    /// Returns true if a direction concerns the resource. One that was dropped from the configuration is only restored,
    /// and the coordinator removes meltdown-protection-active once that is done: from then on the resource belongs to
    /// others, and the coordinator may lack the permission to read it.
    pub(super) fn counts(&self, direction: Direction) -> bool {
        let is_protected = self.observed.seen().is_some_and(|seen| seen.protected);
        !self.dropped || (direction == Direction::Up && is_protected)
    }

    /// Returns true if a read has shown just now how many Pods are ready.
    pub(super) fn is_read(&self) -> bool {
        self.read && !self.observed.seen().is_some_and(|seen| seen.outdated)
    }

    /// Adds to a message the annotation that an operator has to correct, if there is one.
    #[must_use]
    pub(crate) fn with_warning(&self, message: String) -> String {
        match self.observed.seen().and_then(ObservedResource::warning) {
            Some(warning) => format!("{message}; {warning}"),
            None => message,
        }
    }
}

impl Observed {
    /// The resource, where it exists.
    #[must_use]
    pub const fn seen(&self) -> Option<&ObservedResource> {
        match self {
            Self::Present(seen) => Some(seen),
            _ => None,
        }
    }
}

/// A configured resource and what is seen of it in one shoot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependent {
    /// How it is configured.
    pub config: Arc<DependentResource>,
    /// True if the resource is no longer configured. The coordinator restores it if it is held down, and otherwise
    /// leaves it alone.
    pub dropped: bool,
    /// The observed state.
    pub observed: Observed,
    /// True if a read has shown this state just now.
    pub read: bool,
}
