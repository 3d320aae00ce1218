//! The reports of the replicas on one key. A replica that stops to report the key does not withdraw its last
//! report: that stands until another replica has one, or for a while.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::item::StreamItem;

/// The report of a replica that does not report the key any more stands at least this long: another witness is found
/// after 18 s at most, and reports at once. A verdict stands for as long as it is valid, if that is longer.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(30);

/// The report of one replica on a key.
#[derive(Debug, Clone)]
pub(crate) struct ReplicaReport<M> {
    /// The item as it was at `as_of`.
    pub(crate) item: Arc<M>,
    pub(crate) as_of: Instant,
    /// When its replica set it.
    pub(crate) set_at: Instant,
}

/// The reports of all replicas on one key.
#[derive(Debug)]
pub(crate) struct Reports<M> {
    by_replica: Vec<(Arc<str>, ReplicaReport<M>)>,
    /// The newest report of the replicas that do not report this key any more, and until when it stands.
    left_behind: Option<(ReplicaReport<M>, Instant)>,
    /// The replica whose report counted last.
    shown: Option<Arc<str>>,
    /// When subscribers need the next renewal of what they were sent.
    renewal_due: Option<Instant>,
    /// True if there is one that they have not been sent.
    renewed: bool,
}

// === impl ReplicaReport ===

impl<M> PartialEq for ReplicaReport<M> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.item, &other.item) && self.as_of == other.as_of
    }
}

impl<M: StreamItem> ReplicaReport<M> {
    /// The item now.
    pub(crate) fn now(&self) -> M {
        let mut item = M::clone(&self.item);
        item.age(self.as_of.elapsed());
        item
    }

    fn stands_until(&self, now: Instant) -> Instant {
        (now + KEPT_FOR).max(self.as_of + self.item.valid_for())
    }
}

// === impl Reports ===

impl<M> Default for Reports<M> {
    fn default() -> Self {
        Self {
            by_replica: Vec::new(),
            left_behind: None,
            shown: None,
            renewal_due: None,
            renewed: false,
        }
    }
}

impl<M: StreamItem> Reports<M> {
    /// Replaces the report of a replica.
    pub(crate) fn upsert(&mut self, replica: &Arc<str>, report: ReplicaReport<M>) {
        if !report.item.is_provisional() {
            self.left_behind = None;
        }
        match self.by_replica.iter_mut().find(|(of, _)| of == replica) {
            Some((_, old)) => *old = report,
            None => {
                // Nearly every item has the report of one replica only.
                self.by_replica.reserve_exact(1);
                self.by_replica.push((replica.clone(), report));
            }
        }
    }

    /// Removes the report of a replica. With `keep`, it is left behind if no other replica has one. Returns true if
    /// there was one.
    pub(crate) fn remove(&mut self, replica: &str, keep: bool, now: Instant) -> bool {
        let Some(at) = self.by_replica.iter().position(|(of, _)| **of == *replica) else {
            return false;
        };
        let (_, report) = self.by_replica.swap_remove(at);
        let mut others = self.by_replica.iter();
        let replaced = others.any(|(_, other)| !other.item.is_provisional());
        let older_is_left = self.left_behind.is_some() && report.item.is_provisional();
        if keep && !replaced && !older_is_left {
            let until = report.stands_until(now);
            self.left_behind = Some((report, until));
        }
        true
    }

    /// Drops what was left behind if its time is over, and, if the item is gone, what replicas that are lost have
    /// reported. Returns true if that changed anything.
    pub(crate) fn tidy(
        &mut self,
        now: Instant,
        exists: impl Fn() -> bool,
        is_lost: impl Fn(&str) -> bool,
    ) -> bool {
        let lost = self.by_replica.iter().any(|(of, _)| is_lost(of));
        if !lost && self.left_behind.is_none() {
            return false;
        }
        let exists = exists();
        let before = self.by_replica.len();
        self.by_replica.retain(|(of, _)| exists || !is_lost(of));
        let over = |(_, until): &mut (ReplicaReport<M>, Instant)| !exists || *until <= now;
        self.left_behind.take_if(over).is_some() || self.by_replica.len() < before
    }

    /// The report that counts: that of the newest list, and of two on the same list the newest one. A provisional one,
    /// or one whose validity is over, only if there is no other. Of two witnesses that say the same, the one whose
    /// report counted before goes on until half of its validity is over: readers get it once.
    pub(crate) fn newest(&mut self, now: Instant) -> Option<&ReplicaReport<M>> {
        let reported = self.by_replica.iter().map(|(of, report)| (Some(of), report));
        let left_behind = self.left_behind.iter().map(|(report, _)| (None, report));
        let rank = |report: &ReplicaReport<M>| {
            let is_valid = now < report.as_of + report.item.valid_for();
            let settled = !report.item.is_provisional();
            (settled, is_valid, report.item.revision(), report.set_at)
        };
        let (of, newest) = reported
            .chain(left_behind)
            .max_by_key(|(_, report)| rank(report))?;
        let shown = self.shown.as_ref();
        let before = self.by_replica.iter().find(|(of, _)| Some(of) == shown);
        if let Some((_, before)) = before
            && now < before.as_of + before.item.valid_for() / 2
            && before.item.agrees_with(&newest.item)
        {
            return Some(before);
        }
        self.shown = of.cloned();
        Some(newest)
    }

    /// Notes a report that subscribers are sent now. They need the next one when half of its validity is over.
    pub(crate) fn note_sent(&mut self, report: &ReplicaReport<M>, now: Instant) {
        let valid_until = report.as_of + report.item.valid_for();
        self.renewal_due = Some(now + valid_until.saturating_duration_since(now) / 2);
        self.renewed = false;
    }

    /// Notes a renewal. Returns false if it cannot wait.
    pub(crate) fn defer_renewal(&mut self, now: Instant) -> bool {
        self.renewed = self.renewal_due.is_some_and(|due| now < due);
        self.renewed
    }

    /// Returns true if a renewal has waited until subscribers need it.
    pub(crate) fn renewal_is_due(&self, now: Instant) -> bool {
        self.renewed && self.renewal_due.is_none_or(|due| due <= now)
    }

    /// The replicas that report this key.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_replica.iter().map(|(replica, _)| replica)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.by_replica.is_empty() && self.left_behind.is_none()
    }
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1 as pb;
    use watchdog_proto::probe::v1::Outcome::{self, Healthy, LeasesExpired, Pending};

    use super::*;
    use crate::wire::duration;

    const SECOND: Duration = Duration::from_secs(1);

    /// A verdict that was set `set` seconds after the start and is valid for 40 s.
    fn report(outcome: Outcome, start: Instant, set: u32) -> ReplicaReport<pb::Verdict> {
        let item = pb::Verdict {
            outcome: outcome.into(),
            valid_for: Some(duration(40 * SECOND)),
            ..Default::default()
        };
        ReplicaReport {
            item: Arc::new(item),
            as_of: start + SECOND * set,
            set_at: start + SECOND * set,
        }
    }

    fn outcome(of: &mut Reports<pb::Verdict>) -> Option<Outcome> {
        of.newest(Instant::now()).map(|report| report.item.outcome())
    }

    #[tokio::test]
    async fn a_report_outlives_its_replica_until_another_has_one() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let start = Instant::now();
        let mut of = Reports::default();
        of.upsert(&a, report(LeasesExpired, start, 10));
        assert!(of.remove("a", true, start + 12 * SECOND) && !of.remove("a", true, start + 12 * SECOND));
        assert_eq!(outcome(&mut of), Some(LeasesExpired));
        of.upsert(&b, report(Pending, start, 13));
        assert_eq!(outcome(&mut of), Some(LeasesExpired), "b knows nothing yet");
        assert!(!of.tidy(start + 49 * SECOND, || true, |_| false), "it is valid");
        of.upsert(&b, report(Healthy, start, 14));
        assert_eq!(outcome(&mut of), Some(Healthy));
        assert!(of.left_behind.is_none());
    }

    #[tokio::test]
    async fn a_report_that_was_left_behind_ends_with_its_validity_and_with_its_item() {
        let a: Arc<str> = "a".into();
        let start = Instant::now();
        for (now, exists) in [(50, true), (20, false)] {
            let mut of = Reports::default();
            of.upsert(&a, report(Healthy, start, 10));
            of.remove("a", true, start + 11 * SECOND);
            assert!(of.tidy(start + SECOND * now, || exists, |_| false));
            assert!(of.is_empty() && outcome(&mut of).is_none());
        }
    }

    #[tokio::test]
    async fn a_report_without_validity_stands_for_a_while() {
        let a: Arc<str> = "a".into();
        let start = Instant::now();
        let mut of = Reports::default();
        let mut skipped = report(Outcome::Skipped, start, 10);
        skipped.item = Arc::new(pb::Verdict {
            valid_for: None,
            ..pb::Verdict::clone(&skipped.item)
        });
        of.upsert(&a, skipped);
        let left = start + 100 * SECOND;
        of.remove("a", true, left);
        assert!(!of.tidy(left + KEPT_FOR - SECOND, || true, |_| false));
        assert!(of.tidy(left + KEPT_FOR, || true, |_| false) && of.is_empty());
    }

    #[tokio::test]
    async fn of_two_reports_the_newest_counts() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let start = Instant::now();
        let mut of = Reports::default();
        of.upsert(&b, report(Healthy, start, 12));
        of.upsert(&a, report(LeasesExpired, start, 10));
        assert_eq!(outcome(&mut of), Some(Healthy));
        of.remove("b", true, start + 13 * SECOND);
        assert_eq!(outcome(&mut of), Some(LeasesExpired), "a reports it");
        assert!(of.left_behind.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_witnesses_the_newer_list_counts_and_what_is_the_same_is_sent_once() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let start = Instant::now();
        let listed = |outcome, set: u32, list_revision| {
            let mut report = report(outcome, start, set);
            Arc::make_mut(&mut report.item).list_revision = list_revision;
            report
        };
        let observer = |of: &mut Reports<pb::Verdict>, second: u32| {
            let newest = of.newest(start + SECOND * second).cloned().unwrap();
            (newest.item.outcome(), newest.item.list_revision)
        };
        let mut of = Reports::default();
        of.upsert(&a, listed(Healthy, 10, 70));
        of.upsert(&b, listed(LeasesExpired, 12, 60));
        assert_eq!(
            observer(&mut of, 13),
            (Healthy, 70),
            "b reads from a server that lags behind"
        );
        of.upsert(&b, listed(LeasesExpired, 14, 80));
        assert_eq!(observer(&mut of, 15), (LeasesExpired, 80));
        of.upsert(&a, listed(LeasesExpired, 16, 90));
        assert_eq!(
            observer(&mut of, 17),
            (LeasesExpired, 80),
            "that of b is the same"
        );
        assert_eq!(
            observer(&mut of, 35),
            (LeasesExpired, 90),
            "b does not say it any more"
        );
        of.upsert(&b, listed(Outcome::ApiServerUnreachable, 40, 0));
        assert_eq!(observer(&mut of, 41), (LeasesExpired, 90), "a reaches it");
        assert_eq!(
            observer(&mut of, 57),
            (Outcome::ApiServerUnreachable, 0),
            "that is no longer valid"
        );
    }

    #[tokio::test]
    async fn what_a_lost_replica_reported_stands_for_as_long_as_the_item_exists() {
        let a: Arc<str> = "a".into();
        let start = Instant::now();
        let mut of = Reports::default();
        of.upsert(&a, report(Healthy, start, 10));
        let later = start + 1_000 * SECOND;
        assert!(!of.tidy(later, || true, |_| true) && !of.tidy(later, || false, |_| false));
        assert!(of.tidy(later, || false, |replica| replica == "a") && of.is_empty());
    }
}
