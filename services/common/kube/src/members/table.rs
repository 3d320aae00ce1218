//! The rule by which members are live: no I/O and no clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Identity;

/// A member whose Lease did not change for this time, in which lists were answered, is not live.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);

/// Members that are read at most. A seed needs a handful.
pub const MAX_MEMBERS: u32 = 64;

/// Between two lists at most this long counts: in a longer pause this process, or the API server, may have stood still.
const LONGEST_STEP: Duration = Duration::from_secs(8);

/// Leases that did not change for this long are deleted: Pods that die one after the other, each with a new name, must
/// not leave so many that a live replica is not among [`MAX_MEMBERS`].
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// The live members: identity to gRPC address.
pub type Members = BTreeMap<Identity, Arc<str>>;

/// A membership Lease as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObservedMember {
    pub(super) identity: Identity,
    pub(super) address: Arc<str>,
    /// Its name.
    pub(super) lease: String,
    pub(super) uid: String,
    pub(super) version: String,
}

/// The members as they were seen.
#[derive(Debug, Default)]
pub(super) struct MemberTable {
    /// Each with the time for which its Lease did not change.
    members: BTreeMap<Identity, (ObservedMember, Duration)>,
    listed_at: Option<Instant>,
}

impl MemberTable {
    /// Takes over a list that was answered at `now`. Returns true if it is the first one.
    pub(super) fn listed(&mut self, now: Instant, listed: Vec<ObservedMember>) -> bool {
        let before = self.listed_at.replace(now);
        let step = before.map_or(Duration::ZERO, |last| now.duration_since(last));
        let step = step.min(LONGEST_STEP);
        let mut known = std::mem::take(&mut self.members);
        for last in listed.into_iter().take(MAX_MEMBERS as usize) {
            // One that is seen for the first time counts as live: its replica may have just started.
            let same = known
                .remove(&last.identity)
                .filter(|(known, _)| (&known.uid, &known.version) == (&last.uid, &last.version));
            let unchanged_for = same.map_or(Duration::ZERO, |(_, before)| before.saturating_add(step));
            let identity = Arc::clone(&last.identity);
            self.members.insert(identity, (last, unchanged_for));
        }
        before.is_none()
    }

    /// The live members by the last list.
    pub(super) fn live(&self) -> Members {
        let members = self.members.values();
        let live = members.filter(|(_, unchanged_for)| *unchanged_for < LEASE_DURATION);
        live.map(|(member, _)| (member.identity.clone(), member.address.clone()))
            .collect()
    }

    /// The Leases of members that died long ago.
    pub(super) fn abandoned(&self) -> Vec<ObservedMember> {
        let members = self.members.values();
        let abandoned = members.filter(|(_, unchanged_for)| *unchanged_for >= ABANDONED_AFTER);
        abandoned.map(|(member, _)| member.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(identity: &str, version: u64) -> ObservedMember {
        ObservedMember {
            identity: identity.into(),
            address: "10.0.0.1:1".into(),
            lease: identity.to_owned(),
            uid: "u".to_owned(),
            version: version.to_string(),
        }
    }

    fn names(table: &MemberTable) -> Vec<String> {
        table.live().keys().map(ToString::to_string).collect()
    }

    /// A clock of which only the differences count.
    fn clock() -> impl Fn(u64) -> Instant {
        let start = Instant::now();
        move |seconds| start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_member_lives_while_its_lease_changes() {
        let (mut table, at) = (MemberTable::default(), clock());
        for turn in 0..4 {
            table.listed(at(5 * turn), vec![seen("a", turn), seen("b", 0)]);
            let expected: &[&str] = if turn < 3 { &["a", "b"] } else { &["a"] };
            assert_eq!(names(&table), expected, "{turn}");
        }
        table.listed(at(20), vec![seen("a", 4), seen("b", 1)]);
        assert_eq!(names(&table), ["a", "b"], "it is back");
        table.listed(at(25), vec![seen("b", 1)]);
        assert_eq!(names(&table), ["b"], "a has left");
    }

    #[test]
    fn an_outage_in_which_nobody_could_renew_kills_nobody() {
        let (mut table, at) = (MemberTable::default(), clock());
        table.listed(at(0), vec![seen("a", 0), seen("b", 0)]);
        table.listed(at(600), vec![seen("a", 0), seen("b", 0)]);
        assert_eq!(names(&table), ["a", "b"]);
        table.listed(at(605), vec![seen("a", 1), seen("b", 0)]);
        assert_eq!(names(&table), ["a", "b"]);
        table.listed(at(610), vec![seen("a", 2), seen("b", 0)]);
        assert_eq!(names(&table), ["a"], "it could have renewed its Lease for 15 s");
    }

    /// Pods that are evicted leave their Leases, and their successors have new names.
    #[test]
    fn replicas_that_die_one_after_the_other_hide_no_live_one() {
        let (mut table, at) = (MemberTable::default(), clock());
        let mut leases = BTreeMap::new();
        for turn in 0..720 {
            leases.insert("z".to_owned(), seen("z", turn));
            for pod in 0..3 {
                let name = format!("a-{turn}-{pod}");
                leases.insert(name.clone(), seen(&name, 0));
            }
            // An API server lists them by name.
            let listed = leases.values().take(MAX_MEMBERS as usize).cloned();
            table.listed(at(5 * turn), listed.collect());
            assert!(names(&table).contains(&"z".to_owned()), "in turn {turn}");
            for dead in table.abandoned() {
                leases.remove(&dead.lease);
            }
        }
    }

    #[test]
    fn the_lease_of_a_member_that_died_long_ago_is_abandoned_and_strangers_are_bounded() {
        let (mut table, at) = (MemberTable::default(), clock());
        for turn in 0..=12 {
            assert_eq!(table.abandoned(), []);
            table.listed(at(5 * turn), vec![seen("a", turn), seen("b", 7)]);
        }
        assert_eq!(table.abandoned(), [seen("b", 7)]);
        let many = (0..1000).map(|stranger| seen(&format!("x-{stranger}"), 0));
        table.listed(at(5_000), many.collect());
        assert_eq!(table.live().len(), MAX_MEMBERS as usize);
    }
}
