//! An etcd without space refuses all writes and answers all reads: renewals fail, and lists show old leases.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::real::{COUNTS, RealFixture};
use watchdog_test_support::wait;

use super::drop_in::{DropIn, USERS, config, fixture};
use crate::SHOOT;

/// For almost four grace periods.
const FULL: Duration = Duration::from_secs(60);

/// The generations of the dependants, which grow with every change of their specs.
async fn generations(fixture: &RealFixture) -> anyhow::Result<Vec<Option<i64>>> {
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
    let shoot = fixture.shoot("one").unwrap();
    let etcd = &shoot.plane.as_ref().unwrap().etcd;
    shoot.hand_over().await.unwrap();
    prober.wait_healthy().await;
    let before = generations(&fixture).await.unwrap();

    etcd.fill().await.unwrap();
    wait::holds("nothing is scaled while etcd is full", FULL, || async {
        Ok(generations(&fixture).await? == before)
    })
    .await
    .unwrap();
    assert_eq!(prober.outcome().await.unwrap(), Outcome::Pending);

    etcd.make_room().await.unwrap();
    prober.wait_healthy().await;
    assert_eq!(generations(&fixture).await.unwrap(), before);

    // It protects as before.
    shoot.cut_off().await;
    shoot.wait_down("all dependants are at 0").await.unwrap();
}
