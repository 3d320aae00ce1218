//! The instants at which probes of different shoots start together.

use std::time::Duration;

/// Probes that need not start at an exact instant start at multiples of a tick since the Unix epoch, together with
/// those of other shoots: a process that wakes once for many probes spends half of what it would if it woke for each
/// (measured, see docs/explanation/performance.md). This is the longest tick.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// A tick is at most this share of the interval, so that no shoot is probed much more often than configured.
const SHARE: u32 = 8;

/// The shortest tick: a delay of this length is hardly noticed, and a process is busy all the time long before.
pub(crate) const SHORTEST_TICK: Duration = Duration::from_micros(62_500);

/// About this many probes may meet at one tick. Two cores need some 15 ms for them (at 100 to 200 us each, see
/// docs/explanation/performance.md), and a crossing may have to wait for that.
const MEET: u128 = 150;

/// Probes of different shoots meet at the multiples of this. It is halved until not too many meet and it is small
/// beside the interval. So every tick is a multiple of all shorter ones, and probes with different ticks still meet.
pub(crate) fn tick(interval: Duration, shoots: usize) -> Duration {
    let shoots = u128::try_from(shoots).unwrap_or(u128::MAX);
    let most = MEET * interval.as_micros();
    let mut tick = LONGEST_TICK;
    while tick > SHORTEST_TICK && (shoots.saturating_mul(tick.as_micros()) > most || tick * SHARE > interval)
    {
        tick /= 2;
    }
    tick
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_shoots_the_shorter_the_tick() {
        let tick = |seconds, shoots| tick(Duration::from_secs(seconds), shoots);
        let ticks =
            [0, 1, 100, 1_500, 1_501, 10_000, 100_000, usize::MAX].map(|shoots| tick(10, shoots).as_micros());
        assert_eq!(
            ticks,
            [
                1_000_000, 1_000_000, 1_000_000, 1_000_000, 500_000, 125_000, 62_500, 62_500
            ]
        );
        assert_eq!(tick(30, 10_000), Duration::from_millis(250), "a slower pace");
        let short = [1, 2, 7, 8].map(|seconds| tick(seconds, 1).as_micros());
        assert_eq!(
            short,
            [125_000, 250_000, 500_000, 1_000_000],
            "beside a short interval"
        );
    }
}
