use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::domain::direction_name;

const STREAMS: StreamCounts = StreamCounts { known: 2, synced: 2 };
const ALL: [Outcome; 11] = [
    Outcome::Healthy,
    Outcome::LeasesExpired,
    Outcome::ExternalUnreachable,
    Outcome::ApiServerUnreachable,
    Outcome::Throttled,
    Outcome::Inconclusive,
    Outcome::TooFewCandidates,
    Outcome::Skipped,
    Outcome::Pending,
    Outcome::Unknown,
    Outcome::Outdated,
];

fn start() -> Instant {
    Instant::now() + Duration::from_secs(1_000)
}

fn verdict(start: Instant, observer: &str, outcome: Outcome, observed: i64, valid: i64) -> ReceivedVerdict {
    let at = |seconds: i64| match u64::try_from(seconds) {
        Ok(ahead) => start + Duration::from_secs(ahead),
        Err(_) => start - Duration::from_secs(seconds.unsigned_abs()),
    };
    ReceivedVerdict {
        outcome,
        observer: observer.into(),
        observed: at(observed),
        sent: at(observed),
        valid_until: at(valid),
        message: "6 of 10 leases expired.".into(),
    }
}

#[test]
fn one_valid_verdict_decides_until_its_validity_ends() {
    let now = start();
    for outcome in ALL {
        let verdict = verdict(now, "a", outcome, -1, 20);
        let decision = decide(now, [&verdict], STREAMS);
        let expected = match outcome {
            Outcome::LeasesExpired | Outcome::ExternalUnreachable => Some(Direction::Down),
            Outcome::Healthy => Some(Direction::Up),
            _ => None,
        };
        assert_eq!(decision.direction, expected, "{outcome:?}");
        assert!(decision.reason.contains(outcome.as_str()), "{}", decision.reason);
        if outcome != Outcome::Pending {
            assert_eq!(decision.again_at, Some(now + Duration::from_secs(20)));
        }
        let later = decide(now + Duration::from_secs(20), [&verdict], STREAMS);
        assert_eq!(
            later.direction, None,
            "the validity ends at its instant, not after it"
        );
        assert_eq!(later.again_at, None);
    }
}

#[test]
fn observers_that_disagree_hold() {
    let now = start();
    let table = [
        (Outcome::LeasesExpired, Outcome::Healthy, None),
        (Outcome::LeasesExpired, Outcome::ApiServerUnreachable, None),
        (Outcome::Healthy, Outcome::Inconclusive, None),
        (
            Outcome::LeasesExpired,
            Outcome::ExternalUnreachable,
            Some(Direction::Down),
        ),
        (Outcome::LeasesExpired, Outcome::Pending, Some(Direction::Down)),
        (Outcome::Healthy, Outcome::Pending, Some(Direction::Up)),
    ];
    for (a, b, expected) in table {
        let (a, b) = (verdict(now, "a", a, -5, 20), verdict(now, "b", b, -1, 10));
        let decision = decide(now, [&a, &b], STREAMS);
        assert_eq!(decision.direction, expected, "{decision:?}");
        assert_eq!(
            decision,
            decide(now, [&b, &a], STREAMS),
            "their order does not matter"
        );
        if expected.is_none() {
            assert!(decision.reason.contains("disagree"), "{}", decision.reason);
            let after = decide(now + Duration::from_secs(10), [&a, &b], STREAMS);
            assert_eq!(after.direction, a.outcome.direction(), "b is no longer valid");
        }
    }
}

#[test]
fn says_why_there_is_no_verdict() {
    let now = start();
    let reason = |streams| decide(now, [], streams).reason;
    assert_eq!(
        reason(StreamCounts::default()),
        "No replica of lease-probe is known."
    );
    assert_eq!(
        reason(StreamCounts { known: 1, synced: 0 }),
        "No stream from lease-probe is connected."
    );
    assert_eq!(
        reason(StreamCounts { known: 1, synced: 1 }),
        "No replica of lease-probe reports this shoot."
    );
    let old = verdict(now, "a", Outcome::LeasesExpired, -60, -20);
    assert_eq!(
        decide(now, [&old], STREAMS).reason,
        "The last verdict, LEASES_EXPIRED by a, is no longer valid and was not renewed."
    );
}

#[test]
fn the_newest_of_several_expired_verdicts_is_named() {
    let now = start();
    let older = verdict(now, "c", Outcome::Healthy, -60, -20);
    let newest = verdict(now, "a", Outcome::LeasesExpired, -50, -10);
    let same_time = verdict(now, "b", Outcome::Throttled, -50, -10);
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
fn a_release_has_its_direction_and_the_cluster_as_its_cause() {
    let release = Decision::release("The shoot hibernates.");
    assert_eq!(
        (release.direction, release.held),
        (Some(Direction::Release), Some(HoldReason::Cluster))
    );
}

#[test]
fn label_values() {
    let directions = [
        (None, "hold"),
        (Some(Direction::Down), "down"),
        (Some(Direction::Up), "up"),
        (Some(Direction::Release), "release"),
    ];
    for (direction, label) in directions {
        assert_eq!(direction_name(direction), label);
    }
    let reasons = [
        (HoldReason::Cluster, "cluster", false),
        (HoldReason::Ownership, "ownership", false),
        (HoldReason::Unreported, "unreported", false),
        (HoldReason::Expired, "expired", false),
        (HoldReason::Disagreement, "disagreement", true),
        (HoldReason::Outdated, "outdated", true),
        (HoldReason::Verdict, "verdict", false),
        (HoldReason::Mode, "mode", false),
    ];
    for (reason, label, is_strange) in reasons {
        assert_eq!((reason.as_str(), reason.is_strange()), (label, is_strange));
    }
}

#[test]
fn a_sentence_that_a_verdict_has_brought_is_not_repeated() {
    let mut decision = Decision::hold(HoldReason::Verdict, "Because. It is malformed.");
    decision.explain("It is malformed.");
    decision.explain("So is that.");
    assert_eq!(decision.reason, "Because. It is malformed. So is that.");
}

proptest! {
    #[test]
    fn a_direction_always_has_a_valid_verdict_and_no_valid_contradiction(
        given in prop::collection::vec((0..ALL.len(), -100_i64..0, -50_i64..50), 0..5),
    ) {
        let now = start();
        let verdicts: Vec<ReceivedVerdict> = given
            .iter()
            .enumerate()
            .map(|(i, (outcome, observed, valid))| verdict(now, &format!("o{i}"), ALL[*outcome], *observed, *valid))
            .collect();
        let decision = decide(now, &verdicts, STREAMS);
        let valid = |v: &&ReceivedVerdict| v.valid_until > now && v.outcome != Outcome::Pending;
        if let Some(direction) = decision.direction {
            prop_assert!(verdicts.iter().filter(valid).count() > 0);
            prop_assert!(verdicts.iter().filter(valid).all(|v| v.outcome.direction() == Some(direction)));
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
