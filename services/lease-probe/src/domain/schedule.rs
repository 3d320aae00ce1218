//! When to probe a shoot again.

use std::time::Duration;

use watchdog_api::names::BACK_OFF_FOR_THROTTLED_REQUESTS;
use watchdog_api::unix_time::UnixTime;

use super::assessment::Assessment;
use super::lease_list::MIN_SPACING;
use super::outcome::{Outcome, ProbeFailure};

/// Probes at a crossing are never closer than this. A loss takes two of them: one that finds out at which instant
/// exactly, and one at that instant. More follow each other only where most leases are about to expire and are renewed
/// one by one at the last moment; that must not become a storm.
const CROSSING_SPACING: Duration = Duration::from_millis(100);

/// While a loss stands, probes follow each other at this pace, so that a recovery is seen at once.
const LOST: Duration = Duration::from_secs(2);

/// In all, at most this many probes a second are spent on shoots that are lost or for which seconds decide: a quarter
/// to half of a core (at 100 to 200 us each, see docs/explanation/performance.md).
const CLOSE_PROBES_PER_SECOND: u32 = 2_500;

/// While a shoot is probed closely, a probe that the API server answered with an error is repeated after this pause. A
/// gap between two lists counts as answered only if it is short.
const URGENT_RETRY: Duration = Duration::from_millis(500);

/// An API server that does not answer is asked again at least this often: from when it is back, kube-controller-manager
/// counts its grace period.
const LONGEST_ABSENCE: Duration = Duration::from_secs(8);

/// The longest pause after a 429, whatever `Retry-After` asks for. API servers ask for seconds; a proxy that asks for
/// more must not be able to blind the watchdog to a shoot for a day, and one request in five minutes is no burden.
const LONGEST_THROTTLE: Duration = Duration::from_secs(300);

/// The shortest pause after a 429 of the seed to a list of the machines. It asks for 1 s itself, and a loss may be only
/// 6 s away.
pub(crate) const MACHINES_PAUSE: Duration = Duration::from_secs(4);

/// Probes that need not start at an exact instant start at multiples of a tick since the Unix epoch, together with
/// those of other shoots: a process that wakes once for many probes spends half of what it would if it woke for each
/// (measured, see docs/explanation/performance.md). The longest tick is [`MIN_SPACING`]; an interval has at least
/// this many, so that no shoot is probed much more often than configured.
const TICKS_IN_INTERVAL: u32 = 8;

/// The shortest tick: a delay of this length is hardly noticed, and a process is busy all the time long before.
const SHORTEST_TICK: Duration = Duration::from_micros(62_500);

/// About this many probes may meet at one tick. Two cores need some 15 ms for them (at 100 to 200 us each, see
/// docs/explanation/performance.md), and a crossing may have to wait for that.
const MEET: u128 = 150;

/// The configured pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProbePace {
    /// `probeInterval`.
    pub(crate) interval: Duration,
    /// `backoffJitterFactor`: an interval grows by a random share of up to this much.
    pub(crate) jitter: f64,
    /// `internalProbeFailureBackOffDuration`: after failures the pauses grow from 1 s up to this, at most 8 s.
    pub(crate) failure_back_off: Duration,
    /// Shoots that the process probes.
    pub(crate) shoots: usize,
    /// Those of them that it probes closely: a loss stands, or seconds decide.
    pub(crate) close: usize,
    /// Drawn anew for each probe, in [0, 1).
    pub(crate) random: f64,
}

impl ProbePace {
    /// A pace that all shoots that are probed closely can keep together.
    fn bounded(self, pace: Duration) -> Duration {
        let close = u32::try_from(self.close).unwrap_or(u32::MAX);
        pace.max(Duration::from_secs(1).saturating_mul(close) / CLOSE_PROBES_PER_SECOND)
    }

    /// The pause after a 429 that asked for `wait`: as long as that, but `least` and at most [`LONGEST_THROTTLE`].
    pub(crate) fn pause(self, wait: Option<Duration>, least: Duration) -> Duration {
        self.jittered(wait.unwrap_or_default().clamp(least, LONGEST_THROTTLE))
    }

    fn jittered(self, interval: Duration) -> Duration {
        // At most tenfold: the factor is validated, and a day is more than anybody configures.
        let grown = interval.as_secs_f64() * self.jitter.mul_add(self.random, 1.0);
        Duration::try_from_secs_f64(grown).unwrap_or(interval)
    }
}

/// Probes of different shoots meet at the multiples of this. It is halved until not too many meet and it is small
/// beside the interval. So every tick is a multiple of all shorter ones, and probes with different ticks still meet.
fn tick(interval: Duration, shoots: usize) -> Duration {
    let shoots = u128::try_from(shoots).unwrap_or(u128::MAX);
    let most = MEET * interval.as_micros();
    let mut tick = MIN_SPACING;
    while tick > SHORTEST_TICK
        && (shoots.saturating_mul(tick.as_micros()) > most || tick * TICKS_IN_INTERVAL > interval)
    {
        tick /= 2;
    }
    tick
}

/// When to probe again after a probe that began at `started` and found this. `reported` is the outcome that was
/// reported for it; `counting` is true while more probes in a row must find the same before it is.
///
/// Besides the interval, a probe is due at the instant at which the threshold would be crossed if no lease were
/// renewed: a loss is seen when it becomes one, not up to an interval later. While a loss stands or seconds decide,
/// probes follow each other closely. Except for the crossing itself, probes are aligned to a shared tick, which
/// halves CPU (ADR 0012).
pub(crate) fn after_assessment(
    (started, now): (UnixTime, UnixTime),
    pace: ProbePace,
    found: &Assessment,
    reported: &Outcome,
    counting: bool,
) -> UnixTime {
    let soon = now.after(MIN_SPACING);
    let mut due = now.after(pace.jittered(pace.interval));
    // From list to list, however long one takes.
    let mut within = |interval: Duration| due = due.min(found.judged.after(interval));
    within(found.longest_pause);
    if *reported != Outcome::Healthy {
        within(found.renew_interval);
    }
    if reported.is_loss() {
        within(pace.bounded(LOST));
    } else if found.urgent {
        within(pace.bounded(MIN_SPACING));
    }
    if counting {
        due = due.min(soon);
    }
    let with_others = |at: UnixTime| at.at_multiple_of(tick(pace.interval, pace.shoots)).max(soon);
    due = with_others(due);
    // A crossing that came before the leases were judged was judged. One that came since was not: probe now.
    let crossing = found.crossing.filter(|crossing| *crossing > found.judged);
    for at in [found.look_ahead, crossing].into_iter().flatten() {
        // When the nodes must be listed, apart from other shoots: a list of nodes costs as much as dozens of probes.
        due = due.min(at.max(started.after(CROSSING_SPACING)).max(now));
        // Together with them while it is far, because most kubelets renew before it comes. Without the nodes, a
        // crossing is only when the first lease would expire, so its exact instant does not matter either.
        if found.look_ahead.is_some() {
            due = due.min(with_others(at));
        }
    }
    due
}

/// When to probe again after the `in_a_row`-th failed probe, which began at `started`. `close` is set while a loss
/// stands or seconds decide.
pub(crate) fn after_failure(
    (started, now): (UnixTime, UnixTime),
    pace: ProbePace,
    failure: &ProbeFailure,
    in_a_row: u32,
    close: bool,
) -> UnixTime {
    if let ProbeFailure::Throttled(wait) = failure {
        return now.after(pace.pause(*wait, BACK_OFF_FOR_THROTTLED_REQUESTS));
    }
    // A missing permission or Secret is not back sooner for asking every second, and an answer that is too large costs
    // more than any other. An API server is, and what an outage hides is as long as the outage and the pause after it.
    // While the seed does not list the Machines, the leases are listed, and silence must be proven meanwhile.
    let is_away = failure.suggests_outage() && !matches!(failure, ProbeFailure::AnswerTooLarge(_));
    let is_of_seed = matches!(
        failure,
        ProbeFailure::Machines(_) | ProbeFailure::MachinesThrottled(_)
    );
    let (growth, most) = match is_away || failure.is_own() || is_of_seed {
        true => (
            1.25_f64,
            pace.failure_back_off.clamp(MIN_SPACING, LONGEST_ABSENCE),
        ),
        false => (2.0, pace.interval),
    };
    let repeated = i32::try_from(in_a_row.clamp(1, 30) - 1).unwrap_or(0);
    let pause = match repeated {
        _ if close && is_away => pace.bounded(URGENT_RETRY),
        // The first retry is exact, from start to start: a gap that is short enough takes nothing from what is proven.
        0 => MIN_SPACING,
        _ => pace.jittered(MIN_SPACING.mul_f64(growth.powi(repeated)).min(most)),
    };
    started.after(pause).max(now.after(SHORTEST_TICK))
}

/// When the first probe of a shoot is due, for one of `shoots` that may all start at once: they are spread so that
/// about a thousand start in a second, over at most `initialDelay`. `random` is in [0, 1).
pub(crate) fn first(now: UnixTime, initial_delay: Duration, shoots: usize, random: f64) -> UnixTime {
    let spread = Duration::from_millis(u64::try_from(shoots).unwrap_or(u64::MAX)).min(initial_delay);
    now.after(spread.mul_f64(random.clamp(0.0, 1.0)))
}

/// The end of the validity of a verdict: when the next probe must have ended, and the time to send its verdict.
pub(crate) fn valid_until(next_due: UnixTime, probe_timeout: Duration) -> UnixTime {
    const WAY: Duration = Duration::from_secs(5);
    next_due.after(probe_timeout).after(WAY)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixtures::nothing_found;
    use super::*;

    const PACE: ProbePace = ProbePace {
        interval: Duration::from_secs(30),
        jitter: 0.2,
        failure_back_off: Duration::from_secs(30),
        shoots: 10_000,
        close: 10_000,
        random: 0.0,
    };
    const RENEW: Duration = Duration::from_secs(10);

    fn at(seconds: i64) -> UnixTime {
        UnixTime(seconds * 1_000_000)
    }

    fn found(crossing: Option<UnixTime>) -> Assessment {
        Assessment {
            crossing,
            longest_pause: Duration::from_secs(600),
            ..nothing_found()
        }
    }

    /// When to probe again at `now`, if the last probe began at second 0.
    fn due(now: UnixTime, found: &Assessment) -> UnixTime {
        after_assessment((at(0), now), PACE, found, &Outcome::Healthy, false)
    }

    fn next(outcome: &Outcome, counting: bool, crossing: Option<i64>) -> UnixTime {
        let found = found(crossing.map(at));
        after_assessment((at(0), at(0)), PACE, &found, outcome, counting)
    }

    #[test]
    fn after_a_look_at_the_leases() {
        assert_eq!(next(&Outcome::Healthy, false, None), at(30), "the interval");
        assert_eq!(
            next(&Outcome::Healthy, false, Some(22)),
            at(22),
            "the crossing comes first"
        );
        assert_eq!(
            next(&Outcome::Healthy, false, Some(-5)),
            at(30),
            "a crossing in the past was judged"
        );
        assert_eq!(
            next(&Outcome::LeasesExpired, false, None),
            at(4),
            "10,000 shoots may all be lost"
        );
        assert_eq!(next(&Outcome::Pending, false, None), at(10), "the kubelets' pace");
        assert_eq!(next(&Outcome::Healthy, true, None), at(1), "probes in a row");
        let pace = ProbePace { random: 0.5, ..PACE };
        let jittered = after_assessment((at(0), at(0)), pace, &found(None), &Outcome::Healthy, false);
        assert_eq!(jittered, at(33), "jitter only adds");
    }

    #[test]
    fn the_nodes_are_listed_ahead_of_a_crossing() {
        let ahead = |now, list_nodes_at, by| {
            let found = Assessment {
                look_ahead: Some(list_nodes_at),
                longest_pause: Duration::from_secs(by),
                ..found(Some(at(25)))
            };
            due(now, &found)
        };
        let list_nodes_at = UnixTime(16_123_456);
        assert_eq!(ahead(at(0), list_nodes_at, 20), at(16), "with other shoots");
        assert_eq!(
            ahead(at(0), at(19), 17),
            at(17),
            "not so late that the pause does not count"
        );
        let due = ahead(at(15).shifted(1), list_nodes_at, 20);
        assert_eq!(due, at(16).shifted(1), "there is time for one more probe");
        let due = ahead(at(15).after(Duration::from_millis(200)), list_nodes_at, 20);
        assert_eq!(due, list_nodes_at, "apart from them when it has come");
    }

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

    #[test]
    fn probes_of_different_shoots_meet() {
        let due = |now: i64, crossing| due(UnixTime(now), &found(crossing));
        assert_eq!(due(120_000, None), at(30), "120 ms before the interval is over");
        assert_eq!(due(249_999, None), at(30));
        assert_eq!(due(250_000, None), UnixTime(30_250_000));
        assert_eq!(
            due(120_000, Some(UnixTime(22_123_456))),
            UnixTime(22_123_456),
            "a crossing is looked at when it comes"
        );
        let first_expiry = UnixTime(20_123_456);
        let healthy = Assessment {
            look_ahead: Some(at(23)),
            longest_pause: Duration::from_secs(24),
            ..found(Some(first_expiry))
        };
        let due = |now| super::tests::due(now, &healthy);
        assert_eq!(
            due(at(1)),
            at(20),
            "the first lease that would expire is no crossing"
        );
        let late = first_expiry.before(Duration::from_millis(30));
        assert_eq!(due(late), first_expiry, "and is not looked at later for it");
    }

    #[test]
    fn a_crossing_waits_for_nobody_but_a_storm_is_bounded() {
        let crossing = Some(UnixTime(150_000));
        let due = |started: i64, now: i64| {
            let times = (UnixTime(started), UnixTime(now));
            after_assessment(times, PACE, &found(crossing), &Outcome::Healthy, false)
        };
        assert_eq!(due(0, 20_000), UnixTime(150_000));
        assert_eq!(
            due(0, 160_000),
            UnixTime(160_000),
            "it came since the leases were judged"
        );
        assert_eq!(
            due(100_000, 120_000),
            UnixTime(200_000),
            "the probe began just before"
        );
    }

    #[test]
    fn after_a_failure() {
        let connect = ProbeFailure::Connect(String::new());
        let pauses: Vec<_> = (1..=4)
            .map(|in_a_row| after_failure((at(0), at(0)), PACE, &connect, in_a_row, false))
            .collect();
        assert_eq!(
            pauses,
            [1.0, 1.25, 1.5625, 1.953_125].map(|seconds| UnixTime((seconds * 1e6) as i64))
        );
        let refused = ProbeFailure::Kubeconfig(String::new());
        let pauses: Vec<_> = (1..=4)
            .map(|in_a_row| after_failure((at(0), at(0)), PACE, &refused, in_a_row, false))
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8].map(at), "not back sooner for asking often");
        for (asked, pause, why) in [
            (None, 10, "10 s is the least"),
            (Some(1), 10, "also if less is asked for"),
            (Some(25), 25, "Retry-After is honoured"),
            (
                Some(301),
                300,
                "300 s is the most: nobody silences the watchdog for a day",
            ),
            (Some(u64::MAX), 300, "whatever is asked for"),
        ] {
            let failure = ProbeFailure::Throttled(asked.map(Duration::from_secs));
            let due = after_failure((at(0), at(0)), PACE, &failure, 1, false);
            assert_eq!(due, at(pause), "{why}");
        }
        assert_eq!(valid_until(at(300), Duration::from_secs(30)), at(335));
        let failed = ProbeFailure::ListFailed("500".into());
        let alone = ProbePace { close: 1, ..PACE };
        let close = |pace| after_failure((at(0), at(0)), pace, &failed, 9, true);
        assert_eq!(close(alone), at(0).after(URGENT_RETRY), "while seconds decide");
        assert_eq!(close(PACE), at(4), "of 10,000 shoots at once");
    }

    /// The seed throttles or fails, not the shoot: leases are still listed.
    #[test]
    fn a_failure_of_the_seed_pauses_no_list_of_leases() {
        for failure in [
            ProbeFailure::MachinesThrottled(Some(Duration::from_secs(60))),
            ProbeFailure::Machines("403".to_owned()),
        ] {
            let due = |in_a_row| after_failure((at(0), at(0)), PACE, &failure, in_a_row, false);
            assert_eq!((due(1), due(30)), (at(1), at(8)), "{failure}");
        }
    }

    #[test]
    fn a_429_of_the_seed_pauses_the_machines() {
        let pause = |wait: Option<u64>| {
            PACE.pause(wait.map(Duration::from_secs), MACHINES_PAUSE)
                .as_secs()
        };
        let pauses = [None, Some(1), Some(9), Some(86_400)].map(pause);
        assert_eq!(pauses, [4, 4, 9, 300], "as long as it asks for, within bounds");
    }

    #[test]
    fn first_probes_are_spread() {
        let delay = Duration::from_secs(30);
        assert_eq!(
            first(at(0), delay, 10_000, 0.999_999),
            at(0).after(Duration::from_micros(9_999_990))
        );
        assert_eq!(
            first(at(0), delay, 1, 0.5),
            at(0).after(Duration::from_micros(500))
        );
        assert!(first(at(0), delay, 1_000_000, 0.9) <= at(30));
    }

    proptest! {
        #[test]
        fn never_later_than_the_interval_or_the_crossing_and_never_a_storm(
            crossings in prop::collection::vec(prop::option::of(-100_i64..40_000), 1..60), random in 0.0_f64..1.0,
            counting: bool, known: bool,
        ) {
            let (mut now, mut starts) = (at(0), vec![]);
            for millis in crossings {
                starts.push(now);
                let crossing = millis.map(|millis| now.shifted(millis * 1_000));
                let list_nodes_at = crossing.map(|crossing| crossing.before(RENEW / 2));
                let look_ahead = list_nodes_at
                    .filter(|at| !known && *at > now);
                let found = Assessment { judged: now, look_ahead, ..found(crossing) };
                let pace = ProbePace { random, ..PACE };
                let due = after_assessment((now, now), pace, &found, &Outcome::Healthy, counting);
                prop_assert!(due <= now.after(Duration::from_secs(36)));
                if !counting && crossing.is_none() {
                    prop_assert!(due > now.after(Duration::from_secs(30)).before(tick(PACE.interval, PACE.shoots)));
                }
                match crossing.filter(|crossing| *crossing > now) {
                    Some(crossing) => prop_assert!(due <= crossing.max(now.after(MIN_SPACING))),
                    None => prop_assert!(due >= now.after(MIN_SPACING)),
                }
                now = due;
            }
            for pair in starts.windows(2) {
                prop_assert!(pair[1].since(pair[0]) >= CROSSING_SPACING);
            }
        }
    }
}
