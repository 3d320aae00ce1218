//! The time for which an API server has answered and accepted writes, so that a connected kubelet could have renewed
//! its Lease.
//!
//! kube-controller-manager renews its own Lease every two seconds and works only while it can. So while the revision of
//! an API server's data stands still, neither kubelets nor kube-controller-manager can write, and silence proves
//! nothing. The span between two lists counts if the revision grew in it and nothing says that the API server was away.
//! docs/explanation/safety.md has the argument and the figures.

use std::time::Duration;

use watchdog_api::unix_time::{UnixTime, micros};

use super::lease_list::{LeaseList, MIN_SPACING};

/// An API server writes its own Lease every 10 s. If lists show no write for longer than this, nobody can write.
pub(super) const STANDS_STILL: Duration = Duration::from_millis(10_500);

/// A kubelet renews within one renew interval; its timer, the request and a retry may take a quarter of that on top. An
/// outage that is no longer than that quarter costs a kubelet no more, because its pauses double.
pub(super) const RENEWS_WITHIN_INTERVALS: f64 = 1.25;

/// The additional time that a kubelet takes to come back from an outage: it pauses for up to 7 s (`maxBackoff`) or
/// waits for up to 10 s for a request that hangs (the heartbeat client's timeout). One renew interval, if that is
/// shorter. Source: component-helpers, `apimachinery/lease/controller.go`.
const WAY_BACK: Duration = Duration::from_secs(10);

/// The answered time of one API server.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnsweredTime {
    // Marks of this moment, and of the moment before the last list.
    now: AnsweredMark,
    before: AnsweredMark,
    // What the last span added to the total. Writes may have ended at its beginning, so it counts when the revision
    // grows again before that is too long ago.
    unconfirmed: Duration,
    // The end of what counts of the last span.
    until: UnixTime,
    // When the last list was asked for, and its revision.
    last: Option<UnixTime>,
    revision: u64,
    // When the first list was asked for that had this revision.
    grown: UnixTime,
    // From then on nothing is counted yet.
    from: UnixTime,
    // The outage that is under way, or may be.
    away_since: Option<UnixTime>,
    fell_silent: bool,
    // The last span had an outage, however short.
    blipped: bool,
}

/// The answered time at a renewal, or when a lease was first observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnsweredMark {
    total: Duration,
    outages: u32,
    // How often a connection fell silent.
    silences: u32,
    /// True if this replica has not seen the lease renewed.
    pub(super) first_observed: bool,
}

impl AnsweredTime {
    /// The API server may have been away since then, and until the next list. If connections fell `silent`, those of
    /// kubelets may be dead without a sign, and a kubelet loses two requests instead of one. Of several moments the
    /// first one counts.
    pub fn note_outage(&mut self, since: UnixTime, silent: bool) {
        self.away_since = Some(self.away_since.map_or(since, |known| known.min(since)));
        self.fell_silent |= silent;
    }

    /// Takes in a complete list. Of the time since the list before, at most `longest` counts.
    pub fn record(&mut self, list: &LeaseList, renew_interval: Duration, longest: Duration) {
        let (sent, revision) = (list.sent, list.revision);
        let (away, silent) = (self.away_since.take(), std::mem::take(&mut self.fell_silent));
        let (before, grown) = (std::mem::replace(&mut self.revision, revision), self.grown);
        self.before = self.now;
        if revision != before || self.last.is_none() {
            self.grown = sent;
        }
        let Some(last) = self.last.replace(sent) else {
            self.from = sent;
            return;
        };
        let grew = revision > before;
        let still = last.since(grown);
        let no_writes = revision < before || still > STANDS_STILL;
        let away = away.map(|since| since.max(last));
        // A blip within what a renewal may take on top of the interval still counts as answered.
        let longest_blip = renew_interval.mul_f64(RENEWS_WITHIN_INTERVALS - 1.0);
        let is_blip = |since: &UnixTime| list.received.since(*since) <= longest_blip;
        // But not twice in a row: an API server that fails so often also fails renewals.
        let blipped = std::mem::replace(&mut self.blipped, away.is_some());
        let away = match no_writes {
            true => Some(self.from),
            false => away.filter(|since| blipped || !is_blip(since)),
        };
        if !grew && away.is_none() {
            return;
        }
        self.until = away.unwrap_or(sent);
        if no_writes {
            self.now.total -= std::mem::take(&mut self.unconfirmed);
        } else if grew {
            self.unconfirmed = self.until.since(self.from).min(longest);
            self.now.total += self.unconfirmed;
        }
        self.from = sent;
        self.now.outages = self.now.outages.saturating_add(away.is_some().into());
        self.now.silences = self.now.silences.saturating_add(silent.into());
    }

    /// The revision of the last list; none before the first one.
    #[must_use]
    pub(super) fn last_revision(&self) -> Option<u64> {
        self.last.map(|_| self.revision)
    }

    /// A mark now, for silence that begins now.
    #[must_use]
    pub const fn now(&self) -> AnsweredMark {
        self.now
    }

    /// The mark for a lease that is observed for the first time: how long it has been silent, what became of earlier
    /// connections, and how far its node's clock is off are unknown.
    #[must_use]
    pub const fn first_observed(&self) -> AnsweredMark {
        AnsweredMark {
            first_observed: true,
            ..self.now
        }
    }

    /// The mark for a lease that was renewed at `made`, as the last list shows. Whether the renewal came before an
    /// outage or after it cannot be known: it counts as before.
    #[must_use]
    pub fn renewed(&self, made: UnixTime) -> AnsweredMark {
        let counted = self.now.total.saturating_sub(self.before.total);
        let since = self.until.since(made).min(counted);
        AnsweredMark {
            total: self.now.total.saturating_sub(since),
            ..self.before
        }
    }

    /// Returns true if an outage came after the mark.
    #[must_use]
    pub const fn outage_since(&self, mark: AnsweredMark) -> bool {
        self.now.outages != mark.outages
    }

    /// When the silence of a lease is proven, if the API server takes writes from the last list on; in the past when it
    /// is.
    #[must_use]
    pub fn proven_at(&self, mark: AnsweredMark, renew_interval: Duration) -> UnixTime {
        let may_reconnect = mark.first_observed || self.now.silences != mark.silences;
        let extra = if may_reconnect {
            renew_interval
        } else {
            Duration::ZERO
        };
        self.reached_at(mark, proof(renew_interval) + extra)
    }

    /// The mark of a lease. If its silence was proven `before` the last list, it stays so: a connection that fell
    /// silent since does not explain it.
    pub(super) fn keep_proven(
        &self,
        mark: AnsweredMark,
        renew_interval: Duration,
        before: &Self,
    ) -> AnsweredMark {
        let proven_at = before.proven_at(mark, renew_interval);
        match before.last.is_some_and(|last| proven_at <= last) {
            true => AnsweredMark {
                silences: self.now.silences,
                ..mark
            },
            false => mark,
        }
    }

    /// When every connected kubelet has renewed since the mark, if there was no outage; in the past when it has.
    #[must_use]
    pub fn renewed_at(&self, mark: AnsweredMark, renew_interval: Duration) -> UnixTime {
        self.reached_at(mark, renew_interval.mul_f64(RENEWS_WITHIN_INTERVALS))
    }

    /// When the answered time since the mark is `needed`.
    fn reached_at(&self, mark: AnsweredMark, needed: Duration) -> UnixTime {
        let expected = self.now.total.saturating_sub(mark.total);
        let at = self.from.shifted(micros(needed) - micros(expected));
        match self.confirmed().saturating_sub(mark.total) >= needed {
            true => at,
            // The revision has stood still for that long: the next list may show more.
            false => at.max(self.last.unwrap_or_default().after(MIN_SPACING)),
        }
    }

    fn confirmed(&self) -> Duration {
        self.now.total.saturating_sub(self.unconfirmed)
    }
}

/// The answered silence that a connected kubelet does not exceed, after an outage or without one.
#[must_use]
pub fn proof(renew_interval: Duration) -> Duration {
    renew_interval.mul_f64(RENEWS_WITHIN_INTERVALS) + renew_interval.min(WAY_BACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: Duration = Duration::from_secs(10);
    const LONGEST: Duration = Duration::from_secs(16);

    fn at(seconds: f64) -> UnixTime {
        UnixTime((seconds * 1e6) as i64)
    }

    fn record(answered: &mut AnsweredTime, sent: f64, revision: u64) {
        let list = LeaseList {
            sent: at(sent),
            received: at(sent + 0.02),
            revision,
            ..LeaseList::default()
        };
        answered.record(&list, R, LONGEST);
    }

    /// The answered time after lists at those seconds with those revisions.
    fn total(lists: &[(f64, u64)]) -> f64 {
        let mut answered = AnsweredTime::default();
        for (sent, revision) in lists {
            record(&mut answered, *sent, *revision);
        }
        answered.confirmed().as_secs_f64()
    }

    #[test]
    fn a_span_counts_when_the_revision_grew() {
        assert_eq!(total(&[(0.0, 1), (10.0, 2), (20.0, 3)]), 10.0);
        assert_eq!(total(&[(0.0, 1), (10.0, 1)]), 0.0, "not while it stands still");
        assert_eq!(
            total(&[(0.0, 1), (5.0, 1), (9.0, 2), (10.0, 3)]),
            9.0,
            "but that is not held against it"
        );
        assert_eq!(
            total(&[(0.0, 1), (24.0, 2), (25.0, 3)]),
            16.0,
            "an outage may fit in between"
        );
        assert_eq!(
            total(&[(0.0, 5), (10.0, 4), (12.0, 6), (13.0, 7)]),
            2.0,
            "data that go back prove nothing"
        );
    }

    /// A full etcd: lists are answered, and nobody can write.
    #[test]
    fn lists_that_show_that_nobody_can_write_show_an_outage() {
        let mut lists: Vec<_> = (0..30).map(|second| (f64::from(second), 1)).collect();
        lists.extend([(30.0, 2), (31.0, 3), (32.0, 4)]);
        assert_eq!(total(&lists), 1.0);
    }

    /// Writes may have ended right after the list before the span.
    #[test]
    fn a_span_counts_when_somebody_has_written_since() {
        assert_eq!(total(&[(0.0, 1), (11.0, 2)]), 0.0);
        assert_eq!(total(&[(0.0, 1), (11.0, 2), (12.0, 2), (13.0, 3)]), 11.0);
        let mut lists = vec![(0.0, 1), (11.0, 2)];
        lists.extend((12..30).map(|second| (f64::from(second), 2)));
        lists.extend([(30.0, 3), (31.0, 4), (32.0, 5)]);
        assert_eq!(total(&lists), 1.0);
    }

    #[test]
    fn an_outage_counts_until_it_began() {
        let mut answered = AnsweredTime::default();
        record(&mut answered, 0.0, 1);
        let mark = answered.now();
        answered.note_outage(at(7.0), false);
        answered.note_outage(at(8.0), false);
        record(&mut answered, 10.0, 2);
        assert_eq!(answered.now().total.as_secs_f64(), 7.0);
        assert!(answered.outage_since(mark));
        assert_eq!(answered.proven_at(mark, R), at(25.5));
        answered.note_outage(at(10.0), true);
        record(&mut answered, 11.0, 3);
        assert_eq!(
            answered.proven_at(mark, R),
            at(36.5),
            "connections of kubelets may be dead"
        );
    }

    #[test]
    fn silence_is_proven_in_the_future_until_it_is() {
        let mut answered = AnsweredTime::default();
        record(&mut answered, 0.0, 1);
        let (mark, first) = (answered.now(), answered.first_observed());
        for second in [10, 20, 22, 23, 24] {
            record(&mut answered, f64::from(second), second as u64);
        }
        assert_eq!(answered.proven_at(mark, R), at(22.5));
        assert_eq!(answered.proven_at(first, R), at(32.5));
        for second in [30, 33] {
            record(&mut answered, f64::from(second), 24);
        }
        assert!(answered.proven_at(first, R) > at(33.0), "nobody has written");
    }
}
