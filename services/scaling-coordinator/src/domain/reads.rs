//! The reads on which the next writes of a shoot may rest.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::prober::ResourceRef;

/// A write may rest on a read since the last writes of the same turn, and on one that ended less than this ago.
const JUST_NOW: Duration = Duration::from_secs(1);

/// A write may rest on a Cluster that was read since then, or less than this ago: the next level often follows
/// within seconds. The watch reports a change meanwhile, and hibernation begins with other steps than replica counts.
const CLUSTER_LASTS: Duration = Duration::from_secs(5);

/// When the resources of a shoot and its Cluster were read.
#[derive(Debug, Default)]
pub(crate) struct ReadTimes {
    /// Of each resource: its last read, or the last answer that showed what a write has made of it.
    resources: BTreeMap<ResourceRef, Instant>,
    cluster: Option<Instant>,
    /// When the reads began on which the next writes rest. On a slow API server they take longer than [`JUST_NOW`].
    round_began: Option<Instant>,
}

impl ReadTimes {
    /// A turn has begun, or its last writes have ended: what was read before them says nothing about those that follow.
    pub(crate) const fn begin_round(&mut self, now: Instant) {
        self.round_began = Some(now);
    }

    pub(crate) const fn end_turn(&mut self) {
        self.round_began = None;
    }

    pub(crate) fn note(&mut self, now: Instant, reference: &ResourceRef) {
        self.resources.insert(reference.clone(), now);
    }

    /// After a write without a good answer the state of the resource is not known.
    pub(crate) fn forget(&mut self, reference: &ResourceRef) {
        self.resources.remove(reference);
    }

    pub(crate) const fn note_cluster(&mut self, now: Instant) {
        self.cluster = Some(now);
    }

    /// True if a write may rest on the last read of this resource.
    pub(crate) fn covers(&self, now: Instant, reference: &ResourceRef) -> bool {
        let read_at = self.resources.get(reference);
        read_at.is_some_and(|at| self.is_recent(now, *at, JUST_NOW))
    }

    /// True if a write may rest on the last read of the Cluster.
    pub(crate) fn covers_cluster(&self, now: Instant) -> bool {
        self.cluster
            .is_some_and(|at| self.is_recent(now, at, CLUSTER_LASTS))
    }

    fn is_recent(&self, now: Instant, at: Instant, lasts: Duration) -> bool {
        now < at + lasts || self.round_began.is_some_and(|began| began <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing::{S, dependent, start};

    #[test]
    fn a_write_rests_on_what_was_read_in_its_round_or_just_now() {
        let (begin, kcm) = (start(), dependent("kcm", 0, 0).reference);
        let mut reads = ReadTimes::default();
        assert!(!reads.covers(begin, &kcm) && !reads.covers_cluster(begin));
        reads.note(begin, &kcm);
        reads.note_cluster(begin);
        let just_before_end = |lasts| begin + lasts - Duration::from_millis(1);
        assert!(reads.covers(just_before_end(JUST_NOW), &kcm) && !reads.covers(begin + JUST_NOW, &kcm));
        assert!(reads.covers_cluster(just_before_end(CLUSTER_LASTS)));
        assert!(!reads.covers_cluster(begin + CLUSTER_LASTS));
        // On a slow API server the other reads of the round take longer.
        let late = begin + 60 * S;
        reads.begin_round(begin);
        assert!(reads.covers(late, &kcm) && reads.covers_cluster(late));
        reads.begin_round(begin + S);
        assert!(
            !reads.covers(late, &kcm) && !reads.covers_cluster(late),
            "of a round before"
        );
        reads.begin_round(begin);
        reads.end_turn();
        assert!(
            !reads.covers(late, &kcm) && !reads.covers_cluster(late),
            "of a turn before"
        );
    }

    #[test]
    fn a_write_without_a_good_answer_makes_a_resource_unknown() {
        let (now, kcm, mcm) = (
            start(),
            dependent("kcm", 0, 0).reference,
            dependent("mcm", 0, 0).reference,
        );
        let mut reads = ReadTimes::default();
        reads.note(now, &kcm);
        reads.note(now, &mcm);
        reads.forget(&kcm);
        assert!(!reads.covers(now, &kcm) && reads.covers(now, &mcm));
    }
}
