use proptest::prelude::*;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::machine::{MachineItem, MachinePhase};
use watchdog_api::node::NodeItem;

use super::super::answered::ListTimes;
use super::*;

const RULE: ExpiryRule = ExpiryRule {
    expiry_age: Duration::from_secs(30),
    threshold: 0.6,
};
const CONTEXT: AssessmentContext = AssessmentContext {
    rule: RULE,
    loss_may_stand: false,
    external: None,
};
const S: i64 = 1_000_000;

fn at(seconds: i64) -> UnixTime {
    UnixTime(seconds * S)
}

/// Leases with the given ages in seconds at second 1000, all of them seen renewing before.
fn leases(ages: &[i64]) -> (ListedLeases, Renewals) {
    leases_that_last(ages, |_| 40)
}

/// The same with lease durations in seconds.
fn leases_that_last(ages: &[i64], duration: impl Fn(usize) -> i32) -> (ListedLeases, Renewals) {
    let lease = |(i, age): (usize, &i64)| ListedLease {
        name: format!("n{i}").into(),
        renew_time: Some(at(1000 - age)),
        duration_seconds: Some(duration(i)),
    };
    let now: Vec<_> = ages.iter().enumerate().map(lease).collect();
    let mut renewals = Renewals::default();
    // Each renewal was seen at the instant at which it was made.
    let mut order: Vec<i64> = ages
        .iter()
        .map(|age| 1000 - age)
        .chain((950..1000).step_by(5))
        .collect();
    order.sort_unstable();
    let earlier = |l: &ListedLease, t: i64| ListedLease {
        renew_time: l.renew_time.filter(|r| *r <= at(t)).or(Some(at(0))),
        ..l.clone()
    };
    renewals.observe(
        ListTimes {
            sent: at(0),
            received: at(1),
        },
        &now.iter().map(|l| earlier(l, 0)).collect::<Vec<_>>(),
    );
    for t in order {
        let seen: Vec<_> = now.iter().map(|l| earlier(l, t)).collect();
        renewals.observe(
            ListTimes {
                sent: at(t),
                received: at(t),
            },
            &seen,
        );
    }
    renewals.observe(
        ListTimes {
            sent: at(1000),
            received: at(1000),
        },
        &now,
    );
    (
        ListedLeases {
            leases: now,
            malformed: 0,
        },
        renewals,
    )
}

fn judge(ages: &[i64]) -> Assessment {
    let (listed, renewals) = leases(ages);
    assess(&listed, &renewals, |_| None, None, CONTEXT, at(1000))
}

#[test]
fn the_threshold_at_its_boundary() {
    let rows: &[(&[i64], Outcome)] = &[
        (&[], Outcome::Healthy),
        (&[5], Outcome::Healthy),
        (&[31], Outcome::TooFewCandidates),
        (&[5, 31], Outcome::Healthy),
        (&[31, 31], Outcome::LeasesExpired),
        (&[5, 5, 31, 31, 31], Outcome::LeasesExpired),
        (&[5, 5, 5, 31, 31], Outcome::Healthy),
        (&[5, 30, 30], Outcome::LeasesExpired),
        (&[5, 29, 30], Outcome::Healthy),
    ];
    for (ages, expected) in rows {
        assert_eq!(judge(ages).outcome, *expected, "{ages:?}");
    }
}

/// Otherwise, a shoot with two kinds of pools would be probed every second for as long as it exists.
#[test]
fn seconds_decide_when_kubelets_are_silent_at_their_own_pace() {
    let context = AssessmentContext {
        rule: ExpiryRule {
            threshold: 0.3,
            ..RULE
        },
        ..CONTEXT
    };
    let tense = |slow_kubelets: usize| {
        let duration = |i| if i < slow_kubelets { 80 } else { 40 };
        let (listed, renewals) = leases_that_last(&[20, 20, 5, 5, 5], duration);
        assess(&listed, &renewals, |_| None, None, context, at(1000)).tense
    };
    assert_eq!([tense(0), tense(1), tense(2)], [true, false, false]);
}

#[test]
fn the_crossing_is_the_expiry_of_the_lease_that_tips_the_balance() {
    // Three of five are required: ages 20, 12, 8 expire at 1010, 1018, 1022.
    let healthy = judge(&[20, 8, 12, 1, 2]);
    assert_eq!(
        (healthy.crossing, healthy.next_expiry),
        (Some(at(1022)), Some(at(1010)))
    );
    let lost = judge(&[40, 35, 32, 1, 2]);
    assert_eq!(lost.crossing, Some(at(998)));
    assert_eq!(judge(&[3]).crossing, None);
}

#[test]
fn leases_that_do_not_count_are_counted_by_reason() {
    let (mut listed, renewals) = leases(&[31, 31, 31, 5]);
    listed.malformed = 2;
    listed.leases.push(ListedLease {
        name: "bare".into(),
        renew_time: None,
        duration_seconds: None,
    });
    let gone = |name: &str| (name == "n0" || name == "n1").then_some(Exclusion::NoMachine);
    let assessment = assess(&listed, &renewals, gone, None, CONTEXT, at(1000));
    assert_eq!(assessment.outcome, Outcome::Healthy);
    let evidence = assessment.evidence;
    assert_eq!(
        (evidence.leases, evidence.candidates, evidence.expired),
        (7, 2, 1)
    );
    let expected = [
        (Exclusion::NoMachine, 2),
        (Exclusion::NoRenewTime, 1),
        (Exclusion::MalformedLease, 2),
    ]
    .into();
    assert_eq!(evidence.excluded, expected);
}

#[test]
fn what_is_not_confirmed_holds_the_verdict() {
    let lease = |i| ListedLease {
        name: format!("n{i}").into(),
        renew_time: Some(at(0)),
        duration_seconds: None,
    };
    let listed = ListedLeases {
        leases: (0..3).map(lease).collect(),
        malformed: 0,
    };
    let mut renewals = Renewals::default();
    renewals.observe(
        ListTimes {
            sent: at(1000),
            received: at(1000),
        },
        &listed.leases,
    );
    let early = assess(&listed, &renewals, |_| None, None, CONTEXT, at(1000));
    assert_eq!((early.outcome, early.evidence.unconfirmed), (Outcome::Pending, 3));
    let due = early.crossing.unwrap();
    assert_eq!(
        assess(&listed, &renewals, |_| None, None, CONTEXT, due).outcome,
        Outcome::LeasesExpired
    );
}

/// Conditions that appear on silent nodes do not end a loss, and they do not make one either.
/// Another replica, which saw the leases being renewed, may have found a loss already.
#[test]
fn a_first_look_at_silent_leases_proves_no_health() {
    let first_look = |ages: &[i64]| {
        let (listed, _) = leases(ages);
        let mut renewals = Renewals::default();
        let times = ListTimes {
            sent: at(1000),
            received: at(1000),
        };
        renewals.observe(times, &listed.leases);
        let context = AssessmentContext {
            loss_may_stand: true,
            ..CONTEXT
        };
        assess(&listed, &renewals, |_| None, None, context, at(1000))
    };
    for (ages, expected) in [
        ([4, 9, 14, 14, 14], Outcome::Healthy),
        ([4, 9, 14, 31, 31], Outcome::Healthy),
        ([4, 9, 16, 16, 16], Outcome::Pending),
        ([31, 31, 31, 31, 31], Outcome::Pending),
    ] {
        let assessment = first_look(&ages);
        assert_eq!(assessment.outcome, expected, "{ages:?}");
        assert_eq!(assessment.evidence.expired, 0, "{ages:?}");
    }
    assert_eq!(
        judge(&[4, 9, 16, 16, 16]).outcome,
        Outcome::Healthy,
        "who saw them knows"
    );
}

#[test]
fn expired_leases_that_are_excluded_for_a_while_do_not_end_a_loss() {
    let (listed, renewals) = leases(&[31, 31, 31, 5]);
    let judge = |exclusion: Exclusion, names: &[&str], loss_may_stand| {
        let excluded = |name: &str| names.contains(&name).then_some(exclusion);
        let context = AssessmentContext {
            loss_may_stand,
            ..CONTEXT
        };
        assess(&listed, &renewals, excluded, None, context, at(1000)).outcome
    };
    let silent = ["n0", "n1", "n2"];
    assert_eq!(
        judge(Exclusion::UnhealthyCondition, &silent, true),
        Outcome::Pending
    );
    assert_eq!(
        judge(Exclusion::InPlaceUpdate, &silent[..2], true),
        Outcome::Pending
    );
    assert_eq!(judge(Exclusion::InPlaceUpdate, &silent, false), Outcome::Healthy);
    assert_eq!(
        judge(Exclusion::MachineTerminating, &silent, true),
        Outcome::Healthy
    );
    let all = ["n0", "n1", "n2", "n3"];
    assert_eq!(judge(Exclusion::UnhealthyCondition, &all, true), Outcome::Pending);
    assert_eq!(judge(Exclusion::NoMachine, &all, true), Outcome::Healthy);
}

/// Renewed leases refute an external endpoint that does not answer. Silence of 1.25 renew intervals since then confirms
/// it, if the silence of enough kubelets is proven.
#[test]
fn an_external_endpoint_makes_a_loss_known_earlier() {
    // Ages at the end, and for how long the endpoint has not answered then.
    let outcome = |ages: &[i64], lasts: i64, counts| {
        let before: Vec<i64> = ages.iter().map(|age| (age - lasts).max(1)).collect();
        let (mut listed, mut renewals) = leases(&before);
        let outage = ExternalOutage {
            since: at(1000),
            mark: renewals.answered().now(),
            counts,
        };
        for second in 1001..=1000 + lasts {
            for (lease, age) in listed.leases.iter_mut().zip(ages) {
                let renewed = 1000 + lasts - age;
                if renewed <= second {
                    lease.renew_time = Some(at(renewed));
                }
            }
            let times = ListTimes {
                sent: at(second),
                received: at(second),
            };
            renewals.observe(times, &listed.leases);
        }
        let context = AssessmentContext {
            external: Some(outage),
            ..CONTEXT
        };
        assess(&listed, &renewals, |_| None, None, context, at(1000 + lasts)).outcome
    };
    assert_eq!(outcome(&[14, 23, 24], 13, true), Outcome::ExternalUnreachable);
    assert_eq!(
        outcome(&[14, 23, 24], 13, false),
        Outcome::Healthy,
        "too few failures"
    );
    assert_eq!(outcome(&[14, 23, 24], 12, true), Outcome::Healthy, "too early");
    assert_eq!(
        outcome(&[14, 22, 24], 13, true),
        Outcome::Healthy,
        "one kubelet may be on its way back"
    );
    assert_eq!(
        outcome(&[12, 23, 24], 13, true),
        Outcome::Healthy,
        "one was renewed"
    );
    assert_eq!(
        outcome(&[24], 13, true),
        Outcome::Healthy,
        "one lease is too little"
    );
    assert_eq!(outcome(&[31, 31, 31], 13, true), Outcome::LeasesExpired);
}

proptest! {
    #[test]
    fn required_is_the_smallest_number_that_reaches_the_threshold(n in 1_u32..2000, f in 0.001_f64..=1.0) {
        let k = required(n, f);
        prop_assert!(f64::from(k) / f64::from(n) >= f);
        prop_assert!(k == 1 || f64::from(k - 1) / f64::from(n) < f);
    }

    #[test]
    fn the_verdict_turns_exactly_at_the_crossing(ages in prop::collection::vec(0_i64..29, 2..30)) {
        let (listed, renewals) = leases(&ages);
        let crossing = judge(&ages).crossing.unwrap();
        let outcome = |now| assess(&listed, &renewals, |_| None, None, CONTEXT, now).outcome;
        prop_assert_eq!(outcome(crossing), Outcome::LeasesExpired);
        prop_assert_eq!(outcome(crossing.shifted(-1)), Outcome::Healthy);
    }
}

/// A hostile shoot may give each node a zone of its own.
#[test]
fn a_verdict_has_few_zones() {
    let ages = [5; 50];
    let (listed, renewals) = leases(&ages);
    let node = |lease: &ListedLease| NodeItem {
        name: lease.name.clone(),
        pool: None,
        zone: Some(format!("zone-of-{}", lease.name).into()),
        not_managed_by_mcm: false,
        conditions: vec![],
    };
    let machine = |lease: &ListedLease| MachineItem {
        name: lease.name.clone(),
        node: Some(lease.name.clone()),
        phase: MachinePhase::Other,
    };
    let nodes: Vec<_> = listed.leases.iter().map(node).collect();
    let machines: Vec<_> = listed.leases.iter().map(machine).collect();
    let index = NodeIndex::new(&nodes, &machines, &ShootSettings::default());
    let found = assess(
        &listed,
        &renewals,
        |lease| index.exclusion(lease),
        Some(&index),
        CONTEXT,
        at(1000),
    );
    let zones = &found.evidence.zones;
    assert_eq!(zones.len(), MOST_ZONES + 1);
    assert_eq!(zones[OTHER_ZONES].candidates, 30);
}
