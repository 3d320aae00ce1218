//! Merges the verdicts of all replicas on one shoot. A change of ownership does not withdraw the verdict of the
//! previous owner. It stands until a replica has a newer verdict, or until it expires.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;
use watchdog_api::unix_time::UnixTime;
use watchdog_proto::probe::v1 as pb;
use watchdog_watch_stream::wire::micros;

use super::convert;
use crate::domain::outcome::Outcome;
use crate::domain::verdict::Verdict;

/// A verdict of this replica or of another.
#[derive(Debug, Clone)]
pub(crate) enum ReplicaVerdict {
    Local(Arc<Verdict>),
    /// Of another one, as it was when it was sent.
    Remote(Arc<pb::Verdict>, Instant),
}

/// The verdicts on one shoot.
#[derive(Debug, Default)]
pub(crate) struct ShootVerdicts {
    by_replica: BTreeMap<Arc<str>, ReplicaVerdict>,
    /// The newest verdict of the replicas that no longer report this shoot.
    left_behind: Option<ReplicaVerdict>,
}

// === impl Seen ===

impl ReplicaVerdict {
    /// Converts the verdict to its wire form, with its age as of `now`.
    pub(crate) fn to_proto(&self, shoot: &str, now: UnixTime) -> pb::Verdict {
        match self {
            Self::Local(verdict) => convert::verdict(shoot, verdict, now),
            Self::Remote(verdict, sent_at) => convert::aged(verdict, sent_at.elapsed()),
        }
    }

    fn observed(&self, now: UnixTime) -> UnixTime {
        match self {
            Self::Local(verdict) => verdict.observed_at,
            Self::Remote(verdict, sent_at) => now
                .before(sent_at.elapsed())
                .shifted(-micros(verdict.age.as_ref())),
        }
    }

    fn is_valid(&self, now: UnixTime) -> bool {
        match self {
            Self::Local(verdict) => now < verdict.valid_until,
            Self::Remote(verdict, sent_at) => {
                let passed = i64::try_from(sent_at.elapsed().as_micros()).unwrap_or(i64::MAX);
                micros(verdict.valid_for.as_ref()) > passed
            }
        }
    }

    /// A replica that has just taken over a shoot has no result yet.
    fn is_pending(&self) -> bool {
        match self {
            Self::Local(verdict) => verdict.outcome == Outcome::Pending,
            Self::Remote(verdict, _) => verdict.outcome() == pb::Outcome::Pending,
        }
    }
}

// === impl ShootVerdicts ===

impl ShootVerdicts {
    /// Replaces the verdict of a replica.
    pub(crate) fn upsert(&mut self, replica: &Arc<str>, seen: ReplicaVerdict, now: UnixTime) {
        let supersedes = |old: &ReplicaVerdict| !seen.is_pending() && seen.observed(now) >= old.observed(now);
        if self.left_behind.as_ref().is_some_and(supersedes) {
            self.left_behind = None;
        }
        self.by_replica.insert(replica.clone(), seen);
    }

    /// Removes the verdict of a replica; keeps it as left behind if it is the newest and valid. Returns true if there
    /// was one.
    pub(crate) fn remove(&mut self, replica: &str, now: UnixTime) -> bool {
        let Some(seen) = self.by_replica.remove(replica) else {
            return false;
        };
        let others = self.by_replica.values().filter(|other| !other.is_pending());
        let mut known = others.chain(&self.left_behind);
        let is_newest = known.all(|other| seen.observed(now) > other.observed(now));
        if is_newest && seen.is_valid(now) && !seen.is_pending() {
            self.left_behind = Some(seen);
        }
        true
    }

    /// Drops the verdict left behind if it has expired or the shoot is gone. Returns true if it did.
    pub(crate) fn tidy(&mut self, now: UnixTime, exists: impl FnOnce() -> bool) -> bool {
        let Some(seen) = &self.left_behind else {
            return false;
        };
        if seen.is_valid(now) && exists() {
            return false;
        }
        self.left_behind = None;
        true
    }

    /// The newest verdict. A pending verdict counts only if there is no other.
    pub(crate) fn newest(&self, now: UnixTime) -> Option<&ReplicaVerdict> {
        let known = self.by_replica.values().chain(&self.left_behind);
        known.max_by_key(|seen| (!seen.is_pending(), seen.observed(now)))
    }

    /// Returns true if no verdict is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_replica.is_empty() && self.left_behind.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn seen(outcome: Outcome, observed: i64, valid_until: i64) -> ReplicaVerdict {
        ReplicaVerdict::Local(Arc::new(Verdict {
            outcome,
            failure: "",
            message: String::new(),
            evidence: None,
            observed_at: UnixTime(observed * SECOND),
            valid_until: UnixTime(valid_until * SECOND),
            outcome_since: UnixTime::default(),
            observer: "x".into(),
            traceparent: None,
        }))
    }

    fn outcome(of: &ShootVerdicts, now: i64) -> Option<pb::Outcome> {
        let now = UnixTime(now * SECOND);
        of.newest(now).map(|seen| seen.to_proto("s", now).outcome())
    }

    #[test]
    fn the_verdict_of_a_replica_outlives_it_until_another_has_a_newer_one() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut of = ShootVerdicts::default();
        let at = |seconds: i64| UnixTime(seconds * SECOND);
        of.upsert(&a, seen(Outcome::LeasesExpired, 10, 40), at(10));
        assert!(of.remove("a", at(12)) && !of.remove("a", at(12)));
        assert_eq!(outcome(&of, 12), Some(pb::Outcome::LeasesExpired));
        of.upsert(&b, seen(Outcome::Pending, 13, 50), at(13));
        assert_eq!(outcome(&of, 13), Some(pb::Outcome::LeasesExpired));
        assert!(!of.tidy(at(39), || true), "it is valid");
        of.upsert(&b, seen(Outcome::Healthy, 14, 50), at(14));
        assert_eq!(outcome(&of, 14), Some(pb::Outcome::Healthy));
        assert!(of.left_behind.is_none());
    }

    #[test]
    fn it_ends_with_its_validity_and_with_the_shoot() {
        let a: Arc<str> = "a".into();
        let at = |seconds: i64| UnixTime(seconds * SECOND);
        for (now, exists) in [(40, true), (20, false)] {
            let mut of = ShootVerdicts::default();
            of.upsert(&a, seen(Outcome::Healthy, 10, 40), at(10));
            of.remove("a", at(11));
            assert!(of.tidy(at(now), || exists));
            assert!(of.is_empty() && outcome(&of, now).is_none());
        }
    }

    #[test]
    fn of_two_verdicts_the_newest_counts() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let at = |seconds: i64| UnixTime(seconds * SECOND);
        let mut of = ShootVerdicts::default();
        of.upsert(&b, seen(Outcome::Healthy, 12, 40), at(12));
        of.upsert(&a, seen(Outcome::LeasesExpired, 10, 40), at(12));
        assert_eq!(outcome(&of, 12), Some(pb::Outcome::Healthy));
        of.remove("a", at(13));
        assert!(of.left_behind.is_none(), "b knows more");
        let skipped = watchdog_api::eligibility::SkipReason::Hibernating;
        of.upsert(&a, seen(Outcome::Skipped(skipped), 14, 14), at(14));
        assert_eq!(
            outcome(&of, 14),
            Some(pb::Outcome::Skipped),
            "it need not be valid to count"
        );
    }
}
