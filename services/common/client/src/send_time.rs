//! How long messages were under way, without comparing two wall clocks.

use std::time::Duration;

use tokio::time::Instant;

/// Clocks whose speeds differ by up to one part in this number are followed: virtual machines under load and hosts
/// without time service stay far below 10 %.
const DRIFT: i64 = 10;

/// Estimates the transit time of the messages of one stream.
///
/// Every message carries the sender's uptime. Between two messages, arrival times and uptimes advance by the same
/// amount unless one of the two was delayed longer; so the message with the smallest difference between both was the
/// fastest, and all others were delayed by what they lie above it. The first message was produced after the request
/// for the stream, so its transit is at most the time since: this is the error of the estimate, on the safe side.
/// What is known of the fastest message fades at the rate at which the two clocks may drift apart.
#[derive(Debug)]
pub struct SendTimeEstimator {
    opened: Instant,
    first: Option<First>,
}

#[derive(Debug)]
struct First {
    arrived: Instant,
    uptime: Duration,
    at_most: i64,
    fastest: i64,
    fastest_as_of: Instant,
}

impl SendTimeEstimator {
    /// For a stream that was requested at `opened`.
    #[must_use]
    pub const fn new(opened: Instant) -> Self {
        Self { opened, first: None }
    }

    /// When a message that arrived at `arrived` was sent, by the local clock; never later than true by more than a
    /// tenth of the time that passed since a message came without delay.
    pub fn sent_at(&mut self, arrived: Instant, uptime: Duration) -> Instant {
        let opened = self.opened;
        let first = self.first.get_or_insert_with(|| First {
            arrived,
            uptime,
            at_most: micros(arrived.saturating_duration_since(opened)),
            fastest: 0,
            fastest_as_of: arrived,
        });
        let by_arrival = micros(arrived.saturating_duration_since(first.arrived));
        let by_uptime = micros(uptime).saturating_sub(micros(first.uptime));
        let above_first = by_arrival.saturating_sub(by_uptime);
        let faded = micros(arrived.saturating_duration_since(first.fastest_as_of)) / DRIFT;
        first.fastest = first.fastest.saturating_add(faded).min(above_first);
        first.fastest_as_of = arrived;
        let transit = above_first
            .saturating_sub(first.fastest)
            .saturating_add(first.at_most)
            .max(0);
        let transit = Duration::from_micros(transit.unsigned_abs());
        arrived.checked_sub(transit).unwrap_or(opened)
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_delayed_message_is_dated_back() {
        let opened = Instant::now();
        let mut transit = SendTimeEstimator::new(opened);
        assert_eq!(transit.sent_at(opened, 100 * SECOND), opened);
        // Sent 10 s later, but arrived 50 s later: the reader was stopped.
        assert_eq!(
            transit.sent_at(opened + 50 * SECOND, 110 * SECOND),
            opened + 15 * SECOND
        );
        assert_eq!(
            transit.sent_at(opened + 50 * SECOND, 149 * SECOND),
            opened + 50 * SECOND
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_clock_of_the_sender_is_followed() {
        let opened = Instant::now();
        let mut transit = SendTimeEstimator::new(opened);
        for i in 0..1000_u32 {
            let arrived = opened + 5 * SECOND * i;
            let sent = transit.sent_at(arrived, 5 * SECOND * i * 9 / 10);
            assert!(
                arrived - sent <= SECOND,
                "message {i} looks {:?} old",
                arrived - sent
            );
        }
    }

    proptest! {
        #[test]
        fn never_dates_a_message_later_than_it_was_sent_but_for_the_drift(
            open_delay in 0_u64..3_000,
            steps in prop::collection::vec((0_u64..5_000, 0_u64..20_000), 1..50),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _guard = runtime.enter();
            let opened = Instant::now();
            let mut transit = SendTimeEstimator::new(opened);
            let mut sent = opened + Duration::from_millis(open_delay);
            let mut arrived = sent;
            let mut first_arrival = None;
            for (gap, delay) in steps {
                sent += Duration::from_millis(gap);
                // Messages of one stream arrive in order.
                arrived = arrived.max(sent + Duration::from_millis(delay));
                let uptime = SECOND * 1000 + (sent - opened);
                let may_drift = (arrived - *first_arrival.get_or_insert(arrived)) / 10;
                prop_assert!(transit.sent_at(arrived, uptime) <= sent + may_drift);
            }
        }
    }
}
