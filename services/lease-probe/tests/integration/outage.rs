//! The seed's API server goes away while the Clusters and Secrets change.

use serde_json::json;
use watchdog_proto::probe::v1::{Outcome, SkipReason};
use watchdog_sandbox::resource::keys;
use watchdog_test_support::in_process::delete;
use watchdog_test_support::simulation::Cut;

use crate::fixture::{Fixture, fast};
use crate::replica::Replica;

/// A change during the outage is applied after it, by the same process.
#[tokio::test]
async fn after_an_outage_of_the_seed_the_state_is_right_without_a_restart() {
    let names = ["same", "hibernates", "vanishes", "rotates", "slower", "appears"];
    let fixture = Fixture::new(fast(), 3, &names).await;
    let [same, hibernates, vanishes, rotates, slower, appears] = names.map(|name| fixture.shoot(name));
    appears.set_last_operation("Create", "Processing").unwrap();
    let replica = Replica::start(&fixture).await;
    for shoot in [&same, &hibernates, &vanishes, &rotates, &slower] {
        replica.until_outcome(shoot, Outcome::Healthy).await;
    }
    let seed = fixture.seed();
    seed.stop().await.unwrap();
    hibernates.set_hibernated(true).unwrap();
    delete(seed, &keys::CLUSTERS, "", vanishes.namespace()).unwrap();
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
    for _ in 0..2 {
        let before = replica.verdict(same.namespace()).await.unwrap().observe_time;
        let probed = replica.until(&same, "probed without the seed", |verdict| {
            verdict.observe_time != before
        });
        probed.await;
    }
    seed.resume().await.unwrap();

    let skipped = replica.until_outcome(&hibernates, Outcome::Skipped).await;
    assert_eq!(skipped.skip_reason(), SkipReason::Hibernating);
    replica.until_unknown(vanishes.namespace()).await;
    for shoot in [&same, &rotates, &appears] {
        replica.until_outcome(shoot, Outcome::Healthy).await;
    }
    let slow = replica.until(&slower, "judged by the changed grace period", |verdict| {
        let age = verdict.evidence.as_ref().and_then(|evidence| evidence.expiry_age);
        age.is_some_and(|age| age.seconds == 30)
    });
    slow.await;

    // A loss is reported where the watches are new, and nowhere else.
    same.cut(Cut::All);
    hibernates.cut(Cut::All);
    replica.until_outcome(&same, Outcome::LeasesExpired).await;
    let skipped = replica.verdict(hibernates.namespace()).await.unwrap();
    assert_eq!(skipped.outcome(), Outcome::Skipped);
    same.heal();
    replica.until_outcome(&same, Outcome::Healthy).await;
}
