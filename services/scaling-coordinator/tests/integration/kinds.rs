//! Resources that are no Deployments.

use serde_json::{Value, json};
use watchdog_proto::scaling::v1::{Direction, FlowState, ResourceState};
use watchdog_sandbox::resource::{ResourceKey, ResourceType, ScalePaths};
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::{Coordinator, resource, state_of};
use crate::seed::{PROTECTED, RECORDED, Seed};
use crate::{SHOOT, eventually};

const CONFIG: &str = "
kubeConfigSecretName: shoot-access-dependency-watchdog-probe
dependentResourceInfos:
- ref: {kind: Engine, name: engine, apiVersion: machines.example.com/v1}
  scaleUp: {level: 1}
  scaleDown: {level: 0}
- ref: {kind: Ghost, name: ghost, apiVersion: ghosts.example.com/v1}
  optional: true
  scaleUp: {level: 0}
  scaleDown: {level: 0}
";

/// A custom resource whose replicas are not where they usually are.
const ENGINES: ResourceKey = ResourceKey::of("machines.example.com", "v1", "engines");

fn engines() -> ResourceType {
    let paths = ScalePaths {
        spec_replicas: "/spec/size".into(),
        status_replicas: "/status/size".into(),
    };
    ResourceType::custom("machines.example.com", "v1", "Engine", "engines", Some(paths))
}

fn set_status(seed: &Seed, status: Value) {
    seed.modify(&ENGINES, SHOOT, "engine", |object| {
        object["status"] = status;
        object["status"]["observedGeneration"] = object["metadata"]["generation"].clone();
    });
}

fn size(seed: &Seed) -> i64 {
    let engine = seed.api.store().find(&ENGINES, SHOOT, "engine");
    engine.unwrap().number("/spec/size")
}

#[tokio::test]
async fn a_kind_that_has_only_a_scale_sub_resource_works() {
    let (seed, probe) = (Seed::with_config(CONFIG).await, FakeProbe::start().await.unwrap());
    seed.api.register(engines());
    seed.cluster(SHOOT);
    seed.api
        .create(
            &ENGINES,
            SHOOT,
            json!({ "metadata": { "name": "engine" }, "spec": { "size": 2 } }),
        )
        .unwrap();
    set_status(&seed, json!({ "size": 2 }));

    let coordinator = Coordinator::launch(&seed, "coordinator-0", &[&probe], &[]).await;
    let ghost = "ghost.ghosts.example.com/ghost: the seed does not serve ghosts.example.com/v1 Ghost: correct the \
                 configuration";
    eventually("the kind that is not served is the only blocker", || {
        coordinator.blockers() == [ghost]
    })
    .await;
    probe.say([SHOOT], Outcome::LeasesExpired);
    eventually("the engine is scaled down", || size(&seed) == 0).await;
    coordinator
        .until(SHOOT, "the engine is waited for", |s| {
            state_of(s, "engine") == ResourceState::Waiting
        })
        .await;
    let engine = seed.api.store().find(&ENGINES, SHOOT, "engine").unwrap();
    assert_eq!(
        (engine.annotation(RECORDED), engine.annotation(PROTECTED)),
        (Some("2"), Some(""))
    );
    set_status(&seed, json!({ "size": 0 }));
    let down = coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(state_of(&down, "ghost"), ResourceState::Absent);
    assert_eq!(resource(&down, "engine").spec_replicas, Some(0));

    probe.say([SHOOT], Outcome::Healthy);
    eventually("the engine is scaled up", || size(&seed) == 2).await;
    set_status(&seed, json!({ "size": 1 }));
    let up = coordinator.until_settled(SHOOT, Direction::Up).await;
    assert!(!up.meltdown_protection_active);

    // A write of its status is no work: its replicas stay known.
    let before = seed.api.counters().requests;
    set_status(&seed, json!({ "size": 1, "readyReplicas": 2 }));
    coordinator
        .until(SHOOT, "the status is seen", |s| {
            let engine = resource(s, "engine");
            (engine.spec_replicas, engine.ready_replicas) == (Some(2), Some(2))
        })
        .await;
    let mut requests = seed.api.audit_since(before).into_iter();
    let read = requests.find(|entry| entry.verb == "get" && entry.path.contains("/engines/"));
    assert_eq!(read.map(|entry| entry.path), None);
}

#[tokio::test]
async fn a_kind_without_a_scale_sub_resource_fails_its_level() {
    let config = CONFIG
        .replace("kind: Engine", "kind: Rock")
        .replace("name: ghost", "name: nothing");
    let (seed, probe) = (
        Seed::with_config(&config).await,
        FakeProbe::start().await.unwrap(),
    );
    seed.api.register(ResourceType::custom(
        "machines.example.com",
        "v1",
        "Rock",
        "rocks",
        None,
    ));
    seed.cluster(SHOOT);
    let coordinator = Coordinator::launch(&seed, "coordinator-0", &[&probe], &[]).await;
    probe.say([SHOOT], Outcome::LeasesExpired);
    let failed = coordinator
        .until(SHOOT, "the level has failed", |s| s.state() == FlowState::Failed)
        .await;
    assert!(
        resource(&failed, "engine")
            .message
            .contains("no scale subresource"),
        "{failed:#?}"
    );
    let rocks = |line: &String| line.contains("rocks have no scale subresource");
    assert!(coordinator.blockers().iter().any(rocks));
}

#[tokio::test]
async fn a_kind_that_comes_back_is_followed_again() {
    let (seed, probe) = (Seed::with_config(CONFIG).await, FakeProbe::start().await.unwrap());
    seed.api.register(engines());
    seed.cluster(SHOOT);
    let engine = |size: i64| json!({ "metadata": { "name": "engine" }, "spec": { "size": size } });
    seed.api.create(&ENGINES, SHOOT, engine(2)).unwrap();
    let coordinator = Coordinator::launch(&seed, "coordinator-0", &[&probe], &[]).await;
    coordinator
        .until(SHOOT, "the engine is known", |s| {
            state_of(s, "engine") != ResourceState::Absent
        })
        .await;
    // The backup of etcd from which the seed is restored does not know the CustomResourceDefinition yet.
    seed.api.unregister(&ENGINES);
    seed.api.drop_watches();
    let not_served =
        |line: &String| line.starts_with("engine.machines.example.com/engine: the seed does not serve");
    eventually("the loss of the kind is seen", || {
        coordinator.blockers().iter().any(not_served)
    })
    .await;
    probe.say([SHOOT], Outcome::LeasesExpired);
    coordinator
        .until(SHOOT, "the level waits for the kind", |s| {
            resource(s, "engine")
                .message
                .contains("no longer serves its kind")
        })
        .await;
    seed.api.register(engines());
    seed.api.create(&ENGINES, SHOOT, engine(3)).unwrap();
    eventually("the engine is scaled down", || size(&seed) == 0).await;
}
