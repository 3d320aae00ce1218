//! The seed's API server goes away while the Clusters and Secrets change.

use serde_json::json;
use tonic::Code;
use watchdog_proto::probe::v1::{Outcome, SkipReason};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::store::Preconditions;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::simulation::Cut;
use watchdog_test_support::wait::{BOUND, until_true};
use watchdog_test_support::watchdog::Service;

async fn unknown(fixture: &SandboxFixture, lease_probe: &Service, shoot: &str) -> anyhow::Result<bool> {
    let error = fixture.verdict(lease_probe, shoot).await.err();
    let status = error
        .as_ref()
        .and_then(|error| error.downcast_ref::<tonic::Status>());
    Ok(status.is_some_and(|status| status.code() == Code::NotFound))
}

/// A change during the outage is applied after it, in the same process.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_of_the_seed_the_state_is_right_without_a_restart() {
    let names = ["same", "hibernates", "vanishes", "rotates", "slower", "appears"];
    let fixture = SandboxFixture::start("seed-outage", &names).await.unwrap();
    let [same, hibernates, vanishes, rotates, slower, appears] =
        names.map(|name| fixture.shoot(name).unwrap());
    appears.set_last_operation("Create", "Processing").unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let _coordinator = fixture.coordinator().await.unwrap();
    for shoot in [&same, &hibernates, &vanishes, &rotates, &slower] {
        fixture
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy)
            .await
            .unwrap();
    }
    let seed = fixture.sandbox.seed();
    seed.stop().await.unwrap();
    let store = seed.store();
    hibernates.set_hibernated(true).unwrap();
    store
        .delete(
            &keys::CLUSTERS,
            "",
            vanishes.namespace(),
            &Preconditions::default(),
        )
        .unwrap();
    rotates.rotate_kubeconfig().unwrap();
    slower
        .update_cluster(|cluster| {
            let kubernetes = cluster.pointer_mut("/spec/shoot/spec/kubernetes").unwrap();
            *kubernetes = json!({"kubeControllerManager": {"nodeMonitorGracePeriod": "40s"}});
        })
        .unwrap();
    appears.set_last_operation("Create", "Succeeded").unwrap();
    // The watches also miss this: history that the server does not remember.
    seed.compact();
    let observed = || async {
        anyhow::Ok(
            fixture
                .verdict(&lease_probe, same.namespace())
                .await?
                .observe_time,
        )
    };
    for _ in 0..2 {
        let before = observed().await.unwrap();
        until_true("the probes go on without the seed", BOUND, || async {
            Ok(observed().await? != before)
        })
        .await
        .unwrap();
    }
    seed.resume().await.unwrap();

    let skipped = fixture
        .wait_outcome(&lease_probe, hibernates.namespace(), Outcome::Skipped)
        .await
        .unwrap();
    assert_eq!(skipped.skip_reason(), SkipReason::Hibernating);
    until_true("the Cluster that is gone is forgotten", BOUND, || {
        unknown(&fixture, &lease_probe, vanishes.namespace())
    })
    .await
    .unwrap();
    for shoot in [&same, &rotates, &appears] {
        fixture
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy)
            .await
            .unwrap();
    }
    until_true("the changed grace period is in effect", BOUND, || async {
        let verdict = fixture.verdict(&lease_probe, slower.namespace()).await?;
        let age = verdict.evidence.and_then(|evidence| evidence.expiry_age);
        Ok(age.is_some_and(|age| age.seconds == 30))
    })
    .await
    .unwrap();
    // And what must be done is done, where the watches are new.
    same.cut(Cut::All);
    hibernates.cut(Cut::All);
    fixture.wait_replicas(&same, 0, BOUND).await.unwrap();
    same.heal();
    fixture.wait_replicas(&same, 1, BOUND).await.unwrap();
    for shoot in [&hibernates, &vanishes] {
        assert_eq!(fixture.writes(shoot), Vec::<String>::new());
    }
    assert!(
        lease_probe.process.exit_status().unwrap().is_none(),
        "still the first process"
    );
}
