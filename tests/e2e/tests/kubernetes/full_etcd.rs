//! An etcd without space refuses all writes and answers all reads: renewals fail, and lists show old leases.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::wait;

use super::drop_in::{DropIn, USERS, config, fixture};
use super::fixture::{COUNTS, Fixture, SHOOT};

/// For almost four grace periods.
const FULL: Duration = Duration::from_secs(60);

/// The generations of the dependants, which grow with every change of their specs.
async fn generations(fixture: &Fixture) -> anyhow::Result<Vec<Option<i64>>> {
    let deployments: Api<Deployment> = Api::namespaced(fixture.seed.client(), SHOOT);
    let mut generations = Vec::new();
    for (name, _) in COUNTS {
        generations.push(deployments.get(name).await?.metadata.generation);
    }
    Ok(generations)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_of_a_shoot_scales_nothing() {
    let (fixture, config) = fixture("full-etcd", &config()).await;
    let prober = DropIn::start(&fixture.plane, &fixture.seed, "prober", USERS[0], &config).await;
    prober.wait_ready().await;
    fixture.hand_over().await.unwrap();
    prober.wait_healthy().await;
    let before = generations(&fixture).await.unwrap();

    fixture.shoot_plane.etcd.fill().await.unwrap();
    wait::holds("nothing is scaled while etcd is full", FULL, || async {
        Ok(generations(&fixture).await? == before)
    })
    .await
    .unwrap();
    assert_eq!(prober.outcome().await.unwrap(), Outcome::Pending);

    fixture.shoot_plane.etcd.make_room().await.unwrap();
    prober.wait_healthy().await;
    assert_eq!(generations(&fixture).await.unwrap(), before);

    // It protects as before.
    fixture.cut_off().await;
    fixture.wait_down("all dependants are at 0").await.unwrap();
}
