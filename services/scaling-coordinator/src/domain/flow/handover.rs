//! Confirms the observed state of the resources of a shoot that this replica has taken over.
//!
//! The replica's watches are independent of each other, and each may lag. Its own writes carry the version that they
//! rest on, so a lagging watch can only make them miss. But a level may look *reached* only because the watch has not
//! delivered the previous owner's writes yet, and then the next level would start too early (S3). So before a write,
//! the replica reads once, by a consistent read, every resource of the earlier levels that only *looks* as if it were
//! at its target. A resource that this replica has written needs no read: its observed state is at least as new as the
//! write. A loss in a shoot where nothing was down before therefore costs no reads, except of resources that are absent
//! or ignored.

use std::collections::BTreeSet;

use watchdog_api::prober::ResourceRef;

use super::op::ActionOutcome;
use crate::domain::Direction;
use crate::domain::next_step::{NextStep, PlannedStep};
use crate::domain::observed::Dependent;

/// The knowledge gained since this replica took the shoot over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Handover {
    confirmed: BTreeSet<ResourceRef>,
    /// Resources with a request from before the handover, whose outcome proves nothing about the time since.
    earlier: BTreeSet<ResourceRef>,
}

impl Handover {
    /// The shoot was taken over, perhaps not for the first time, with requests under way on these resources.
    pub(super) fn begins(under_way: impl Iterator<Item = ResourceRef>) -> Self {
        Self {
            confirmed: BTreeSet::new(),
            earlier: under_way.collect(),
        }
    }

    /// A request on a resource has ended.
    pub(super) fn ended(&mut self, reference: &ResourceRef, outcome: &ActionOutcome) {
        let is_newest = matches!(outcome, ActionOutcome::Done | ActionOutcome::KeptBack);
        if !self.earlier.remove(reference) && is_newest {
            self.confirmed.insert(reference.clone());
        }
    }

    /// Turns steps that merely look done into reads if a write of a later level would rest on them. Without any write,
    /// nothing must be read.
    pub(super) fn require_confirmed_reads(
        &self,
        direction: Direction,
        planned_steps: &mut [(&Dependent<'_>, PlannedStep)],
    ) {
        let level = |dependent: &Dependent<'_>| direction.info(dependent.config).level;
        let writes = planned_steps
            .iter()
            .filter(|(_, planned)| matches!(planned.next_step, NextStep::Write(_)));
        let Some(last) = writes.map(|(dependent, _)| level(dependent)).max() else {
            return;
        };
        for (dependent, planned) in planned_steps {
            // On the way down, nothing follows from the observed state of a dropped resource.
            let irrelevant = dependent.dropped && direction == Direction::Down;
            let believed = irrelevant
                || !planned.next_step.is_done()
                || self.confirmed.contains(&dependent.config.reference);
            if level(dependent) < last && !believed {
                planned.next_step = NextStep::Read;
                planned.why.push_str(
                    ", as far as the watch shows; this replica has just taken the shoot over and reads it once",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
