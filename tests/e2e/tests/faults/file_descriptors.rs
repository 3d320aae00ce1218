//! No connection can be opened, because no file descriptor is left. Open connections go on.

use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

use crate::fleet::{EXPIRY, Fleet, Symptom};

const OUT_OF_FILE_DESCRIPTORS: Symptom = Symptom {
    name: "file-descriptors",
    reason: "local_limit",
    message: Some("no file descriptor is left; no connection can be opened"),
};

/// Leaves programs with the connections that they have, and returns their limits until now.
async fn starve(services: &[&Service]) -> anyhow::Result<Vec<u64>> {
    // Standard input is the only file whose number is below 1.
    let limits = services.iter().map(|service| service.process.limit_open_files(1));
    let limits = limits.collect::<anyhow::Result<_>>()?;
    OUT_OF_FILE_DESCRIPTORS.until_shown(services).await?;
    Ok(limits)
}

async fn end(services: &[&Service], limits: Vec<u64>) -> anyhow::Result<()> {
    for (service, limit) in services.iter().zip(limits) {
        service.process.limit_open_files(limit)?;
    }
    Ok(())
}

pub(crate) async fn lease_probe_blames_itself(fleet: &mut Fleet) {
    fleet.begin().await.unwrap();
    // From then on nobody gets a connection.
    let channel = fleet.channel_to_lease_probe().await.unwrap();
    let starved = [&fleet.lease_probe];
    let limits = starve(&starved).await.unwrap();
    fleet
        .check_it_blames_itself(&channel, "Too many open files")
        .await
        .unwrap();
    fleet.no_false_alarm_for(EXPIRY).await.unwrap();
    end(&starved, limits).await.unwrap();
    fleet.check_still_protects().await.unwrap();
    OUT_OF_FILE_DESCRIPTORS.until_gone(&starved).await.unwrap();
}

/// Nodes are lost, and back, while the coordinator cannot write.
pub(crate) async fn a_coordinator_writes_nothing_late(fleet: &mut Fleet) {
    fleet.begin().await.unwrap();
    let shoot = fleet.shoot();
    let starved = [&fleet.coordinator, &fleet.weeder];
    let limits = starve(&starved).await.unwrap();
    fleet.to_seed.cut_connections();
    for service in starved {
        let series = "watchdog_retry_loop_failing{loop=\"leader-election\",reason=\"local_limit\"}";
        wait::until_true("the leader election names the cause", BOUND, || async {
            let (_, body) = service.admin_get("/readyz").await?;
            anyhow::ensure!(body.contains("leader-election: the last try failed: "), "{body}");
            Ok(service.metric(series).await? == Some(1.0))
        })
        .await
        .unwrap();
        let named = service.process.wait_for_text("Too many open files", BOUND);
        named.await.unwrap();
    }
    let known = async |outcome| {
        let setup = &fleet.fixture.setup;
        let known = setup.wait_outcome(&fleet.lease_probe, &shoot.namespace, outcome);
        known.await.unwrap();
        assert_eq!(fleet.writes(shoot).unwrap(), [""; 0]);
    };
    shoot.cut_off().await;
    known(Outcome::LeasesExpired).await;
    shoot.reconnect();
    known(Outcome::Healthy).await;
    // It lasts, and so does the sign of it.
    OUT_OF_FILE_DESCRIPTORS.until_shown(&starved).await.unwrap();
    end(&starved, limits).await.unwrap();
    OUT_OF_FILE_DESCRIPTORS.until_gone(&starved).await.unwrap();
    assert_eq!(fleet.writes(shoot).unwrap(), [""; 0]);
    shoot.cut_off().await;
    fleet.check_acts_on_loss().await.unwrap();
}
