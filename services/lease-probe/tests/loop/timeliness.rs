//! On time: a verdict turns within one probe of the moment at which the truth does.

use lease_probe::domain::outcome::Outcome;

use crate::shoot::{EXPIRY_AGE, LASTS, Millis, RENEW_INTERVAL, TestShoot, run};

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
    // It is not known to be healthy yet.
    assert!((8_900..=10_500).contains(&pauses[0]), "{pauses:?}");
    // 10.5 s, at the tick before.
    assert!(
        pauses[1..].iter().all(|pause| (9_400..=10_500).contains(pause)),
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

/// When 30 of the 50 nodes are expired, which is the threshold. A renewal may have taken as long as a list to reach the
/// API server.
fn crossing(shoot: &TestShoot) -> Millis {
    let mut last: Vec<_> = shoot
        .renewals
        .iter()
        .map(|renewals| renewals.last().unwrap())
        .collect();
    last.sort_unstable();
    last[29] + EXPIRY_AGE + shoot.leases_take
}

#[test]
fn a_loss_is_reported_at_the_crossing_also_if_nodes_take_4_s_or_the_seed_throttles_for_a_moment() {
    let crossing = crossing(&lost_after_renewals(0, 0));
    for shoot in [
        lost_after_renewals(12, 0),
        lost_after_renewals(4_000, 0),
        lost_after_renewals(12, crossing - 5_500),
    ] {
        for _ in 0..5 {
            let observed = run(shoot.clone(), "30s");
            let reported = observed.first_loss().unwrap();
            let late = reported - crossing;
            assert!(
                (0..100).contains(&late),
                "{late} ms: {:?}",
                observed.around(crossing)
            );
        }
    }
}

/// While a loss stands, the leases are listed every 2 s.
#[test]
fn a_recovery_is_reported_within_one_probe_of_the_renewal_that_makes_it() {
    let mut renewals = steady(5, LASTS);
    for of_node in &mut renewals {
        of_node.retain(|at| !(100_000..200_000).contains(at));
    }
    // Three of five are back.
    let recovers = *renewals[2].iter().find(|at| **at >= 200_000).unwrap();
    let observed = run(TestShoot::new(renewals), "30s");
    let lost = observed.first_loss().unwrap();
    let mut later = observed.reported.iter().filter(|(at, _)| *at > lost);
    let (recovered, _) = later.find(|(_, outcome)| *outcome == Outcome::Healthy).unwrap();
    assert!(
        (recovers..recovers + 2_200).contains(recovered),
        "{recovers}: {:?}",
        observed.around(recovers)
    );
}

/// Nodes that were last renewed 45 s before the prober starts, and again from `back` on.
fn silent_until(back: Millis) -> Vec<Vec<Millis>> {
    let again = (0..).map(|n| back + n * RENEW_INTERVAL);
    let renewals: Vec<_> = std::iter::once(-45_000)
        .chain(again.take_while(|at| *at < LASTS))
        .collect();
    vec![renewals; 5]
}

/// The leases are renewed between their list and the nodes that the loss was waiting for.
#[test]
fn a_loss_does_not_rest_on_an_old_list_of_leases() {
    let shoot = |back| TestShoot {
        nodes_take: 14_000,
        ..TestShoot::new(silent_until(back))
    };
    let lost = run(shoot(LASTS), "10s");
    let reported = lost.first_loss().unwrap();
    // The list on which the loss would have rested is older than 14 s.
    let observed = run(shoot(reported - 5_000), "10s");
    assert_eq!(observed.first_loss(), None, "{:?}", observed.around(reported));
}

/// The way back is broken, or this process is stopped, when the loss is proven, and nodes renew meanwhile.
#[test]
fn a_loss_does_not_rest_on_an_answer_that_was_held_up() {
    let lost = run(TestShoot::new(silent_until(LASTS)), "10s");
    let reported = lost.first_loss().unwrap();
    let shoot = |back| TestShoot {
        holds_up: reported - 100..reported + 5_000,
        ..TestShoot::new(silent_until(back))
    };
    let observed = run(shoot(reported + 500), "10s");
    assert_eq!(observed.first_loss(), None, "{:?}", observed.around(reported));
    let observed = run(shoot(LASTS), "10s");
    let late = observed.first_loss().unwrap() - reported;
    assert!((5_000..5_200).contains(&late), "{late} ms");
}

/// They were asked for after the kubelets had missed renewals, so they show why a kubelet is silent.
#[test]
fn a_loss_is_reported_by_nodes_and_machines_that_take_15_s() {
    let shoot = |nodes_take| TestShoot {
        nodes_take,
        ..TestShoot::new(silent_until(LASTS))
    };
    let (fast, slow) = (run(shoot(20), "10s"), run(shoot(15_000), "10s"));
    let (fast, slow) = (fast.first_loss().unwrap(), slow.first_loss().unwrap());
    // Such lists come one after the other until silence is proven: a pause of more than 12 s proves less.
    assert!((15_000..30_000).contains(&(slow - fast)), "{fast} and {slow} ms");
    assert_eq!(
        run(shoot(25_000), "10s").first_loss(),
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

/// Another server, or another user of it, has not asked to be left alone.
#[test]
fn a_new_kubeconfig_ends_the_pause_after_a_429() {
    let shoot = TestShoot {
        throttles_until: 5_000,
        kubeconfig_changes_at: 6_000,
        ..TestShoot::new(steady(3, LASTS))
    };
    let observed = run(shoot, "10s");
    let began: Vec<_> = observed.probes.iter().map(|(began, _)| *began).collect();
    assert!(began[0] < 5_000, "throttled: {began:?}");
    assert!((6_000..=7_010).contains(&began[1]), "{began:?}");
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
    let reported = observed.first_loss().unwrap();
    // The pause grows by up to a fifth.
    let pause = THROTTLES_UNTIL * 12 / 10;
    assert!(
        (THROTTLES_UNTIL..pause + 2_000).contains(&reported),
        "reported after {reported} ms"
    );
}
