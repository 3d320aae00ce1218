//! Shows the effect of a direction on a shoot, level by level, before anything is changed.

use std::collections::BTreeMap;
use std::time::Duration;

use watchdog_api::prober::ResourceRef;

use super::Direction;
use super::observed::Dependent;
use super::resource_step::{ResourceStep, ResourceWrite, plan_step};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) reference: ResourceRef,
    pub(crate) step: ResourceStep,
    /// Its replicas now; `None` when absent or not known.
    pub(crate) replicas: Option<i32>,
    /// Its replicas afterwards; `None` when it is not scaled.
    pub(crate) target: Option<i32>,
    /// How long after the start of its level.
    pub(crate) initial_delay: Duration,
    /// How long one try may take.
    pub(crate) timeout: Duration,
    /// One sentence for people.
    pub(crate) why: String,
}

/// The effect that a direction would have on a shoot now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShootPlan {
    /// Its levels, in the order in which they would run.
    pub(crate) levels: BTreeMap<i32, Vec<Planned>>,
    /// True if everything except the verdict allows the coordinator to act on the shoot now.
    pub(crate) allowed: bool,
    /// One sentence for people: why or why not.
    pub(crate) reason: String,
}

/// Plans a direction: what it would do to each resource once the levels before have reached their targets. The levels
/// come in the order in which they run, the resources of a level in configuration order.
pub(crate) fn plan(direction: Direction, dependents: &[Dependent<'_>]) -> BTreeMap<i32, Vec<Planned>> {
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
    let scales = matches!(&planned.step, ResourceStep::Write(write) if *write != ResourceWrite::CleanUp);
    let info = direction.info(dependent.config);
    Planned {
        reference: dependent.config.reference.clone(),
        step: planned.step,
        replicas: dependent.observed.seen().and_then(|seen| seen.replicas),
        target: planned.target.filter(|_| scales),
        initial_delay: info.initial_delay,
        timeout: info.timeout,
        why: dependent.with_warning(planned.why),
    }
}

#[cfg(test)]
mod tests;
