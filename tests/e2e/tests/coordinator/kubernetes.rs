//! The coordinator driven by verdicts that the test gives: scenarios, and many shoots lost at the same instant.

use crate::fixture::{Fixture, Seed, scenarios};
use jiff::Timestamp;
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::workload_controller::deployments;

/// How many shoots are lost at once, where nobody says otherwise with [`SHOOTS_VARIABLE`].
const SHOOTS: usize = 100;
const SHOOTS_VARIABLE: &str = "COORDINATOR_SHOOTS";

#[tokio::test(flavor = "multi_thread")]
async fn all_scenarios() {
    let seed = Seed::start("coordinator-seed").await.unwrap();
    scenarios::play_all("coordinator", seed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_shoots_lost_at_the_same_instant() {
    let count = std::env::var(SHOOTS_VARIABLE).map_or(SHOOTS, |text| text.parse().unwrap());
    let shoots: Vec<_> = (0..count).map(|i| format!("shoot--real--{i}")).collect();
    let config = fixtures::prober("probeInterval: 10s", "100ms");
    let seed = Seed::start("coordinator-bulk-seed").await.unwrap();
    let fixture = Fixture::start("coordinator-bulk", seed, &shoots, &config, vec![deployments()])
        .await
        .unwrap();
    for (outcome, direction) in [
        (Outcome::LeasesExpired, Direction::Down),
        (Outcome::Healthy, Direction::Up),
    ] {
        fixture.workloads.forget_changes();
        let begin = Timestamp::now();
        fixture.probe.say(shoots.iter().map(String::as_str), outcome);
        fixture.until_all(&shoots, direction).await.unwrap();
        let settled = Timestamp::now().duration_since(begin);
        let (kcm, mcm, ca) = if direction == Direction::Down {
            (0, 0, 0)
        } else {
            (2, 3, 1)
        };
        let scaled =
            [(KCM, kcm), (MCM, mcm), (CA, ca)].map(|(name, to)| fixture.workloads.times(name, to, false));
        let first = scaled.iter().flatten().min().unwrap().duration_since(begin);
        let last = scaled.iter().flatten().max().unwrap().duration_since(begin);
        let last_kcm = fixture
            .workloads
            .last(KCM, kcm, true)
            .unwrap()
            .duration_since(begin);
        eprintln!(
            "{count} shoots {direction:?}: first scale write seen after {first:?}, last after {last:?}; \
             kube-controller-manager ready at {kcm} everywhere after {last_kcm:?}; all settled after {settled:?}"
        );
    }
}
