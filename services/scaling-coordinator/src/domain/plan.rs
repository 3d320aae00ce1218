//! Shows the effect of a direction on a shoot, level by level, before anything is changed.

use std::collections::BTreeMap;

use super::Direction;
use super::observed::Dependent;
use super::resource_step::{PlannedStep, plan_step};

/// Levels in the order in which they run, with their resources in configuration order.
pub(crate) type PlannedLevels = BTreeMap<i32, Vec<(Dependent, PlannedStep)>>;

/// The effect that a direction would have on a shoot now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShootPlan {
    pub(crate) direction: Direction,
    pub(crate) levels: PlannedLevels,
    /// True if everything except the verdict allows the coordinator to act on the shoot now.
    pub(crate) allowed: bool,
    /// One sentence for people: why or why not.
    pub(crate) reason: String,
}

/// Plans a direction: what it would do to each resource once the levels before have reached their targets.
pub(crate) fn plan(direction: Direction, dependents: Vec<Dependent>) -> PlannedLevels {
    let mut levels = PlannedLevels::new();
    for dependent in dependents {
        let level = direction.info(&dependent.config).level;
        let planned = plan_step(direction, &dependent);
        levels.entry(level).or_default().push((dependent, planned));
    }
    levels
}
