//! How far a node's clock is off, as its renewals show.
//!
//! kube-controller-manager judges a lease by when it *saw* a renewal and never looks at the clock of the node. The
//! watchdog reads `renewTime`, which shows more exactly when the kubelet was alive, but by the node's clock. So it
//! compares each renewal with the moment at which it arrived. A kubelet renews every renew interval, so among a few
//! renewals one should look younger than that on arrival; and none should look as if it came from the future.

use std::time::Duration;

use watchdog_api::unix_time::{UnixTime, micros};

/// Renewals that the estimate looks back on. Four renewals span at least 40 s: a single late one cannot look like a
/// clock that is off, and a clock that was set is believed soon.
const WINDOW: usize = 4;

/// A clock is believed to run behind only after this many renewals. The last renewal of a node that was cut off may
/// have waited longer than a renew interval for the next list, and must not pass for a clock that is off. Until then
/// only the bounds of the lists protect a live node.
const ENOUGH_TO_CALL_BEHIND: u8 = 3;

/// The clock of one node, as its last few renewals show it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NodeClock {
    // The ages of the renewals in microseconds, negative when they came from the future, as of the request for the list
    // that was the first to show them, and as of its answer. The list shows the leases as they were at some moment
    // between the two. So a clock is ahead only if a renewal is from the future even when the answer has come, and
    // behind only if it was too old when the question was asked; else a slow API server would pass for a slow clock.
    newest_first: [(i64, i64); WINDOW],
    renewals: u8,
}

impl NodeClock {
    /// Notes a renewal that was first shown by the list that was asked for at `sent`, with an answer at `received`.
    pub(crate) fn note(&mut self, renew_time: UnixTime, sent: UnixTime, received: UnixTime) {
        let age = |at: UnixTime| at.0.saturating_sub(renew_time.0);
        self.newest_first.rotate_right(1);
        if let Some(newest) = self.newest_first.first_mut() {
            *newest = (age(sent), age(received));
        }
        self.renewals = self.renewals.saturating_add(1).min(WINDOW as u8);
    }

    /// The proven skew of the clock in microseconds, negative when it runs behind. Zero while the renewals look as
    /// renewals should.
    pub(crate) fn skew(&self, renew_interval: Duration) -> i64 {
        let ages = || self.newest_first.iter().take(usize::from(self.renewals));
        let (Some(asked), Some(answered)) = (
            ages().map(|(asked, _)| *asked).min(),
            ages().map(|(_, answered)| *answered).min(),
        ) else {
            return 0;
        };
        let interval = micros(renew_interval);
        if asked > interval && self.renewals >= ENOUGH_TO_CALL_BEHIND {
            interval.saturating_sub(asked)
        } else if answered < 0 {
            answered.saturating_neg()
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const SECOND: i64 = 1_000_000;

    /// A renewal of these ages in seconds when its list was asked for and answered.
    fn note(clock: &mut NodeClock, asked: i64, answered: i64) {
        clock.note(
            UnixTime::default(),
            UnixTime(asked * SECOND),
            UnixTime(answered * SECOND),
        );
    }

    fn arrivals(ages: impl IntoIterator<Item = i64>) -> NodeClock {
        let mut clock = NodeClock::default();
        for age in ages {
            note(&mut clock, age, age);
        }
        clock
    }

    #[test]
    fn table() {
        let rows: &[(&[i64], i64, &str)] = &[
            (&[], 0, "nothing seen"),
            (&[3, 9, 0, 5], 0, "as it should be"),
            (&[25], 0, "one renewal only: the list may have come late"),
            (&[25, 3], 0, "one was late, the next one was not"),
            (
                &[70, 65, 68, 62],
                -52,
                "a minute behind, less what the fastest may have taken",
            ),
            (
                &[-50, -55, -58, -52],
                58,
                "a minute ahead, less what the fastest took",
            ),
            (
                &[-60, 5, 5, 5, 5],
                0,
                "the clock was set, and four renewals later that is believed",
            ),
        ];
        for (ages, expected, why) in rows {
            assert_eq!(
                arrivals(ages.iter().copied()).skew(INTERVAL),
                expected * SECOND,
                "{why}"
            );
        }
    }

    #[test]
    fn a_slow_answer_is_no_skew() {
        let mut clock = NodeClock::default();
        for (asked, answered) in [(-4, 2), (9, 15), (9, 15), (10, 16)] {
            note(&mut clock, asked, answered);
            assert_eq!(clock.skew(INTERVAL), 0);
        }
    }

    proptest! {
        #[test]
        fn the_estimate_never_overshoots(skew in -120_i64..120, delays in prop::collection::vec(0_i64..=10, 3..10)) {
            let estimate = arrivals(delays.iter().map(|delay| delay - skew)).skew(INTERVAL) / SECOND;
            prop_assert!(estimate.abs() <= skew.abs());
            prop_assert!(estimate == 0 || estimate.signum() == skew.signum());
            // What is left uncorrected is at most a renew interval.
            prop_assert!((skew - estimate).abs() <= 10);
        }
    }
}
