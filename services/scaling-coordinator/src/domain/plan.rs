//! Shows the effect of a direction on a shoot, level by level, before anything is changed.

use std::collections::BTreeMap;
use std::time::Duration;

use watchdog_api::prober::ResourceRef;

use super::Direction;
use super::next_step::{NextStep, Write, plan_step};
use super::observed::Dependent;

/// The action that a plan takes on one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Scale it.
    Scale,
    /// Only remove a leftover annotation.
    CleanUp,
    /// Leave it alone.
    Ignore,
    /// Leave it out: optional and absent.
    SkipAbsent,
    /// Fail: absent and not optional, or not to be worked with.
    Fail,
    /// Wait for its ready replicas, or until more is known of it.
    Wait,
}

/// One resource of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The resource.
    pub reference: ResourceRef,
    /// The planned action.
    pub action: Action,
    /// Its replicas now; `None` when absent or not known.
    pub replicas: Option<i32>,
    /// Its replicas afterwards; `None` when it is not scaled.
    pub target: Option<i32>,
    /// How long after the start of its level.
    pub initial_delay: Duration,
    /// How long one try may take.
    pub timeout: Duration,
    /// One sentence for people.
    pub why: String,
}

/// Plans a direction: what it would do to each resource once the levels before have reached their targets. The levels
/// come in the order in which they run, the resources of a level in configuration order.
#[must_use]
pub fn plan(direction: Direction, dependents: &[Dependent<'_>]) -> BTreeMap<i32, Vec<Planned>> {
    let mut levels = BTreeMap::<i32, Vec<Planned>>::new();
    for dependent in dependents {
        let level = direction.info(dependent.config).level;
        levels
            .entry(level)
            .or_default()
            .push(planned(direction, dependent));
    }
    levels
}

fn planned(direction: Direction, dependent: &Dependent<'_>) -> Planned {
    let planned = plan_step(direction, dependent);
    let action = match &planned.next_step {
        NextStep::Nothing => Action::Nothing,
        NextStep::Ignored => Action::Ignore,
        NextStep::AbsentOptional => Action::SkipAbsent,
        NextStep::Wait | NextStep::Read | NextStep::NotObserved => Action::Wait,
        NextStep::Write(Write::Record { .. } | Write::Scale { .. }) => Action::Scale,
        NextStep::Write(Write::CleanUp) => Action::CleanUp,
        NextStep::Absent | NextStep::Repair => Action::Fail,
    };
    let info = direction.info(dependent.config);
    Planned {
        reference: dependent.config.reference.clone(),
        action,
        replicas: dependent.observed.seen().and_then(|seen| seen.replicas),
        target: planned.target.filter(|_| action == Action::Scale),
        initial_delay: info.initial_delay,
        timeout: info.timeout,
        why: dependent.with_warning(planned.why),
    }
}

#[cfg(test)]
mod tests;
