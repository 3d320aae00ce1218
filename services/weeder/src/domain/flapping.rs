//! When may a weeder begin to delete after its service became ready?

use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

/// A service that became ready more often than this within [`WINDOW`] comes and goes.
const MAX_RECOVERIES: usize = 3;

/// See [`MAX_RECOVERIES`].
const WINDOW: Duration = Duration::from_secs(60);

/// A service that comes and goes must stay ready this long before its dependants are deleted.
pub(crate) const SETTLED: Duration = Duration::from_secs(30);

/// The latest moments at which a service became ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recoveries(Vec<UnixTime>);

impl Recoveries {
    pub(crate) fn add(&mut self, now: UnixTime) {
        self.0.retain(|at| now.since(*at) < WINDOW);
        // The oldest ones say nothing that the others do not say.
        if self.0.len() > MAX_RECOVERIES {
            self.0.remove(0);
        }
        self.0.push(now);
    }

    pub(crate) fn is_flapping(&self, now: UnixTime) -> bool {
        let recent = self.0.iter().filter(|at| now.since(**at) < WINDOW);
        recent.count() > MAX_RECOVERIES
    }

    /// True when it was flapping when it last became ready.
    pub(crate) fn was_flapping(&self) -> bool {
        self.0.last().is_some_and(|last| self.is_flapping(*last))
    }

    /// How long the service must stay ready before its dependants are deleted.
    pub(crate) fn pause(&self, ready_for: Duration, now: UnixTime) -> Duration {
        if self.is_flapping(now) {
            ready_for.max(SETTLED)
        } else {
            ready_for
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::fixtures::at;

    #[test]
    fn the_fourth_recovery_in_a_minute_waits() {
        let mut recoveries = Recoveries::default();
        let pauses: Vec<u64> = [0.0, 10.0, 20.0, 30.0, 59.0, 69.0, 200.0]
            .map(|now| {
                recoveries.add(at(now));
                recoveries.pause(Duration::ZERO, at(now)).as_secs()
            })
            .to_vec();
        assert_eq!(pauses, [0, 0, 0, 30, 30, 30, 0]);
        for now in [200.0, 201.0, 202.0] {
            recoveries.add(at(now));
        }
        let pause = |now: f64, ready_for| {
            recoveries
                .pause(Duration::from_secs(ready_for), at(now))
                .as_secs()
        };
        assert_eq!((pause(203.0, 5), pause(203.0, 50)), (30, 50));
        assert_eq!((pause(260.0, 5), pause(260.0, 50)), (5, 50), "a minute later");
    }

    proptest! {
        /// Weeders that may delete at once.
        #[test]
        fn never_more_than_three_in_any_minute(gaps in prop::collection::vec(0_u32..40, 1..60)) {
            let (mut recoveries, mut now, mut at_once) = (Recoveries::default(), 0, Vec::new());
            for gap in gaps {
                now += gap;
                recoveries.add(at(f64::from(now)));
                prop_assert!(recoveries.0.len() <= MAX_RECOVERIES + 1);
                if recoveries.pause(Duration::ZERO, at(f64::from(now))).is_zero() {
                    at_once.push(now);
                }
            }
            for window in at_once.windows(4) {
                prop_assert!(window[3] - window[0] >= 60, "{window:?}");
            }
        }
    }
}
