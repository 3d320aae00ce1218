//! Derives a resource's next step in one direction from its observed state, and from nothing that a crash could lose
//! (S6).
//!
//! Each write leaves a state from which the next one follows:
//!
//! ```text
//! down:  n replicas --Scale--> 0 replicas, recorded n, protected
//! up:    0 replicas, recorded n, protected --Scale--> n replicas, protected; ready --CleanUp--> n replicas
//! ```
//!
//! Kinds that have only a scale sub-resource take two writes down, because that sub-resource has no annotations:
//!
//! ```text
//! down:  n replicas --Record--> n replicas, recorded n, protected --Scale--> 0 replicas, recorded n, protected
//! ```

use std::fmt;

use watchdog_api::names::{
    COORDINATOR_FIELD_MANAGER, DEFAULT_SCALE_DOWN_REPLICAS, DEFAULT_SCALE_UP_REPLICAS,
};
use watchdog_api::prober::{DependentResource, ResourceRef};
use watchdog_api::workload::RecordedReplicas;

use super::Direction;
use super::observed::{Dependent, Observed, ObservedResource};

/// One change of a resource, sent with the version that the decision was based on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceWrite {
    /// Record the replicas and set meltdown-protection-active: the first of two steps down.
    Record {
        /// Replicas to record.
        replicas: i32,
    },
    /// Set the replicas.
    Scale {
        /// Replicas before.
        from: i32,
        /// Replicas afterwards.
        to: i32,
        /// True if the same patch records `from` and sets meltdown-protection-active.
        record: bool,
        /// The recorded count that could not be read, where `to` had to be taken from elsewhere.
        unreadable: Option<String>,
    },
    /// Remove meltdown-protection-active.
    CleanUp,
}

impl fmt::Display for ResourceWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record { replicas } => write!(f, "record {replicas} replicas"),
            Self::Scale {
                from,
                to,
                record: false,
                ..
            } => write!(f, "scale from {from} to {to}"),
            Self::Scale { from, to, .. } => write!(f, "record {from} replicas and scale to {to}"),
            Self::CleanUp => f.write_str("remove meltdown-protection-active"),
        }
    }
}

impl ResourceWrite {
    /// Returns true if mode observe sends this write all the same: it restores what this program itself holds down
    /// (S6), and nobody else has scaled since. Another watchdog that scales down what is being restored finds the
    /// annotation there, and changes only the replicas.
    pub(crate) fn restores_own(&self, direction: Direction, seen: &ObservedResource) -> bool {
        let is_clean_up = *self == Self::CleanUp;
        let writers = seen.writers.as_deref();
        let replicas = writers.and_then(|writers| writers.replicas.as_deref());
        (direction != Direction::Down || is_clean_up)
            && seen.is_protected_by_coordinator()
            && (is_clean_up || replicas.is_none_or(|replicas| replicas == COORDINATOR_FIELD_MANAGER))
    }

    /// Returns true if the observed state is the one that this write leaves; `None` if the state does not show it.
    pub(crate) fn shows_in(&self, seen: &ObservedResource) -> Option<bool> {
        match self {
            Self::Record { replicas } => {
                Some(seen.protected && seen.recorded == RecordedReplicas::Count(*replicas))
            }
            Self::Scale { to, record, .. } => seen
                .replicas
                .map(|replicas| replicas == *to && (seen.protected || !record)),
            Self::CleanUp => Some(!seen.protected),
        }
    }
}

/// Returns true if the replica count of a kind is known to be `spec.replicas`, so that one patch of the object changes
/// it together with the annotations.
pub(crate) fn has_spec_replicas(reference: &ResourceRef) -> bool {
    reference.group() == "apps" && matches!(&*reference.kind, "Deployment" | "StatefulSet")
}

/// The next step of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResourceStep {
    /// Nothing: it is where the direction wants it.
    Nothing,
    Ignored,
    AbsentOptional,
    /// It is absent and not optional. On the way down that counts as zero, with a Warning.
    Missing,
    /// Only that its ready replicas reach the target.
    Wait,
    Write(ResourceWrite),
    /// Its replicas, or how many Pods are ready, have to be read from the scale sub-resource first.
    Read,
    /// Somebody must repair it: it is absent on the way up and not optional, or cannot be worked with. No retry can
    /// mend that.
    Repair,
    /// Nothing is known of it yet. It is read if that matters, and if it can be.
    NotObserved,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedStep {
    pub(crate) step: ResourceStep,
    /// The replicas that the direction wants; `None` where it wants none in particular.
    pub(crate) target: Option<i32>,
    pub(crate) why: String,
}

impl ResourceStep {
    /// Returns true if the next level need not wait for the resource.
    pub(crate) const fn is_done(&self) -> bool {
        matches!(
            self,
            Self::Nothing | Self::Ignored | Self::AbsentOptional | Self::Missing
        )
    }
}

pub(crate) fn plan_step(direction: Direction, dependent: &Dependent) -> PlannedStep {
    let config = &dependent.config;
    if direction == Direction::Release {
        return release(&dependent.observed);
    }
    if !dependent.counts(direction) {
        return plain(
            ResourceStep::Nothing,
            "it is no longer configured; the coordinator will only restore it",
        );
    }
    let absent = |state| {
        let (step, note) = match direction {
            _ if config.optional => {
                return plain(
                    ResourceStep::AbsentOptional,
                    format!("it is optional and {state}"),
                );
            }
            Direction::Down => (
                ResourceStep::Missing,
                ", which counts as scaled to 0: check the configuration",
            ),
            Direction::Up | Direction::Release => (ResourceStep::Repair, ""),
        };
        plain(step, format!("it is {state} and not optional{note}"))
    };
    match &dependent.observed {
        Observed::Present(seen) if seen.is_ignored() => ignored(seen),
        Observed::Present(seen) => {
            let planned = match (seen.replicas, direction) {
                (None, _) => plain(
                    ResourceStep::Read,
                    "its replicas must be read from its scale subresource",
                ),
                (Some(replicas), Direction::Down) => down(config, seen, replicas),
                (Some(replicas), _) => up(config, seen, replicas),
            };
            match planned.step {
                ResourceStep::Wait if seen.outdated => PlannedStep {
                    step: ResourceStep::Read,
                    ..planned
                },
                _ => planned,
            }
        }
        Observed::Absent => absent("absent"),
        Observed::Deleting => absent("being deleted"),
        Observed::Unusable(why) => plain(ResourceStep::Repair, why.as_str()),
        Observed::NotListed => plain(ResourceStep::NotObserved, "its objects are not listed yet"),
        Observed::Unknown(why) => plain(ResourceStep::NotObserved, why.as_str()),
    }
}

fn release(observed: &Observed) -> PlannedStep {
    if observed.seen().is_some_and(|seen| seen.protected) {
        plain(
            ResourceStep::Write(ResourceWrite::CleanUp),
            "it carries meltdown-protection-active, and the shoot is no longer protected",
        )
    } else {
        plain(ResourceStep::Nothing, "the shoot is no longer protected")
    }
}

fn plain(step: ResourceStep, why: impl Into<String>) -> PlannedStep {
    PlannedStep {
        step,
        target: None,
        why: why.into(),
    }
}

fn ignored(seen: &ObservedResource) -> PlannedStep {
    if seen.protected {
        plain(
            ResourceStep::Write(ResourceWrite::CleanUp),
            "it carries ignore-scaling and a leftover meltdown-protection-active",
        )
    } else {
        plain(ResourceStep::Ignored, "it carries ignore-scaling")
    }
}

fn down(config: &DependentResource, seen: &ObservedResource, replicas: i32) -> PlannedStep {
    let target = down_target(config);
    let (step, why) = if replicas > target {
        let is_lowered = seen.is_lowered();
        let record = has_spec_replicas(&config.reference) && !is_lowered;
        let recorded = seen.protected && seen.recorded == RecordedReplicas::Count(replicas);
        let write = if record || recorded || is_lowered {
            ResourceWrite::Scale {
                from: replicas,
                to: target,
                record,
                unreadable: None,
            }
        } else {
            ResourceWrite::Record { replicas }
        };
        (
            ResourceStep::Write(write),
            format!("it has {replicas} replicas, target {target}"),
        )
    } else if seen.ready > target {
        (
            ResourceStep::Wait,
            format!("it is scaled to {replicas}, but {} are still ready", seen.ready),
        )
    } else if !seen.current {
        (
            ResourceStep::Wait,
            format!("it is scaled to {replicas}, but its status is not updated yet"),
        )
    } else {
        (ResourceStep::Nothing, format!("it is scaled to {replicas}"))
    };
    // Never up: a resource that has fewer replicas than the configuration wants keeps them.
    PlannedStep {
        step,
        target: Some(target.min(replicas)),
        why,
    }
}

fn up(config: &DependentResource, seen: &ObservedResource, replicas: i32) -> PlannedStep {
    let (restored, source, unreadable) = up_target(config, seen);
    // Only with `scaleDown.replicas` above 0 can something be held down that still has replicas.
    let held_down = seen.protected && replicas <= down_target(config) && replicas < restored;
    if replicas == 0 || held_down || seen.is_lowered() {
        let write = ResourceWrite::Scale {
            from: replicas,
            to: restored,
            record: false,
            unreadable,
        };
        return PlannedStep {
            step: ResourceStep::Write(write),
            target: Some(restored),
            why: format!("it has {replicas} replicas, target {restored} ({source})"),
        };
    }
    let (step, why) = if !seen.current {
        (
            ResourceStep::Wait,
            format!("it is scaled to {replicas}, but its status is not updated yet"),
        )
    } else if seen.ready < 1 {
        (
            ResourceStep::Wait,
            format!("it is scaled to {replicas}, but none is ready yet"),
        )
    } else if seen.protected {
        (
            ResourceStep::Write(ResourceWrite::CleanUp),
            format!("it is scaled to {replicas}, and meltdown-protection-active is still set"),
        )
    } else {
        (
            ResourceStep::Nothing,
            format!("it is scaled to {replicas}, {} are ready", seen.ready),
        )
    };
    PlannedStep {
        step,
        target: Some(replicas),
        why,
    }
}

fn down_target(config: &DependentResource) -> i32 {
    config.scale_down.replicas.unwrap_or(DEFAULT_SCALE_DOWN_REPLICAS)
}

/// How many replicas to restore, where that number is from, and the recorded text if it could not be read.
fn up_target(config: &DependentResource, seen: &ObservedResource) -> (i32, &'static str, Option<String>) {
    let (fallback, source) = match config.scale_up.replicas {
        Some(replicas) => (replicas, "as configured"),
        None => (DEFAULT_SCALE_UP_REPLICAS, "the default"),
    };
    match &seen.recorded {
        RecordedReplicas::Count(count) => (*count, "as recorded", None),
        RecordedReplicas::Absent => (fallback, source, None),
        RecordedReplicas::Unreadable(text) => (fallback, source, Some(text.clone())),
    }
}

#[cfg(test)]
mod tests;
