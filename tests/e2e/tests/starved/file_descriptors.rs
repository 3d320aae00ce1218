//! No file descriptor is left, so no connection can be opened or accepted.

use std::time::Duration;

use watchdog_proto::probe::v1 as pb;
use watchdog_sandbox::Cut;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

use crate::fleet::{Fleet, Symptom};

const OUT_OF_FILE_DESCRIPTORS: Symptom = Symptom {
    name: "file-descriptors",
    reason: "local_limit",
    message: Some("no file descriptor is left; no connection can be opened"),
};

/// Leaves a program with the connections that it has, and returns its limit until now. Standard input is the only file
/// whose number is below 1.
fn exhaust(service: &Service) -> u64 {
    service.process.limit_open_files(1).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_probe_that_cannot_connect_blames_itself() {
    let fleet = Fleet::start("no-files-lease-probe").await.unwrap();
    // Once none is left, nobody gets a connection.
    let client = fleet.client_of_lease_probe().await.unwrap();
    let limit = exhaust(&fleet.lease_probe);
    OUT_OF_FILE_DESCRIPTORS
        .until_shown(&[&fleet.lease_probe])
        .await
        .unwrap();
    fleet
        .check_it_blames_itself(&client, "Too many open files")
        .await
        .unwrap();
    // Longer than the expiry age.
    fleet.no_false_alarm_for(Duration::from_secs(8)).await.unwrap();
    fleet.lease_probe.process.limit_open_files(limit).unwrap();
    fleet.check_still_protects().await.unwrap();
    OUT_OF_FILE_DESCRIPTORS
        .until_gone(&[&fleet.lease_probe])
        .await
        .unwrap();
}

/// Nodes are lost and come back while it cannot write.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_cannot_connect_writes_nothing_late() {
    let fleet = Fleet::start("no-files-coordinator").await.unwrap();
    let shoot = &fleet.shoots()[0];
    let starved = [&fleet.coordinator, &fleet.weeder];
    let limits = starved.map(exhaust);
    OUT_OF_FILE_DESCRIPTORS.until_shown(&starved).await.unwrap();
    fleet.fixture.sandbox.seed().cut_connections();
    for service in starved {
        let series = "watchdog_last_try_failed{loop=\"membership\",reason=\"local_limit\"}";
        wait::until_true("the membership names the cause", BOUND, || async {
            Ok(service.metric(series).await? == Some(1.0))
        })
        .await
        .unwrap();
    }
    for outcome in [pb::Outcome::LeasesExpired, pb::Outcome::Healthy] {
        match outcome {
            pb::Outcome::LeasesExpired => shoot.cut(Cut::All),
            _ => shoot.heal(),
        }
        fleet
            .fixture
            .wait_outcome(&fleet.lease_probe, shoot.namespace(), outcome, BOUND)
            .await
            .unwrap();
    }
    // It lasts, and so does the sign of it.
    OUT_OF_FILE_DESCRIPTORS.until_shown(&starved).await.unwrap();
    for (service, limit) in starved.into_iter().zip(limits) {
        service.process.limit_open_files(limit).unwrap();
    }
    OUT_OF_FILE_DESCRIPTORS.until_gone(&starved).await.unwrap();
    assert_eq!(fleet.fixture.writes(shoot), [""; 0]);
    shoot.cut(Cut::All);
    fleet.fixture.wait_replicas(shoot, 0, BOUND).await.unwrap();
    shoot.heal();
    fleet.fixture.wait_replicas(shoot, 1, BOUND).await.unwrap();
    fleet.check_no_false_alarm(1).unwrap();
}
