//! No file descriptor is left, so no connection can be opened or accepted. The kernel answers alike when it lacks memory for
//! a socket; which errors count as such is in `services/common/client/src/failure.rs`.

use std::time::Duration;

use tonic::transport::Channel;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_sandbox::Cut;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

use crate::fleet::{Fleet, Sign};

const OUT_OF_FILE_DESCRIPTORS: Sign = Sign {
    name: "file-descriptors",
    reason: "local_limit",
    message: Some("no file descriptor is left; no connection can be opened"),
};

/// Leaves a program with the connections that it has, and returns its limit until now. Standard input is the only file
/// whose number is below 1.
fn exhaust(service: &Service) -> u64 {
    service.process.limit_open_files(1).unwrap()
}

async fn verdict(client: &LeaseProbeServiceClient<Channel>, shoot: &str) -> anyhow::Result<pb::Verdict> {
    let request = pb::GetVerdictRequest {
        shoot: shoot.to_owned(),
    };
    let answer = client.clone().get_verdict(request).await?.into_inner();
    answer
        .verdict
        .ok_or_else(|| anyhow::anyhow!("an answer without a verdict"))
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_probe_that_cannot_connect_blames_itself() {
    let fleet = Fleet::start("no-files-lease-probe").await.unwrap();
    // Once none is left, nobody gets a connection.
    let client = LeaseProbeServiceClient::new(fleet.world.setup.channel(&fleet.lease_probe).unwrap());
    let shoots = fleet.shoots();
    verdict(&client, shoots[0].namespace()).await.unwrap();
    let limit = exhaust(&fleet.lease_probe);
    OUT_OF_FILE_DESCRIPTORS
        .until_shown(&[&fleet.lease_probe])
        .await
        .unwrap();
    for shoot in &shoots {
        shoot.api().cut_connections();
    }
    for shoot in &shoots {
        let what = format!("the verdict on {} names the cause", shoot.name());
        wait::until_true(&what, BOUND, || async {
            let verdict = verdict(&client, shoot.namespace()).await?;
            let message = &verdict.message;
            anyhow::ensure!(verdict.outcome() == pb::Outcome::Inconclusive, "{message}");
            Ok(message.contains("this replica cannot open a connection: Too many open files"))
        })
        .await
        .unwrap();
    }
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
    fleet.world.sandbox.seed().cut_connections();
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
            .world
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
    assert_eq!(fleet.world.writes(shoot), [""; 0]);
    shoot.cut(Cut::All);
    fleet.world.wait_replicas(shoot, 0, BOUND).await.unwrap();
    shoot.heal();
    fleet.world.wait_replicas(shoot, 1, BOUND).await.unwrap();
    fleet.check_no_false_alarm(1).unwrap();
}
