//! The end of a shoot: its Cluster is deleted, or its control plane migrates, also in the middle of a loss.

use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, DynamicObject};
use tonic::Code;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_sandbox::Cut;
use watchdog_test_support::real::cluster_resource;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{BOUND, holds, until_true};

/// A deleted shoot stays deleted, also if it was deleted during an outage.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_deleted_is_forgotten_also_while_lease_probe_is_down() {
    let fixture = SandboxFixture::start("gone", &["stays", "leaves", "vanishes"])
        .await
        .unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    let shoots = ["stays", "leaves", "vanishes"].map(|name| fixture.shoot(name).unwrap());
    for shoot in &shoots {
        fixture
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
            .await
            .unwrap();
    }
    let [stays, leaves, vanishes] = &shoots;
    let clusters: Api<DynamicObject> = Api::all_with(fixture.seed.clone(), &cluster_resource());
    let unknown = |lease_probe, shoot| {
        let fixture = &fixture;
        async move {
            let error = fixture.verdict(lease_probe, shoot).await.err();
            let status = error
                .as_ref()
                .and_then(|error| error.downcast_ref::<tonic::Status>());
            Ok(status.is_some_and(|status| status.code() == Code::NotFound))
        }
    };
    clusters
        .delete(leaves.namespace(), &DeleteParams::default())
        .await
        .unwrap();
    until_true("its verdict is gone", BOUND, || {
        unknown(&lease_probe, leaves.namespace())
    })
    .await
    .unwrap();
    let series = format!(
        "watchdog_shoot_verdict_age_seconds{{shoot=\"{}\"}}",
        leaves.namespace()
    );
    assert_eq!(
        lease_probe.metric(&series).await.unwrap(),
        None,
        "and so are its series"
    );
    until_true("the coordinator has forgotten it", BOUND, || async {
        Ok(fixture.scaling(&coordinator, leaves.namespace()).await.is_err())
    })
    .await
    .unwrap();

    lease_probe.process.kill_9().await.unwrap();
    clusters
        .delete(vanishes.namespace(), &DeleteParams::default())
        .await
        .unwrap();
    for shoot in &shoots {
        shoot.cut(Cut::All);
    }
    let lease_probe = fixture.setup.again(&lease_probe).await.unwrap();
    lease_probe.wait_ready().await.unwrap();
    fixture.wait_replicas(stays, 0, BOUND).await.unwrap();
    assert!(unknown(&lease_probe, vanishes.namespace()).await.unwrap());
    for shoot in [leaves, vanishes] {
        assert_eq!(fixture.writes(shoot), Vec::<String>::new());
    }
}

/// A Cluster that is deleted during a loss ends what was begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_shoot_that_is_skipped_during_a_loss_is_held() {
    let fixture = SandboxFixture::start("loss-and-migration", &["one"])
        .await
        .unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    let shoot = fixture.shoot("one").unwrap();
    fixture
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
        .await
        .unwrap();
    shoot.cut(Cut::All);
    fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    shoot.set_last_operation("Migrate", "Processing").unwrap();
    fixture
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Skipped, BOUND)
        .await
        .unwrap();
    // A shoot that migrates is no longer protected: the coordinator holds and removes meltdown-protection-active.
    until_true(
        "the coordinator holds and has released the shoot",
        BOUND,
        || async {
            let scaling = fixture.scaling(&coordinator, shoot.namespace()).await?;
            Ok(scaling.direction() == scaling::Direction::Hold && !scaling.meltdown_protection_active)
        },
    )
    .await
    .unwrap();
    let before = fixture.writes(&shoot).len();
    shoot.heal();
    holds("nothing is restored", Duration::from_secs(5), || async {
        Ok(fixture.writes(&shoot).len() == before)
    })
    .await
    .unwrap();
    shoot.set_last_operation("Restore", "Succeeded").unwrap();
    fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}
