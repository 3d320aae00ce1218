//! The coordinator driven by verdicts that the test gives: scenarios, and many shoots lost at the same instant.

use crate::fixture::{Fixture, Seed, scenarios};
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::workload_controller::deployments;

#[tokio::test(flavor = "multi_thread")]
async fn all_scenarios() {
    let seed = Seed::start("coordinator-seed").await.unwrap();
    scenarios::play_all("coordinator", seed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_shoots_lost_at_the_same_instant() {
    let shoots: Vec<_> = (0..100).map(|i| format!("shoot--real--{i}")).collect();
    let config = fixtures::prober("probeInterval: 10s", "100ms");
    let seed = Seed::start("coordinator-bulk-seed").await.unwrap();
    let fixture = Fixture::start("coordinator-bulk", seed, &shoots, &config, vec![deployments()])
        .await
        .unwrap();
    for (outcome, direction, wanted) in [
        (Outcome::LeasesExpired, Direction::Down, [0, 0, 0]),
        (Outcome::Healthy, Direction::Up, [2, 3, 1]),
    ] {
        fixture.workloads.forget_changes();
        fixture.probe.say(shoots.iter().map(String::as_str), outcome);
        fixture.until_all(&shoots, direction).await.unwrap();
        // Not only the coordinator says so: the API server has each dependant of each shoot.
        wait::until_true("every dependant was scaled", BOUND, || async {
            let mut dependants = [KCM, MCM, CA].into_iter().zip(wanted);
            Ok(dependants.all(|(name, to)| fixture.workloads.times(name, to, false).len() == shoots.len()))
        })
        .await
        .unwrap();
    }
}
