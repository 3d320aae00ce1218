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
use crate::domain::needs::{Assessment, Need};
use crate::domain::sight::Item;

/// What is known since this replica took the shoot over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Tenure {
    confirmed: BTreeSet<ResourceRef>,
    /// Under way since before: what comes of these tells nothing about the time since.
    earlier: BTreeSet<ResourceRef>,
}

impl Tenure {
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
    pub(super) fn doubt(&self, direction: Direction, assessed: &mut [(&Item<'_>, Assessment)]) {
        let level = |item: &Item<'_>| direction.info(item.dependent).level;
        let writes = assessed
            .iter()
            .filter(|(_, assessment)| matches!(assessment.need, Need::Write(_)));
        let Some(last) = writes.map(|(item, _)| level(item)).max() else {
            return;
        };
        for (item, assessment) in assessed {
            // Whatever there is to be seen of a dropped resource, nothing follows from it going down.
            let irrelevant = item.dropped && direction == Direction::Down;
            let believed = irrelevant
                || !assessment.need.is_done()
                || self.confirmed.contains(&item.dependent.reference);
            if level(item) < last && !believed {
                assessment.need = Need::Read;
                assessment.why.push_str(
                    ", as far as the watch tells; this replica has just taken the shoot over and reads it once",
                );
            }
        }
    }
}

#[cfg(test)]
#[path = "tenure_tests.rs"]
mod tests;
