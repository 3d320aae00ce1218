//! The reports of the replicas of lease-probe on one shoot. A replica that stops to report the shoot does not withdraw
//! its last report: that stands until another replica has one, or for a while.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_proto::probe::v1::{Outcome, Verdict};

use crate::item::TimedItem;
use crate::wire::forward;

/// The report of a replica that does not report the shoot any more stands at least this long: another witness is found
/// after 18 s at most, and reports at once. A verdict stands for as long as it is valid, if that is longer.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(30);

/// The report of a replica on a shoot.
pub(super) type VerdictReport = TimedItem<Verdict>;

/// The reports of all replicas on one shoot.
#[derive(Debug, Default)]
pub(super) struct Reports {
    by_replica: Vec<(Arc<str>, VerdictReport)>,
    /// The newest report of the replicas that do not report this shoot any more, and until when it stands.
    left_behind: Option<(VerdictReport, Instant)>,
    /// The replica whose report counted last.
    shown: Option<Arc<str>>,
    /// When subscribers need the next renewal of what they were sent.
    renewal_due: Option<Instant>,
    /// True if there is one that they have not been sent.
    renewed: bool,
}

// === the rules of a verdict ===

/// A replica that has just taken over a shoot has no result yet. Its report counts only if there is no other.
fn is_provisional(report: &VerdictReport) -> bool {
    report.item.outcome() == Outcome::Pending
}

/// The end of the validity of a verdict.
fn valid_until(report: &VerdictReport) -> Instant {
    report.as_of + forward(report.item.valid_for.as_ref())
}

fn stands_until(report: &VerdictReport, now: Instant) -> Instant {
    (now + KEPT_FOR).max(valid_until(report))
}

/// True if two replicas say the same.
fn agree(one: &Verdict, other: &Verdict) -> bool {
    one.outcome == other.outcome && one.skip_reason == other.skip_reason
}

/// True if a verdict says the same as `sent`, of a later moment: subscribers need it only for its validity.
pub(super) fn renews(verdict: &Verdict, sent: &Verdict) -> bool {
    let mut as_sent = Verdict {
        observe_time: sent.observe_time,
        expire_time: sent.expire_time,
        age: sent.age,
        valid_for: sent.valid_for,
        // Like the times, it grows with every list.
        list_revision: sent.list_revision,
        ..verdict.clone()
    };
    if let (Some(evidence), Some(sent)) = (&mut as_sent.evidence, &sent.evidence) {
        // Each probe measures the skew of the clocks anew.
        evidence.largest_skew = sent.largest_skew;
    }
    as_sent == *sent
}

// === impl Reports ===

impl Reports {
    /// Replaces the report of a replica.
    pub(super) fn upsert(&mut self, replica: &Arc<str>, report: VerdictReport) {
        if !is_provisional(&report) {
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
    pub(super) fn remove(&mut self, replica: &str, keep: bool, now: Instant) -> bool {
        let Some(at) = self.by_replica.iter().position(|(of, _)| **of == *replica) else {
            return false;
        };
        let (_, report) = self.by_replica.swap_remove(at);
        let mut others = self.by_replica.iter();
        let replaced = others.any(|(_, other)| !is_provisional(other));
        let older_is_left = self.left_behind.is_some() && is_provisional(&report);
        if keep && !replaced && !older_is_left {
            let until = stands_until(&report, now);
            self.left_behind = Some((report, until));
        }
        true
    }

    /// Drops what was left behind if its time is over, and, if the item is gone, what replicas that are lost have
    /// reported. Returns true if that changed anything.
    pub(super) fn tidy(
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
        let over = |(_, until): &mut (VerdictReport, Instant)| !exists || *until <= now;
        self.left_behind.take_if(over).is_some() || self.by_replica.len() < before
    }

    /// The report that counts: that of the newest list, and of two on the same list the newest one. A provisional one,
    /// or one that is not valid, only if there is no other; of those the newest one, because a shoot that is skipped is
    /// not listed. Of two witnesses that say the same, the one whose report counted before goes on until half of its
    /// validity is over: readers get it once.
    pub(super) fn newest(&mut self, now: Instant) -> Option<&VerdictReport> {
        let reported = self.by_replica.iter().map(|(of, report)| (Some(of), report));
        let left_behind = self.left_behind.iter().map(|(report, _)| (None, report));
        let rank = |report: &VerdictReport| {
            let valid_list = Some(report.item.list_revision).filter(|_| now < valid_until(report));
            (!is_provisional(report), valid_list, report.set_at)
        };
        let (of, newest) = reported
            .chain(left_behind)
            .max_by_key(|(_, report)| rank(report))?;
        let shown = self.shown.as_ref();
        let before = self.by_replica.iter().find(|(of, _)| Some(of) == shown);
        if let Some((_, before)) = before
            && now < before.as_of + forward(before.item.valid_for.as_ref()) / 2
            && agree(&before.item, &newest.item)
        {
            return Some(before);
        }
        self.shown = of.cloned();
        Some(newest)
    }

    /// Returns true if the validity of the report that counted last is over, and another one counts now.
    pub(super) fn has_successor(&mut self, now: Instant) -> bool {
        let before = self.shown.clone();
        let counted = self.by_replica.iter().find(|(of, _)| Some(of) == before.as_ref());
        let is_over = counted.is_some_and(|(_, report)| valid_until(report) <= now);
        is_over && self.newest(now).is_some() && self.shown != before
    }

    /// Notes a report that subscribers are sent now. They need the next one when half of its validity is over.
    pub(super) fn note_sent(&mut self, report: &VerdictReport, now: Instant) {
        let left = valid_until(report).saturating_duration_since(now);
        self.renewal_due = Some(now + left / 2);
        self.renewed = false;
    }

    /// Notes a renewal. Returns false if it cannot wait.
    pub(super) fn defer_renewal(&mut self, now: Instant) -> bool {
        self.renewed = self.renewal_due.is_some_and(|due| now < due);
        self.renewed
    }

    /// Returns true if a renewal has waited until subscribers need it.
    pub(super) fn renewal_is_due(&self, now: Instant) -> bool {
        self.renewed && self.renewal_due.is_none_or(|due| due <= now)
    }

    /// The replicas that report this shoot.
    pub(super) fn replicas(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_replica.iter().map(|(replica, _)| replica)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.by_replica.is_empty() && self.left_behind.is_none()
    }
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1::Evidence;
    use watchdog_proto::probe::v1::Outcome::{Healthy, LeasesExpired, Pending};

    use super::*;
    use crate::wire::duration;

    const SECOND: Duration = Duration::from_secs(1);

    /// A verdict that was set `set` seconds after the start and is valid for 40 s.
    fn report(outcome: Outcome, start: Instant, set: u32) -> VerdictReport {
        let item = Verdict {
            outcome: outcome.into(),
            valid_for: Some(duration(40 * SECOND)),
            ..Default::default()
        };
        TimedItem {
            item: Arc::new(item),
            as_of: start + SECOND * set,
            set_at: start + SECOND * set,
        }
    }

    fn outcome(of: &mut Reports) -> Option<Outcome> {
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
        skipped.item = Arc::new(Verdict {
            valid_for: None,
            ..Verdict::clone(&skipped.item)
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
        let observer = |of: &mut Reports, second: u32| {
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

    /// A hibernated shoot is skipped without a list and without a validity. A replica whose stream was cut does
    /// not hide that with the last list that it made.
    #[tokio::test]
    async fn of_two_reports_that_are_not_valid_the_newest_counts() {
        let (lost, other): (Arc<str>, Arc<str>) = ("lost".into(), "other".into());
        let start = Instant::now();
        let mut healthy = report(Healthy, start, 10);
        Arc::make_mut(&mut healthy.item).list_revision = 70;
        let mut skipped = report(Outcome::Skipped, start, 20);
        Arc::make_mut(&mut skipped.item).valid_for = None;
        let mut of = Reports::default();
        of.upsert(&lost, healthy);
        of.upsert(&other, skipped);
        let shown = |of: &mut Reports, second| of.newest(start + SECOND * second).unwrap().item.outcome();
        assert_eq!(shown(&mut of, 49), Healthy, "it is valid");
        assert_eq!(shown(&mut of, 50), Outcome::Skipped);
        // Nor does one that skipped the shoot hide that it was probed afterwards.
        of.upsert(&other, report(Outcome::ApiServerUnreachable, start, 30));
        let mut skipped = report(Outcome::Skipped, start, 5);
        Arc::make_mut(&mut skipped.item).valid_for = None;
        of.upsert(&lost, skipped);
        assert_eq!(shown(&mut of, 1_000), Outcome::ApiServerUnreachable);
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

    #[test]
    fn a_verdict_renews_another_if_only_its_times_differ() {
        let sent = Verdict {
            shoot: "one".to_owned(),
            evidence: Some(Evidence::default()),
            age: Some(crate::wire::signed(1)),
            ..Default::default()
        };
        let mut later = sent.clone();
        later.observe_time = Some(crate::wire::timestamp(7));
        later.expire_time = Some(crate::wire::timestamp(8));
        later.valid_for = Some(crate::wire::signed(9));
        later.age = Some(crate::wire::signed(0));
        later.evidence.as_mut().unwrap().largest_skew = Some(crate::wire::signed(3));
        assert!(renews(&later, &sent));
        later.evidence.as_mut().unwrap().expired = 1;
        assert!(!renews(&later, &sent));
        let other_observer = Verdict {
            observer: "b".to_owned(),
            ..sent.clone()
        };
        assert!(!renews(&other_observer, &sent));
    }
}
