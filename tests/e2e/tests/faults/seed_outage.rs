//! Disturbances around a probe: the seed's API server goes away, a subscriber reads nothing, one node is left.

use std::time::Duration;

use serde_json::json;
use tonic::Code;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::{Outcome, SkipReason};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::store::{Part, Preconditions, WriteOptions};
use watchdog_sandbox::{Cut, SimulatedShootSpec};
use watchdog_test_support::fixtures;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{BOUND, holds, until_true};
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
    let coordinator = fixture.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    for shoot in [&same, &hibernates, &vanishes, &rotates, &slower] {
        fixture
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
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
            false,
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
    let observed =
        || async { anyhow::Ok(fixture.verdict(&lease_probe, same.namespace()).await?.observed_at) };
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
        .wait_outcome(&lease_probe, hibernates.namespace(), Outcome::Skipped, BOUND)
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
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
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

/// Shoots that sleep, with names as long as names may be: what one subscriber must take before it can stall.
const SLEEPING: usize = 16_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_reads_nothing_disturbs_nobody_and_goes_on_with_the_newest_state() {
    let prober = fixtures::prober("probeInterval: 2s\ninitialDelay: 1s\nprobeTimeout: 3s", "500ms");
    let shoots = vec![SimulatedShootSpec::new("one", 3)];
    let fixture = SandboxFixture::start_with("stalled", shoots, &prober, &fixtures::weeder("1m"))
        .await
        .unwrap();
    for number in 0..SLEEPING {
        let name = format!("shoot--sandbox--sleeping-with-a-name-as-long-as-may-be-{number:07}");
        let cluster = json!({
            "metadata": {"name": name},
            "spec": {"shoot": {"spec": {"hibernation": {"enabled": true}}}},
        });
        fixture
            .sandbox
            .seed()
            .create(&keys::CLUSTERS, "", cluster)
            .unwrap();
    }
    let one = fixture.shoot("one").unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let request = || probe::WatchVerdictsRequest::default();
    let mut stalled = LeaseProbeServiceClient::new(fixture.setup.channel(&lease_probe).unwrap());
    // Held, and read only at the end.
    let mut stalled = stalled.watch_verdicts(request()).await.unwrap().into_inner();
    let mut reader = LeaseProbeServiceClient::new(fixture.setup.channel(&lease_probe).unwrap());
    let mut reader = reader.watch_verdicts(request()).await.unwrap().into_inner();
    use probe::watch_verdicts_response::Event;
    let mut items = 0_usize;
    let reported = loop {
        let message = tokio::time::timeout(BOUND, reader.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        match message.event.unwrap() {
            Event::Upsert(_) => items += 1,
            Event::SnapshotComplete(complete) => break complete.items,
            other => panic!("{other:?} in a snapshot"),
        }
    };
    assert_eq!((reported as usize, items), (SLEEPING + 1, SLEEPING + 1));
    tokio::spawn(async move { while reader.message().await.is_ok_and(|message| message.is_some()) {} });
    one.cut(Cut::All);
    fixture
        .wait_outcome(&lease_probe, one.namespace(), Outcome::LeasesExpired, BOUND)
        .await
        .unwrap();
    let newest = async {
        loop {
            let message = stalled.message().await.unwrap().unwrap();
            if let Event::Upsert(verdict) = message.event.unwrap()
                && verdict.shoot == one.namespace()
                && verdict.outcome() == Outcome::LeasesExpired
            {
                return;
            }
        }
    };
    tokio::time::timeout(BOUND, newest).await.unwrap();
}

/// The reference stays stuck here: scaled down, and with one lease left that counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_shoot_that_was_scaled_down_and_has_one_node_left_is_restored_by_it() {
    let fixture = SandboxFixture::start("one-left", &["one"]).await.unwrap();
    let shoot = fixture.shoot("one").unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    fixture
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
        .await
        .unwrap();
    shoot.cut(Cut::All);
    fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    for machine in shoot.machines().iter().skip(1) {
        let store = fixture.sandbox.seed().store();
        let (namespace, options) = (shoot.namespace(), WriteOptions::default());
        store
            .modify(
                &keys::MACHINES,
                namespace,
                &machine.name,
                Part::All,
                &options,
                |machine| {
                    machine["status"]["currentStatus"]["phase"] = "Terminating".into();
                    Ok(())
                },
            )
            .unwrap();
    }
    let verdict = fixture
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::TooFewCandidates, BOUND)
        .await
        .unwrap();
    assert_eq!(verdict.evidence.unwrap().candidates, 1);
    let before = fixture.writes(&shoot).len();
    holds(
        "one expired lease changes nothing",
        Duration::from_secs(3),
        || async { Ok(fixture.writes(&shoot).len() == before) },
    )
    .await
    .unwrap();
    shoot.heal();
    fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}
