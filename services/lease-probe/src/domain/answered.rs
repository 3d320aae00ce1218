//! For how long an API server has answered: the time in which a living kubelet could have renewed its Lease.
//!
//! kube-controller-manager counts the time since it saw a renewal and works only while it reaches its API server. A
//! prober looks from time to time, from somewhere else. Between two lists it may count the time as answered only if
//! nothing suggests that the API server was away, and a kubelet that could not renew in that time has a longer way back
//! than one that could. Both rules stand here; ADR 0013 has the argument.

use std::time::Duration;

use watchdog_api::unix_time::{UnixTime, micros};

/// A list that took longer than this, and twice as long as the one before, was held up: the API server may have been
/// away while it waited. An API server that is always slow is also slow for kubelets, but it answers.
pub const SLOW: Duration = Duration::from_millis(2_500);

/// A kubelet gives up a request after this time (`nodeStatusUpdateFrequency`). A list that took this long was held up,
/// even if all lists of the shoot take this long.
const TOO_SLOW: Duration = Duration::from_secs(10);

/// The constants below are in renew intervals of the kubelets: 10 s by default.
///
/// More than this between two lists does not count, because an outage may fit between them that neither of them met and
/// that no connection shows: an etcd that is restarted while its API server answers pings.
const LONGEST_SPAN: f64 = 1.0;

/// An outage that can have lasted for no longer than this costs a kubelet at most as long again: its pauses double. So
/// little is no reason not to count. But if the connection was lost in it, the server may have been restarted, and each
/// such blip adds its length to what is needed, up to a renew interval: a kubelet may meet several.
const BLIP: f64 = 0.25;

/// Of a renew interval: what a connection that fell silent adds, and the most that several add.
const QUARTERS: u32 = 4;

/// Weight of the last list in the moving share of lists that failed; about forty matter.
const WEIGHT: f64 = 0.05;

/// While more than this share of the lists fails, no silence is proven: a kubelet may lose a whole turn, five PUTs and
/// five more, by chance.
const MANY_ERRORS: f64 = 0.55;

/// When that may be over.
const SOON: Duration = Duration::from_secs(1);

/// And while more than this share fails, time does not count: a kubelet may lose several turns.
const TOO_MANY_ERRORS: f64 = 0.67;

/// An outage that may have lasted longer than this may have been a restart. A restarted server may also fail the first
/// writes.
const LONG: f64 = 1.5;

/// How long a lease must be silent that was never seen to be renewed: a kubelet renews within one interval; its timer,
/// the request and a retry may take a quarter of that on top.
const AT_FIRST_SIGHT: f64 = 1.25;

/// How long a kubelet takes to come back from an outage, in addition: it pauses for up to 7 s (`maxBackoff`) or waits
/// for up to 10 s for a request that hangs (the heartbeat client's timeout), and opens a connection. Source:
/// component-helpers, `apimachinery/lease/controller.go`. An interval where that is shorter.
const WAY_BACK: Duration = Duration::from_secs(10);

/// The longest pause between two lists after which the silence of a node that stops renewing is still proven when its
/// lease reaches the expiry age: of the pause [`LONGEST_SPAN`] counts, and the expiry age is longer than the silence
/// that is needed.
#[must_use]
pub fn longest_pause(renew_interval: Duration, expiry_age: Duration) -> Duration {
    let needed = renew_interval.mul_f64(AT_FIRST_SIGHT) + renew_interval.min(WAY_BACK);
    renew_interval.mul_f64(LONGEST_SPAN) + expiry_age.saturating_sub(needed)
}

/// When a list was asked for and when its answer was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListTimes {
    /// When the request was sent.
    pub sent: UnixTime,
    /// When the answer was there.
    pub received: UnixTime,
}

impl ListTimes {
    /// How long it took.
    #[must_use]
    pub fn latency(self) -> Duration {
        self.received.since(self.sent)
    }

    /// A list that takes no time.
    #[cfg(test)]
    pub(super) const fn at(time: UnixTime) -> Self {
        Self {
            sent: time,
            received: time,
        }
    }
}

/// How many requests for a list the API server answered, and how many of them with an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListCounts {
    /// All of them.
    pub answered: u32,
    /// Those that failed.
    pub failed: u32,
}

/// The answered time of one API server.
#[derive(Debug, Clone, Default)]
pub struct AnsweredTime {
    total: Duration,
    /// Until when it is counted: the last list.
    until: Option<UnixTime>,
    latency: Duration,
    away_since: Option<UnixTime>,
    /// Moving share of the lists that the API server answered with an error.
    error_share: f64,
    /// Throttles since then, and was not away before.
    throttles_since: Option<UnixTime>,
    /// By how many quarters of a renew interval the connections that were lost since the last list prolong the proof.
    disconnects: u32,
    /// The sum of these quarters up to the last list.
    quarters: u32,
    outages: u32,
    long_outages: u32,
    /// `total` when the last long outage ended.
    at_end_of_long: Duration,
}

/// The answered time at a renewal, or when a lease was first observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnsweredMark {
    total: Duration,
    quarters: u32,
    outages: u32,
    long_outages: u32,
    first_sight: bool,
}

/// The time between two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListInterval {
    /// The part of it that counts.
    counted: Duration,
    /// Until when the API server answered for sure.
    answered_until: UnixTime,
    /// True if an outage falls into it.
    outage: bool,
    long: bool,
    quarters: u32,
    /// How long the API server takes to answer, without what it was held up.
    slowness: Duration,
}

impl ListInterval {
    /// When a renewal that its kubelet sent at `sent` had reached the API server, as far as is known.
    #[must_use]
    pub fn arrived(self, sent: UnixTime) -> UnixTime {
        sent.after(self.slowness)
    }
}

impl AnsweredTime {
    /// The API server may have been away since then, and until the next list. Of several moments the first one noted
    /// counts.
    pub fn note_outage(&mut self, since: UnixTime) {
        self.away_since.get_or_insert(since);
    }

    /// Records the results of the last few lists. An API server that fails many lists also fails renewals. Then silence
    /// proves less, even if the time between two lists is short.
    pub fn note_lists(&mut self, counts: ListCounts) {
        let keep = |lists: u32| (1.0 - WEIGHT).powi(i32::try_from(lists).unwrap_or(i32::MAX));
        let failed = 1.0 - (1.0 - self.error_share) * keep(counts.failed);
        self.error_share = failed * keep(counts.answered.saturating_sub(counts.failed));
    }

    /// The connection was lost, and the server may have been away since then. If the connection fell silent, those of
    /// kubelets may also have died without a sign. Then a kubelet loses two requests instead of one, each with its
    /// timeout.
    pub fn note_disconnect(&mut self, since: UnixTime, silent: bool) {
        self.disconnects = if silent { QUARTERS } else { self.disconnects.max(1) };
        self.note_outage(since);
    }

    /// The API server throttles since then, and until the next list: that time does not count, but an API server that
    /// answers was not restarted.
    pub fn note_throttling(&mut self, since: UnixTime) {
        self.throttles_since.get_or_insert(since);
    }

    /// Takes in a complete list.
    pub fn record(&mut self, times: ListTimes, renew_interval: Duration) -> ListInterval {
        let latency = times.latency();
        let held_up = latency >= TOO_SLOW || (latency > SLOW && latency > 2 * self.latency);
        if held_up {
            self.note_outage(times.sent.before(renew_interval));
        }
        let before = std::mem::replace(&mut self.latency, latency);
        let slowness = if held_up { before } else { before.max(latency) };
        let end = if held_up { times.received } else { times.sent };
        let from = self.until.replace(end);
        let throttles_since = self.throttles_since.take();
        let quarters = std::mem::take(&mut self.disconnects);
        let span = match (from, self.away_since.take()) {
            (None, away) => ListInterval {
                counted: Duration::ZERO,
                answered_until: times.sent,
                outage: away.is_some(),
                long: away.is_some(),
                quarters,
                slowness,
            },
            (Some(from), away) => {
                let away = away.map(|since| since.max(from));
                let since = [away, throttles_since].into_iter().flatten().min();
                let gap = since.map_or(Duration::ZERO, |since| times.received.since(since));
                let outage = gap > renew_interval.mul_f64(BLIP);
                let answered_until = since.filter(|_| outage).unwrap_or(times.sent);
                ListInterval {
                    counted: match self.error_share > TOO_MANY_ERRORS {
                        true => Duration::ZERO,
                        false => answered_until
                            .since(from)
                            .min(renew_interval.mul_f64(LONGEST_SPAN)),
                    },
                    answered_until,
                    outage,
                    long: away.is_some() && gap >= renew_interval.mul_f64(LONG),
                    quarters,
                    slowness,
                }
            }
        };
        self.total += span.counted;
        self.quarters = self.quarters.saturating_add(span.quarters);
        if span.outage {
            self.outages = self.outages.saturating_add(1);
        }
        if span.long {
            self.long_outages = self.long_outages.saturating_add(1);
            self.at_end_of_long = self.total;
        }
        span
    }

    /// The mark for a lease that is seen for the first time, in the list after `span`. Nobody knows since when it has
    /// been silent. After an outage that ended before the list, its kubelet may be on its way back.
    #[must_use]
    pub fn first_sight(&self, span: ListInterval, after_outage: bool) -> AnsweredMark {
        AnsweredMark {
            first_sight: !after_outage,
            ..self.mark(span, Duration::ZERO)
        }
    }

    /// A mark now, for silence that begins now and needs no way back.
    #[must_use]
    pub const fn now(&self) -> AnsweredMark {
        AnsweredMark {
            total: self.total,
            quarters: self.quarters,
            outages: self.outages,
            long_outages: self.long_outages,
            first_sight: true,
        }
    }

    /// The mark for a lease that was renewed at `made`, within `span`. Whether the renewal came before an outage or
    /// after it cannot be known: it counts as before.
    #[must_use]
    pub fn renewed(&self, span: ListInterval, made: UnixTime) -> AnsweredMark {
        self.mark(span, span.answered_until.since(made).min(span.counted))
    }

    fn mark(&self, span: ListInterval, silent: Duration) -> AnsweredMark {
        AnsweredMark {
            total: self.total - silent,
            quarters: self.quarters.saturating_sub(span.quarters),
            outages: self.outages - u32::from(span.outage),
            long_outages: self.long_outages - u32::from(span.long),
            first_sight: false,
        }
    }

    /// The answered time so far.
    #[must_use]
    pub const fn total(&self) -> Duration {
        self.total
    }

    /// Returns true if an outage came after the mark.
    #[must_use]
    pub const fn outage_since(&self, mark: AnsweredMark) -> bool {
        self.outages != mark.outages
    }

    /// When the silence of a lease is proven, if the API server answers from the last list on; in the past when it is.
    #[must_use]
    pub fn proven_at(&self, mark: AnsweredMark, renew_interval: Duration) -> UnixTime {
        let needed =
            |silence: Duration, since: Duration| micros(silence) - micros(self.total) + micros(since);
        let at_first_sight = renew_interval.mul_f64(AT_FIRST_SIGHT);
        let quarters = self.quarters.saturating_sub(mark.quarters).min(QUARTERS);
        let over_disconnects =
            at_first_sight + renew_interval.min(WAY_BACK) + renew_interval * quarters / QUARTERS;
        let remaining = if self.long_outages != mark.long_outages {
            // A restarted server may also fail the first writes. Then a kubelet comes back one interval later.
            needed(over_disconnects, self.at_end_of_long.max(mark.total))
                .min(needed(over_disconnects + renew_interval, mark.total))
        } else if mark.first_sight && !self.outage_since(mark) {
            needed(at_first_sight, mark.total)
        } else {
            needed(over_disconnects, mark.total)
        };
        let remaining = if self.error_share > MANY_ERRORS {
            remaining.max(micros(SOON))
        } else {
            remaining
        };
        self.until.unwrap_or_default().shifted(remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: Duration = Duration::from_secs(10);

    fn at(seconds: f64) -> UnixTime {
        UnixTime((seconds * 1e6) as i64)
    }

    fn list(seconds: f64) -> ListTimes {
        took(seconds, 0.02)
    }

    fn took(seconds: f64, latency: f64) -> ListTimes {
        ListTimes {
            sent: at(seconds),
            received: at(seconds + latency),
        }
    }

    /// The answered time after lists at those seconds, with outages noted in between: (since, next list).
    fn total(lists: &[f64], outages: &[(f64, f64)]) -> f64 {
        let mut answered = AnsweredTime::default();
        for sent in lists {
            for (since, _) in outages.iter().filter(|(_, next)| next == sent) {
                answered.note_outage(at(*since));
            }
            answered.record(list(*sent), R);
        }
        answered.total().as_secs_f64()
    }

    #[test]
    fn counts_what_nothing_speaks_against() {
        assert_eq!(total(&[0.0, 10.0, 20.0], &[]), 20.0);
        assert_eq!(total(&[0.0, 24.0], &[]), 10.0, "an outage may fit in between");
        assert_eq!(
            total(&[0.0, 10.0, 12.0], &[(7.0, 10.0)]),
            9.0,
            "until it was away"
        );
        assert_eq!(
            total(&[0.0, 10.0], &[(-5.0, 10.0)]),
            0.0,
            "from before the last list"
        );
        assert_eq!(total(&[0.0, 10.0], &[(9.0, 10.0)]), 10.0, "for a moment");
    }

    #[test]
    fn a_list_that_is_held_up_is_an_outage_and_one_that_is_always_slow_is_not() {
        let mut answered = AnsweredTime::default();
        answered.record(list(0.0), R);
        let span = answered.record(took(5.0, 4.0), R);
        assert!(span.outage);
        assert_eq!(answered.total(), Duration::ZERO);
        let span = answered.record(took(12.0, 4.0), R);
        assert!(!span.outage);
        assert_eq!(
            answered.total(),
            Duration::from_secs(3),
            "from the answer that was held up"
        );
        answered.record(took(17.0, 4.0), R);
        assert_eq!(answered.total(), Duration::from_secs(8));
    }

    #[test]
    fn how_long_silence_must_last() {
        let mut answered = AnsweredTime::default();
        let span = answered.record(list(0.0), R);
        let first = answered.first_sight(span, false);
        assert_eq!(answered.proven_at(first, R), at(12.5));
        let span = answered.record(list(10.0), R);
        let renewed = answered.renewed(span, at(6.0));
        assert_eq!(answered.proven_at(renewed, R), at(28.5));
        // A short outage takes its time.
        answered.note_outage(at(14.0));
        answered.record(list(18.0), R);
        assert_eq!(answered.proven_at(renewed, R), at(32.5));
        assert_eq!(
            answered.proven_at(first, R),
            at(26.5),
            "more than for a lease first observed"
        );
        // After a long one 2.25 intervals, or 3.25 in all.
        answered.note_outage(at(20.0));
        answered.record(list(40.0), R);
        assert_eq!(answered.proven_at(renewed, R), at(62.5));
        assert_eq!(answered.proven_at(first, R), at(56.5));
    }

    /// Lists once a second for a minute, and fails `in_ten` of ten lists. Returns the answered time, and true if the
    /// silence of a lease that was renewed halfway through is proven.
    fn with_errors(in_ten: u32) -> (f64, bool) {
        let mut answered = AnsweredTime::default();
        let mut renewed = None;
        for second in 0..=60 {
            let failed = u32::from(second * 7 % 10 < in_ten);
            let counts = ListCounts { answered: 1, failed };
            answered.note_lists(counts);
            if failed == 0 {
                let span = answered.record(list(f64::from(second)), R);
                if second > 28 {
                    renewed.get_or_insert(answered.renewed(span, at(f64::from(second))));
                }
            }
        }
        let proven = answered.proven_at(renewed.unwrap(), R) < at(59.0);
        (answered.total().as_secs_f64().round(), proven)
    }

    #[test]
    fn an_api_server_that_fails_many_lists_proves_less() {
        assert_eq!(with_errors(4), (57.0, true), "of ten PUTs in a turn some succeed");
        assert!(!with_errors(6).1, "a turn may be lost");
        assert!(with_errors(9).0 < 40.0, "several may");
    }

    #[test]
    fn an_outage_before_the_first_list_counts() {
        let mut answered = AnsweredTime::default();
        answered.note_outage(at(-30.0));
        let span = answered.record(list(0.0), R);
        assert_eq!(answered.proven_at(answered.first_sight(span, false), R), at(22.5));
    }
}
