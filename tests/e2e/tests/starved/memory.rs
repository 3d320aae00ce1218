//! The kernel has no memory for a new socket. strace makes it refuse each one, as it does then. Open connections go
//! on.

use std::time::Duration;

use watchdog_sandbox::Cut;
use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::tools;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

use crate::fleet::Fleet;

/// Refuses new sockets to a program for as long as this process runs.
async fn refuse_sockets(fleet: &Fleet, service: &Service) -> anyhow::Result<ChildProcess> {
    let name = format!("strace-{}", service.process.name());
    let traced = service.process.id().to_string();
    let strace = Command::new(name, tools::path(tools::STRACE)?)
        .args(["--follow-forks", "--trace=socket", "--inject=socket:error=ENOMEM"])
        .args(["--attach", &traced])
        .spawn(&fleet.fixture.scratch)?;
    strace.wait_for_text("attached", BOUND).await?;
    Ok(strace)
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_probe_that_gets_no_socket_blames_itself() {
    let fleet = Fleet::start("no-memory-lease-probe").await.unwrap();
    let client = fleet.client_of_lease_probe().await.unwrap();
    let strace = refuse_sockets(&fleet, &fleet.lease_probe).await.unwrap();
    fleet
        .check_it_blames_itself(&client, "Cannot allocate memory")
        .await
        .unwrap();
    // Longer than the expiry age.
    fleet.no_false_alarm_for(Duration::from_secs(8)).await.unwrap();
    strace.stop(BOUND).await.unwrap();
    fleet.check_still_protects().await.unwrap();
}

/// A shoot loses its nodes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_gets_no_socket_says_so_and_acts_once_it_does() {
    let fleet = Fleet::start("no-memory-coordinator").await.unwrap();
    let shoot = &fleet.shoots()[0];
    let starved = [&fleet.coordinator, &fleet.weeder];
    let mut straces = Vec::new();
    for service in starved {
        straces.push(refuse_sockets(&fleet, service).await.unwrap());
    }
    fleet.fixture.sandbox.seed().cut_connections();
    for service in starved {
        let series = "watchdog_last_try_failed{loop=\"membership\",reason=\"local_limit\"}";
        wait::until_true("the membership names the cause", BOUND, || async {
            let (_, body) = service.admin_get("/readyz").await?;
            anyhow::ensure!(body.contains("membership: the last try failed: "), "{body}");
            Ok(service.metric(series).await? == Some(1.0))
        })
        .await
        .unwrap();
        service
            .process
            .wait_for_text("Cannot allocate memory", BOUND)
            .await
            .unwrap();
    }
    shoot.cut(Cut::All);
    let outcome = watchdog_proto::probe::v1::Outcome::LeasesExpired;
    fleet
        .fixture
        .wait_outcome(&fleet.lease_probe, shoot.namespace(), outcome, BOUND)
        .await
        .unwrap();
    assert_eq!(fleet.fixture.writes(shoot), [""; 0]);
    for strace in straces {
        strace.stop(BOUND).await.unwrap();
    }
    fleet.fixture.wait_replicas(shoot, 0, BOUND).await.unwrap();
    shoot.heal();
    fleet.fixture.wait_replicas(shoot, 1, BOUND).await.unwrap();
    fleet.check_no_false_alarm(1).unwrap();
}
