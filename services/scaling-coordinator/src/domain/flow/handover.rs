//! What a replica may believe of the resources of a shoot that it has taken over.
//!
//! Its watches are independent of each other, and each may lag behind. Its own writes carry the version that they rest
//! on, so a watch that lags can only make them miss. But a level may look *reached* only because the watch has not
//! brought yet what the replica before has done to it, and then the next level would start too early (S3). So before a
//! write, every resource of the levels before it that only *looks* as if it were where it should be is read once, by a
//! consistent read. A resource that was written by this replica needs none: what is seen of it is at least as new as
//! the write. A loss in a shoot where nothing was down before therefore costs no read at all but for what is absent or
//! left alone.

use std::collections::BTreeSet;

use watchdog_api::prober::ResourceRef;

use super::op::Outcome;
use crate::domain::Direction;
use crate::domain::next_step::{NextStep, PlannedStep};
use crate::domain::observed::Dependent;

/// What is known since this replica took the shoot over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Handover {
    confirmed: BTreeSet<ResourceRef>,
    /// Under way since before: what comes of these tells nothing about the time since.
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
    pub(super) fn ended(&mut self, reference: &ResourceRef, outcome: &Outcome) {
        if !self.earlier.remove(reference) && *outcome == Outcome::Done {
            self.confirmed.insert(reference.clone());
        }
    }

    /// Turns what merely looks done into something to be read, where a write of a later level would rest on it.
    /// Without any write there is nothing to be read.
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
            // Whatever there is to be seen of a dropped resource, nothing follows from it going down.
            let irrelevant = dependent.dropped && direction == Direction::Down;
            let believed = irrelevant
                || !planned.next_step.is_done()
                || self.confirmed.contains(&dependent.config.reference);
            if level(dependent) < last && !believed {
                planned.next_step = NextStep::Read;
                planned.why.push_str(
                    ", as far as the watch tells; this replica has just taken the shoot over and reads it once",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
