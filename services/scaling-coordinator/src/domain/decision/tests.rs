use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::domain::testing::{self, start};

const STREAMS: StreamCounts = StreamCounts { known: 2, synced: 2 };
const THROTTLED: ReportedOutcome = ReportedOutcome::Undecided("THROTTLED");
const ALL: [ReportedOutcome; 7] = [
    ReportedOutcome::Healthy,
    ReportedOutcome::LeasesExpired,
    ReportedOutcome::ExternalUnreachable,
    ReportedOutcome::Skipped,
    ReportedOutcome::Pending,
    THROTTLED,
    ReportedOutcome::Outdated,
];

fn verdict(
    start: Instant,
    observer: &str,
    outcome: ReportedOutcome,
    observed: i64,
    valid: i64,
) -> ReceivedVerdict {
    let at = |seconds: i64| match u64::try_from(seconds) {
        Ok(ahead) => start + Duration::from_secs(ahead),
        Err(_) => start - Duration::from_secs(seconds.unsigned_abs()),
    };
    ReceivedVerdict {
        observer: observer.into(),
        valid_until: at(valid),
        ..testing::verdict(outcome, at(observed))
    }
}

#[test]
fn what_is_older_than_before_does_not_count_until_something_new_comes() {
    let now = start();
    let first = testing::verdict(ReportedOutcome::Healthy, now);
    let loss = |observed| testing::verdict(ReportedOutcome::LeasesExpired, observed);
    let mut last = first.clone();
    for seconds in [30, 10] {
        last = loss(now - Duration::from_secs(seconds)).after(&last);
        assert_eq!(last.outcome, ReportedOutcome::Outdated, "{seconds} s old");
        assert_eq!((last.observed, last.valid_until), (now, first.valid_until));
    }
    for new in [
        loss(now - ROUNDING),
        loss(now),
        loss(now + Duration::from_secs(5)),
    ] {
        assert_eq!(new.clone().after(&last), new);
    }
}

#[test]
fn the_cluster_the_leadership_and_the_mode_come_before_the_verdicts() {
    let (released, malformed) = (Some(true), Some(false));
    let hold = |reason| Some((None, Some(reason)));
    let release = Some((Some(Direction::Release), Some(HoldReason::Cluster)));
    for (refusal, leads, mode, expected) in [
        (None, true, Mode::Protect, None),
        (None, true, Mode::Observe, None),
        (None, true, Mode::Off, hold(HoldReason::Mode)),
        (None, false, Mode::Protect, hold(HoldReason::NotLeading)),
        (None, false, Mode::Off, hold(HoldReason::NotLeading)),
        (released, true, Mode::Protect, release),
        (released, true, Mode::Off, hold(HoldReason::Mode)),
        (released, false, Mode::Protect, hold(HoldReason::Cluster)),
        (malformed, true, Mode::Protect, hold(HoldReason::Cluster)),
        (malformed, true, Mode::Off, hold(HoldReason::Cluster)),
    ] {
        let cluster = refusal.map(|is_released| match is_released {
            true => Decision::release("The Cluster."),
            false => Decision::hold(HoldReason::Cluster, "The Cluster."),
        });
        let not_leading = (!leads).then(|| "Another one leads.".to_owned());
        let in_force = ModeInForce {
            mode,
            ..ModeInForce::default()
        };
        let decision = decide_without_verdicts(cluster, not_leading, in_force);
        let found = decision.map(|decision| (decision.direction, decision.held));
        assert_eq!(found, expected, "{refusal:?}, leads: {leads}, {mode:?}");
    }
}

#[test]
fn one_valid_verdict_decides_until_its_validity_ends() {
    let now = start();
    for outcome in ALL {
        let verdict = verdict(now, "a", outcome, -1, 20);
        let decision = decide(now, [&verdict], STREAMS);
        let expected = match outcome {
            ReportedOutcome::LeasesExpired | ReportedOutcome::ExternalUnreachable => Some(Direction::Down),
            ReportedOutcome::Healthy => Some(Direction::Up),
            _ => None,
        };
        assert_eq!(decision.direction, expected, "{outcome:?}");
        assert!(decision.reason.contains(outcome.as_str()), "{}", decision.reason);
        let is_outdated = decision.held == Some(HoldReason::Outdated);
        assert_eq!(is_outdated, outcome == ReportedOutcome::Outdated);
        assert_eq!(decision.again_at, Some(now + Duration::from_secs(20)));
        let later = decide(now + Duration::from_secs(20), [&verdict], STREAMS);
        assert_eq!(
            later.direction, None,
            "the validity ends at its instant, not after it"
        );
        assert_eq!(later.again_at, None);
    }
}

/// A verdict whose list showed a revision, and whose outcome was first found at `since`.
fn vote(
    outcome: ReportedOutcome,
    observer: &str,
    revision: u64,
    since: Instant,
    observed: Instant,
) -> ReceivedVerdict {
    ReceivedVerdict {
        observer: observer.into(),
        outcome_since: since,
        list_revision: revision,
        ..testing::verdict(outcome, observed)
    }
}

#[test]
fn the_newer_list_decides_after_the_older_one_had_its_time() {
    let (s, start) = (Duration::from_secs(1), start());
    // By the revision, which a wall clock or a slow stream does not distort; without one by the time.
    for (revisions, observed_before) in [
        ((7, 9), Duration::ZERO),
        ((7, 9), 5 * s),
        ((0, 9), 5 * s),
        ((7, 0), 5 * s),
    ] {
        let healthy = vote(
            ReportedOutcome::Healthy,
            "a",
            revisions.0,
            start - 60 * s,
            start - observed_before,
        );
        let lost = vote(ReportedOutcome::LeasesExpired, "b", revisions.1, start, start);
        let at = |seconds: u32| decide(start + seconds * s, [&healthy, &lost], STREAMS);
        for seconds in 0..3 {
            let waits = at(seconds);
            assert_eq!(
                (waits.direction, waits.held),
                (None, Some(HoldReason::Disagreement))
            );
            assert_eq!(waits.again_at, Some(start + CONFIRMATION_WAIT));
            assert!(waits.reason.contains("confirm or correct"), "{}", waits.reason);
        }
        assert_eq!(at(3).direction, Some(Direction::Down), "{:?}", at(3));
    }
}

#[test]
fn a_witness_that_just_began_to_doubt_has_its_time_and_one_that_has_just_started_has_none() {
    let (s, start) = (Duration::from_secs(1), start());
    let lost = vote(ReportedOutcome::LeasesExpired, "b", 9, start, start);
    // PENDING is never valid: its validity ends when it begins.
    let pending = |since: Instant| ReceivedVerdict {
        valid_until: since,
        ..vote(ReportedOutcome::Pending, "a", 11, since, since)
    };
    for since in [start - 2 * s, start + s] {
        let at = |seconds: u32| decide(start + seconds * s, [&pending(since), &lost], STREAMS);
        for seconds in 1..3 {
            let waits = at(seconds);
            assert_eq!(
                (waits.direction, waits.held),
                (None, Some(HoldReason::Disagreement))
            );
            assert_eq!(waits.again_at, Some(start + CONFIRMATION_WAIT));
            assert!(
                waits.reason.contains("a reports PENDING and has 3 s"),
                "{}",
                waits.reason
            );
        }
        assert_eq!(at(3).direction, Some(Direction::Down), "{:?}", at(3));
    }
    let long_since = pending(start - 3 * s);
    let decision = decide(start, [&long_since, &lost], STREAMS);
    assert_eq!(decision.direction, Some(Direction::Down), "{decision:?}");
    let healthy = vote(ReportedOutcome::Healthy, "b", 9, start, start);
    let decision = decide(start, [&pending(start), &healthy], STREAMS);
    assert_eq!(decision.direction, Some(Direction::Up), "nobody doubts health");
}

#[test]
fn a_renewed_verdict_does_not_begin_its_wait_anew() {
    let (s, start) = (Duration::from_secs(1), start());
    let healthy = vote(ReportedOutcome::Healthy, "a", 7, start - 60 * s, start - 5 * s);
    let renewed = vote(ReportedOutcome::LeasesExpired, "b", 11, start, start + 2 * s);
    let decision = decide(start + 3 * s, [&healthy, &renewed], STREAMS);
    assert_eq!(decision.direction, Some(Direction::Down));
}

#[test]
fn contrary_verdicts_on_equally_new_lists_hold() {
    let (s, start) = (Duration::from_secs(1), start());
    // By the revision, and by the time where there is none.
    for revision in [9, 0] {
        for [healthy, lost] in [["a", "b"], ["b", "a"]] {
            let healthy = vote(ReportedOutcome::Healthy, healthy, revision, start - 60 * s, start);
            let lost = vote(ReportedOutcome::LeasesExpired, lost, revision, start, start);
            let decision = decide(start + 10 * s, [&healthy, &lost], STREAMS);
            assert_eq!(decision.held, Some(HoldReason::Disagreement), "{decision:?}");
        }
    }
}

#[test]
fn of_no_candidates_there_is_no_share() {
    let counts = |expired, candidates| EvidenceCounts {
        expired,
        candidates,
        ..EvidenceCounts::default()
    };
    assert_eq!(counts(0, 0).expired_share(), None);
    assert_eq!(counts(1, 2).expired_share(), Some(0.5));
}

/// The second witness stands on an API server that lags `lag` behind: whatever it lists, renewals included, is as old.
/// The loss began at revision 1,000; the first witness says so every 2 s, on the newest list.
#[test]
fn a_witness_on_an_api_server_that_lags_delays_a_loss_by_its_time_to_confirm() {
    let (s, start) = (Duration::from_secs(1), start());
    let revision = |second: u32| 1_000 + u64::from(second);
    for lag in [5, 20, 60] {
        for second in 0..lag {
            let now = start + second * s;
            let lost = ReceivedVerdict {
                first_revision: revision(0),
                ..vote(
                    ReportedOutcome::LeasesExpired,
                    "a",
                    revision(second / 2 * 2),
                    start,
                    start + second / 2 * 2 * s,
                )
            };
            let lagging = vote(
                ReportedOutcome::Healthy,
                "b",
                revision(second) - u64::from(lag),
                start - 60 * s,
                now,
            );
            let direction = decide(now, [&lost, &lagging], STREAMS).direction;
            let expected = (second >= 3).then_some(Direction::Down);
            assert_eq!(direction, expected, "{second} s, {lag} s behind");
            // Where it has seen that list and still sees renewals, it refutes.
            let sees = ReceivedVerdict {
                list_revision: revision(0),
                ..lagging
            };
            if second > 0 {
                assert_eq!(
                    decide(now, [&lost, &sees], STREAMS).held,
                    Some(HoldReason::Disagreement)
                );
            }
        }
    }
}

/// Where it is not known with which list an outcome began, the time of the look decides.
#[test]
fn an_unknown_first_list_holds() {
    let (s, start) = (Duration::from_secs(1), start());
    let lost = vote(ReportedOutcome::LeasesExpired, "a", 1_002, start, start + 2 * s);
    let lagging = vote(ReportedOutcome::Healthy, "b", 900, start - 60 * s, start + s);
    let unknown = ReceivedVerdict {
        first_revision: 0,
        ..lost.clone()
    };
    assert_eq!(
        decide(start + 10 * s, [&unknown, &lagging], STREAMS).direction,
        None
    );
    let known = ReceivedVerdict {
        first_revision: 1_000,
        ..lost
    };
    let decision = decide(start + 10 * s, [&known, &lagging], STREAMS);
    assert_eq!(decision.direction, Some(Direction::Down));
    let unlisted = ReceivedVerdict {
        list_revision: 0,
        ..lagging
    };
    assert_eq!(
        decide(start + 10 * s, [&known, &unlisted], STREAMS).direction,
        None
    );
}

#[test]
fn says_why_there_is_no_verdict() {
    let now = start();
    let reason = |streams| decide(now, [], streams).reason;
    assert_eq!(
        reason(StreamCounts::default()),
        "No lease-probe replica is known."
    );
    assert_eq!(
        reason(StreamCounts { known: 1, synced: 0 }),
        "No stream from lease-probe is connected."
    );
    assert_eq!(
        reason(StreamCounts { known: 1, synced: 1 }),
        "No lease-probe replica reports this shoot."
    );
    let old = verdict(now, "a", ReportedOutcome::LeasesExpired, -60, -20);
    assert_eq!(
        decide(now, [&old], STREAMS).reason,
        "The last verdict, LEASES_EXPIRED by a, is no longer valid and was not renewed."
    );
}

#[test]
fn the_newest_of_several_expired_verdicts_is_named() {
    let now = start();
    let older = verdict(now, "c", ReportedOutcome::Healthy, -60, -20);
    let newest = verdict(now, "a", ReportedOutcome::LeasesExpired, -50, -10);
    let same_time = verdict(now, "b", THROTTLED, -50, -10);
    for (given, named) in [
        ([&older, &newest], "LEASES_EXPIRED by a"),
        ([&newest, &older], "LEASES_EXPIRED by a"),
        ([&newest, &same_time], "THROTTLED by b"),
        ([&same_time, &newest], "THROTTLED by b"),
    ] {
        let decision = decide(now, given, STREAMS);
        assert_eq!(decision.held, Some(HoldReason::Expired));
        assert!(decision.reason.contains(named), "{}", decision.reason);
    }
}

#[test]
fn a_sentence_that_a_verdict_has_brought_is_not_repeated() {
    let mut decision = Decision::hold(HoldReason::Verdict, "Because. It is malformed.");
    decision.explain("It is malformed.");
    decision.explain("So is that.");
    assert_eq!(decision.reason, "Because. It is malformed. So is that.");
}

/// Its outcome by index, when it was observed and for how long before, its list and by how much that has grown since
/// the first one, and how long it is valid.
type GivenVerdict = (usize, i64, i64, (u64, u64), i64);

proptest! {
    #[test]
    fn a_direction_always_has_a_valid_verdict_and_no_newer_or_unheard_contradiction(
        given in prop::collection::vec(
            (0..ALL.len(), -20_i64..0, 0_i64..10, (0_u64..4, 0_u64..4), -20_i64..20),
            0..5,
        ),
    ) {
        let now = start();
        let of = |(i, given): (usize, &GivenVerdict)| {
            let (outcome, observed, since, (revision, grown), valid) = given;
            let verdict = verdict(now, &format!("o{i}"), ALL[*outcome], *observed, *valid);
            ReceivedVerdict {
                outcome_since: verdict.observed - Duration::from_secs(since.unsigned_abs()),
                list_revision: *revision,
                first_revision: revision.saturating_sub(*grown),
                ..verdict
            }
        };
        let verdicts: Vec<ReceivedVerdict> = given.iter().enumerate().map(of).collect();
        let decision = decide(now, &verdicts, STREAMS);
        prop_assert_eq!(&decision, &decide(now, verdicts.iter().rev(), STREAMS));
        let votes = || verdicts.iter().filter(|v| v.valid_until > now && v.outcome.direction().is_some());
        match decision.direction {
            Some(direction) => {
                let agrees = |v: &&ReceivedVerdict| v.outcome.direction() == Some(direction);
                let contrary: Vec<_> = votes().filter(|v| !agrees(v)).collect();
                let decides = |v: &ReceivedVerdict| {
                    contrary.iter().all(|other| {
                        let is_earlier = other.observed <= v.outcome_since;
                        let is_older = (1..v.first_revision).contains(&other.list_revision);
                        v.is_newer(other)
                            && (is_earlier || is_older)
                            && v.outcome_since + CONFIRMATION_WAIT <= now
                    })
                };
                prop_assert!(votes().filter(agrees).any(decides));
            }
            None => {
                let directions = |direction| votes().any(|v| v.outcome.direction() == Some(direction));
                let both = directions(Direction::Down) && directions(Direction::Up);
                let doubted = votes().any(|loss| {
                    verdicts.iter().any(|v| v.doubts(loss)) && loss.outcome_since + CONFIRMATION_WAIT > now
                });
                prop_assert!(votes().next().is_none() || both || doubted);
                prop_assert_eq!(decision.held == Some(HoldReason::Disagreement), votes().next().is_some());
            }
        }
        // Two that contradict each other and have both looked at the same data since, in time and in the data: held.
        for (a, b) in votes().flat_map(|a| votes().map(move |b| (a, b))) {
            let since = |one: &ReceivedVerdict, other: &ReceivedVerdict| {
                one.observed > other.outcome_since && one.list_revision >= other.first_revision
            };
            if a.outcome.direction() != b.outcome.direction() && since(a, b) && since(b, a) && votes().count() == 2 {
                prop_assert_eq!(decision.direction, None);
            }
        }
        // Deciding again only at the time that was asked for misses nothing.
        if let Some(again) = decision.again_at {
            let just_before = again - Duration::from_nanos(1);
            prop_assert_eq!(decide(just_before, &verdicts, STREAMS).direction, decision.direction);
        } else {
            let much_later = now + Duration::from_secs(1_000);
            prop_assert_eq!(decide(much_later, &verdicts, STREAMS).direction, decision.direction);
        }
    }
}
