//! On time: a verdict turns within one probe of the moment at which the truth does.

use lease_probe::domain::assessment::required;
use lease_probe::domain::outcome::Outcome;
use proptest::prelude::*;

use crate::shoot::{EXPIRY_AGE, LASTS, Millis, Observed, RENEW_INTERVAL, TestShoot, run};

/// Timers of the runtime are exact to a millisecond; a probe has three.
const TIMERS: Millis = 4;

/// Kubelets in step with the lists look like clocks that are behind by as much.
const COMMON_SKEW: Millis = 3_000;

/// The nodes that a cut concerns do not renew from its start to its end.
#[derive(Debug, Clone)]
struct RenewalGap {
    start: Millis,
    lasts: Millis,
    nodes: Vec<bool>,
}

fn history(nodes: usize) -> impl Strategy<Value = TestShoot> {
    let cut = move || {
        (
            60_000..90_000_i64,
            5_000..90_000_i64,
            prop::collection::vec(prop::bool::weighted(0.8), nodes),
        )
    };
    // kubelets renew every interval; some a little earlier, for a Lease is also renewed after a failure.
    let steps = prop::collection::vec(7_000..=RENEW_INTERVAL, 30);
    let kubelets = prop::collection::vec((1..RENEW_INTERVAL, steps), nodes);
    // All together, as after a restart of their API server, or spread.
    let together = prop_oneof![Just(None), (1..900_i64).prop_map(Some)];
    (kubelets, cut(), cut(), together, 1..400_i64, 1..400_i64).prop_map(
        move |(kubelets, first, second, together, leases_take, nodes_take)| {
            let mut cuts = Vec::new();
            let mut end = 0;
            for (after, lasts, nodes) in [first, second] {
                let start = end + after;
                end = start + lasts;
                cuts.push(RenewalGap { start, lasts, nodes });
            }
            let renewals = kubelets.iter().enumerate().map(|(node, (phase, steps))| {
                let phase = together.map_or(*phase, |width| phase % width);
                let mut at = phase - RENEW_INTERVAL;
                let mut renewals = Vec::new();
                for step in steps.iter().cycle() {
                    if at > LASTS {
                        break;
                    }
                    let is_cut = |cut: &RenewalGap| {
                        cut.nodes[node] && (cut.start..cut.start + cut.lasts).contains(&at)
                    };
                    if !cuts.iter().any(is_cut) {
                        renewals.push(at);
                    }
                    at += if together.is_some() { RENEW_INTERVAL } else { *step };
                }
                renewals
            });
            TestShoot {
                leases_take,
                nodes_take,
                ..TestShoot::new(renewals.collect())
            }
        },
    )
}

/// The truth: from when on the nodes are cut off, or are not any more, in turns; it begins with connected nodes.
fn truth(shoot: &TestShoot) -> Vec<Millis> {
    let mut moments: Vec<Millis> = shoot
        .renewals
        .iter()
        .flatten()
        .flat_map(|renewed| [*renewed, renewed + shoot.expiry_age()])
        .filter(|moment| *moment < LASTS)
        .collect();
    moments.sort_unstable();
    moments.dedup();
    let mut turns = Vec::new();
    for moment in moments {
        if is_lost(shoot, moment, shoot.expiry_age()) != (turns.len() % 2 == 1) {
            turns.push(moment);
        }
    }
    turns
}

fn is_lost(shoot: &TestShoot, now: Millis, expiry_age: Millis) -> bool {
    let nodes = shoot.renewals.len();
    let expired = |node: &usize| {
        shoot
            .last(*node, now)
            .is_some_and(|last| now >= last + expiry_age)
    };
    let expired = (0..nodes).filter(expired).count();
    expired >= required(u32::try_from(nodes).unwrap(), 0.6) as usize
}

/// Returns true if a node renews between `from` and `to` that was expired, or would have been by `to`.
fn comes_back(shoot: &TestShoot, from: Millis, to: Millis) -> bool {
    (0..shoot.renewals.len()).any(|node| {
        let overdue = shoot
            .last(node, from)
            .is_some_and(|last| last + shoot.expiry_age() <= to);
        overdue && shoot.last(node, to) != shoot.last(node, from)
    })
}

fn check(shoot: &TestShoot, observed: &Observed) -> Result<(), TestCaseError> {
    let probe = shoot.leases_take + shoot.nodes_take + TIMERS;
    let turns = truth(shoot);
    for (index, turn) in turns.iter().enumerate() {
        let until = turns.get(index + 1).copied().unwrap_or(LASTS).min(LASTS);
        let (expected, by) = if index % 2 == 0 {
            let due = turn + COMMON_SKEW;
            (
                Outcome::LeasesExpired,
                observed.end_of_probe_at(due).saturating_add(probe),
            )
        } else {
            let due = turn + RENEW_INTERVAL;
            (
                Outcome::Healthy,
                observed.end_of_probe_at(due).saturating_add(probe),
            )
        };
        // What is over before it can be seen need not be seen, nor one in which nodes come back while others go.
        let unclear = expected == Outcome::LeasesExpired && comes_back(shoot, *turn, by);
        if by < until && !unclear {
            prop_assert_eq!(
                observed.at(by),
                &expected,
                "at {} ms, {} ms after the turn; {:?}",
                by,
                by - turn,
                observed.around(by)
            );
        }
    }
    for (reported_at, outcome) in &observed.reported {
        let started = observed.probes.iter().rev().find(|(_, end)| end <= reported_at);
        if let (Outcome::LeasesExpired, Some((started, _))) = (outcome, started) {
            prop_assert!(
                is_lost(shoot, *started, EXPIRY_AGE),
                "a false loss is reported at {reported_at} ms"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// In at most one probe; if one was under way at that moment, in that one and another.
    #[test]
    fn the_verdict_turns_within_one_probe_of_the_crossing(
        shoot in (2_usize..14).prop_flat_map(history),
    ) {
        let observed = run(shoot.clone(), "10s");
        check(&shoot, &observed)?;
    }
}

fn steady(nodes: usize, until: Millis) -> Vec<Vec<Millis>> {
    let renew = |node: usize| {
        let phase = i64::try_from(node).unwrap() * 613 % RENEW_INTERVAL;
        (-1..)
            .map(|n| phase + n * RENEW_INTERVAL)
            .take_while(|at| *at < until)
            .collect()
    };
    (0..nodes).map(renew).collect()
}

#[test]
fn a_healthy_shoot_is_probed_often_enough_to_see_that_writes_pause_and_not_more_often() {
    let observed = run(TestShoot::new(steady(20, LASTS)), "30s");
    let pauses: Vec<_> = observed
        .probes
        .windows(2)
        .map(|pair| pair[1].0 - pair[0].1)
        .collect();
    // 10.5 s, at the tick before.
    assert!(
        pauses.iter().all(|pause| (9_400..=10_500).contains(pause)),
        "{pauses:?}"
    );
}

/// 50 nodes that stop within a second, after they were seen to renew.
fn lost_after_renewals(nodes_take: Millis, seed_throttles_until: Millis) -> TestShoot {
    TestShoot {
        leases_take: 8,
        nodes_take,
        seed_throttles_until,
        ..TestShoot::new(steady(50, 100_000))
    }
}

/// Shoots that are lost together list their nodes apart: each prober draws a moment of its own.
#[test]
fn nodes_are_listed_6_to_11_s_ahead_at_a_random_moment() {
    let shoot = lost_after_renewals(12, 0);
    let crossing = truth(&shoot)[0];
    let leads: Vec<_> = (0..20)
        .map(|_| crossing - run(shoot.clone(), "30s").nodes_listed[0])
        .collect();
    assert!(
        leads.iter().all(|lead| (6_000..=11_000).contains(lead)),
        "{leads:?}"
    );
    assert!(
        leads.iter().max() > leads.iter().min().map(|least| least + 1_000).as_ref(),
        "{leads:?}"
    );
}

#[test]
fn a_loss_is_reported_at_the_crossing_also_if_nodes_take_4_s_or_the_seed_throttles_for_a_moment() {
    let crossing = truth(&lost_after_renewals(0, 0))[0];
    for shoot in [
        lost_after_renewals(12, 0),
        lost_after_renewals(4_000, 0),
        lost_after_renewals(12, crossing - 5_500),
    ] {
        for _ in 0..5 {
            let observed = run(shoot.clone(), "30s");
            let reported = first_loss(&observed).unwrap();
            let late = reported - crossing;
            assert!(
                (0..100).contains(&late),
                "{late} ms: {:?}",
                observed.around(crossing)
            );
        }
    }
}

/// The answer to a list that takes long is about when it was asked for: a slow API server is no loss.
#[test]
fn an_api_server_that_takes_its_time_is_no_loss() {
    let mut renewals = steady(10, LASTS);
    // One node is gone for good, so that the nodes are listed again and again.
    renewals[0].retain(|at| *at < 30_000);
    for (leases_take, nodes_take) in [(20_000, 50), (50, 25_000), (14_000, 14_000)] {
        let shoot = TestShoot {
            leases_take,
            nodes_take,
            ..TestShoot::new(renewals.clone())
        };
        assert!(truth(&shoot).is_empty());
        let observed = run(shoot, "10s");
        let losses: Vec<_> = observed
            .reported
            .iter()
            .filter(|(_, outcome)| outcome.is_loss())
            .collect();
        assert!(losses.is_empty(), "{losses:?}");
    }
}

/// Nodes that were last renewed 45 s before the prober starts, and again from `back` on.
fn silent_until(back: Millis) -> Vec<Vec<Millis>> {
    let again = (0..).map(|n| back + n * RENEW_INTERVAL);
    let renewals: Vec<_> = std::iter::once(-45_000)
        .chain(again.take_while(|at| *at < LASTS))
        .collect();
    vec![renewals; 5]
}

fn first_loss(observed: &Observed) -> Option<Millis> {
    let mut reported = observed.reported.iter();
    reported.find(|(_, outcome)| outcome.is_loss()).map(|(at, _)| *at)
}

/// The leases are renewed between their list and the nodes that the loss was waiting for.
#[test]
fn a_loss_does_not_rest_on_an_old_list_of_leases() {
    let shoot = |back| TestShoot {
        nodes_take: 14_000,
        ..TestShoot::new(silent_until(back))
    };
    let lost = run(shoot(LASTS), "10s");
    let reported = first_loss(&lost).unwrap();
    // The list on which the loss would have rested is older than 14 s.
    let observed = run(shoot(reported - 5_000), "10s");
    assert_eq!(first_loss(&observed), None, "{:?}", observed.around(reported));
}

/// They were asked for after the kubelets had missed renewals, so they show why a kubelet is silent.
#[test]
fn a_loss_is_reported_by_nodes_and_machines_that_take_15_s() {
    let shoot = |nodes_take| TestShoot {
        nodes_take,
        ..TestShoot::new(silent_until(LASTS))
    };
    let (fast, slow) = (run(shoot(20), "10s"), run(shoot(15_000), "10s"));
    let (fast, slow) = (first_loss(&fast).unwrap(), first_loss(&slow).unwrap());
    // Such lists come one after the other until silence is proven: a pause of more than 12 s proves less.
    assert!((15_000..30_000).contains(&(slow - fast)), "{fast} and {slow} ms");
    assert_eq!(
        first_loss(&run(shoot(25_000), "10s")),
        None,
        "that may be too late"
    );
}

/// Also when it asked for less, and when its connections end meanwhile.
#[test]
fn an_api_server_that_answers_429_is_left_alone_for_10_s() {
    let shoot = TestShoot {
        throttles_until: 30_000,
        ..TestShoot::new(steady(3, LASTS))
    };
    let observed = run(shoot, "10s");
    let throttled = observed.probes.windows(2).filter(|pair| pair[0].0 < 30_000);
    let pauses: Vec<_> = throttled.map(|pair| pair[1].0 - pair[0].0).collect();
    // The pause grows by up to a fifth.
    assert!(
        pauses.iter().all(|pause| (10_000..=12_010).contains(pause)) && pauses.len() >= 3,
        "{pauses:?}"
    );
}

/// The lists of leases go on, so silence is proven when the machines can be listed again.
#[test]
fn a_429_of_the_seed_pauses_only_the_lists_of_machines() {
    const THROTTLES_UNTIL: Millis = 60_000;
    let shoot = TestShoot {
        seed_throttles_until: THROTTLES_UNTIL,
        ..TestShoot::new(silent_until(LASTS))
    };
    let observed = run(shoot, "10s");
    let pauses = observed.probes.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(pauses.max().unwrap() <= 10_000, "{:?}", observed.probes);
    let asked = observed.nodes_listed.iter();
    assert_eq!(
        asked.filter(|at| **at < THROTTLES_UNTIL).count(),
        1,
        "and is left alone"
    );
    let reported = first_loss(&observed).unwrap();
    // The pause grows by up to a fifth.
    let pause = THROTTLES_UNTIL * 12 / 10;
    assert!(
        (THROTTLES_UNTIL..pause + 2_000).contains(&reported),
        "reported after {reported} ms"
    );
}
