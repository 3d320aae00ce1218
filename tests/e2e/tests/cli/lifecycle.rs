//! The life of a shoot: when it is probed, when it is skipped and why, and what takes effect on a probe that runs.

use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tonic::Code;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::{Outcome, SkipReason};
use watchdog_proto::scaling::v1 as scaling;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::store::{Part, WriteOptions};
use watchdog_sandbox::{Cut, Shoot, ShootSpec};
use watchdog_test_support::fixtures::{self, PROBE_SECRET};
use watchdog_test_support::real::cluster_resource;
use watchdog_test_support::sandboxed::World;
use watchdog_test_support::wait::{BOUND, holds, until, until_true};
use watchdog_test_support::watchdog::Service;

/// One change of a shoot, and what it is skipped for then.
struct Step {
    pointer: &'static str,
    value: Value,
    skipped: Option<SkipReason>,
}

fn step(pointer: &'static str, value: Value, skipped: impl Into<Option<SkipReason>>) -> Step {
    Step {
        pointer,
        value,
        skipped: skipped.into(),
    }
}

const WORKERS: &str = "/spec/shoot/spec/provider/workers";
const HIBERNATION: &str = "/spec/shoot/spec/hibernation";
const OPERATION: &str = "/spec/shoot/status/lastOperation";

/// Shoots by what happens to them, one step after the other.
fn lives() -> Vec<(&'static str, Vec<Step>)> {
    use SkipReason::{Deleting, Hibernating, Malformed, Migrating, NoWorkers, NotReconciled, WakingUp};
    let operation = |kind: &str, state: &str| json!({"type": kind, "state": state, "progress": 50});
    let hibernated = "/spec/shoot/status/hibernated";
    let workers = json!([{"name": "worker", "minimum": 1, "maximum": 9}]);
    vec![
        (
            "hibernates",
            vec![
                step(HIBERNATION, json!({"enabled": true}), Hibernating),
                step(hibernated, json!(true), Hibernating),
                step(HIBERNATION, json!({"enabled": false}), WakingUp),
                step(hibernated, json!(false), None),
            ],
        ),
        (
            "migrates",
            vec![
                step(OPERATION, operation("Migrate", "Processing"), Migrating),
                step(OPERATION, operation("Migrate", "Succeeded"), Migrating),
                step(OPERATION, operation("Restore", "Processing"), NotReconciled),
                step(OPERATION, operation("Restore", "Error"), NotReconciled),
                step(OPERATION, operation("Restore", "Succeeded"), None),
            ],
        ),
        (
            "created",
            vec![
                step(OPERATION, operation("Create", "Error"), NotReconciled),
                step(OPERATION, operation("Create", "Succeeded"), None),
                // What a start asks for does not end what runs.
                step(OPERATION, operation("Reconcile", "Failed"), None),
            ],
        ),
        (
            "workerless",
            vec![step(WORKERS, json!([]), NoWorkers), step(WORKERS, workers, None)],
        ),
        (
            "malformed",
            vec![
                step(WORKERS, json!("none"), Malformed),
                step(WORKERS, json!([{"name": "worker"}]), None),
            ],
        ),
        (
            "deleted",
            vec![step(
                "/spec/shoot/metadata/deletionTimestamp",
                json!("2026-11-21T10:00:00Z"),
                Deleting,
            )],
        ),
    ]
}

fn change(shoot: &Shoot, pointer: &str, value: &Value) {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    shoot
        .update_cluster(|cluster| {
            let parent = cluster.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            parent.insert(field.to_owned(), value.clone());
        })
        .unwrap();
}

async fn list(world: &World, lease_probe: &Service, outcome: Outcome) -> Vec<probe::Verdict> {
    let mut client = LeaseProbeServiceClient::new(world.setup.channel(lease_probe).unwrap());
    let request = probe::ListVerdictsRequest {
        outcomes: vec![outcome.into()],
        ..Default::default()
    };
    client.list_verdicts(request).await.unwrap().into_inner().verdicts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shoot_is_probed_or_skipped_for_the_right_reason_all_its_life() {
    let lives = lives();
    let specs = lives.iter().map(|(name, _)| {
        let mut spec = ShootSpec::new(name, 3);
        if *name == "created" {
            spec.last_operation = ("Create".to_owned(), "Processing".to_owned());
        }
        spec
    });
    let head = "probeInterval: 2s\ninitialDelay: 1s\nprobeTimeout: 3s";
    let prober = fixtures::prober(head, "500ms");
    let world = World::start_with("life", specs.collect(), &prober, &fixtures::weeder("1m"))
        .await
        .unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    let coordinator = world.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    let live = lives.iter().map(|(name, steps)| {
        let (world, lease_probe) = (&world, &lease_probe);
        async move {
            let shoot = world.shoot(name).unwrap();
            let at_first = if *name == "created" {
                Outcome::Skipped
            } else {
                Outcome::Healthy
            };
            world
                .wait_outcome(lease_probe, shoot.namespace(), at_first, BOUND)
                .await
                .unwrap();
            for step in steps {
                change(&shoot, step.pointer, &step.value);
                until(
                    &format!("{name} after {} = {}", step.pointer, step.value),
                    BOUND,
                    || async {
                        let verdict = world.verdict(lease_probe, shoot.namespace()).await?;
                        let skipped = (verdict.outcome() == Outcome::Skipped).then(|| verdict.skip_reason());
                        let right = skipped == step.skipped
                            && (skipped.is_some() || verdict.outcome() == Outcome::Healthy);
                        anyhow::ensure!(right, "it is {:?}: {}", verdict.outcome(), verdict.message);
                        Ok(Some(()))
                    },
                )
                .await
                .unwrap();
            }
        }
    });
    futures::future::join_all(live).await;

    // All of them once more at the step that skips them; and then their nodes are cut off.
    for (name, steps) in &lives {
        let first = &steps[0];
        let shoot = world.shoot(name).unwrap();
        if *name == "created" {
            // A probe that runs goes on; one that is stopped does not start again.
            change(&shoot, HIBERNATION, &json!({"enabled": true}));
            let skipped = world
                .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Skipped, BOUND)
                .await;
            assert_eq!(skipped.unwrap().skip_reason(), SkipReason::Hibernating);
            change(&shoot, first.pointer, &first.value);
            change(&shoot, HIBERNATION, &json!({"enabled": false}));
        } else {
            change(&shoot, first.pointer, &first.value);
        }
    }
    let expected: Vec<(String, SkipReason)> = {
        let mut all: Vec<_> = lives
            .iter()
            .map(|(name, steps)| {
                (
                    world.shoot(name).unwrap().namespace().to_owned(),
                    steps[0].skipped.unwrap(),
                )
            })
            .collect();
        all.sort();
        all
    };
    until(
        "ListVerdicts shows all of them with their reasons",
        BOUND,
        || async {
            let listed = list(&world, &lease_probe, Outcome::Skipped).await;
            assert!(listed.iter().all(|verdict| verdict.message.starts_with("The ")));
            let found: Vec<_> = listed
                .iter()
                .map(|verdict| (verdict.shoot.clone(), verdict.skip_reason()))
                .collect();
            anyhow::ensure!(found == expected, "{found:?}");
            Ok(Some(()))
        },
    )
    .await
    .unwrap();
    for reason in [
        "hibernating",
        "migrating",
        "not_reconciled",
        "no_workers",
        "malformed",
        "deleting",
    ] {
        let series = format!("watchdog_shoots_skipped{{reason=\"{reason}\"}}");
        assert_eq!(lease_probe.metric(&series).await.unwrap(), Some(1.0), "{reason}");
    }
    let shoots: Vec<Shoot> = world.sandbox.shoots();
    for shoot in &shoots {
        shoot.cut(Cut::All);
    }
    holds("nothing is written", Duration::from_secs(9), || async {
        Ok(shoots.iter().all(|shoot| world.writes(shoot).is_empty()))
    })
    .await
    .unwrap();
}

/// A deleted shoot stays deleted, also if it was deleted during an outage.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_deleted_is_forgotten_also_while_lease_probe_is_down() {
    let world = World::start("gone", &["stays", "leaves", "vanishes"])
        .await
        .unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    let coordinator = world.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    let shoots = ["stays", "leaves", "vanishes"].map(|name| world.shoot(name).unwrap());
    for shoot in &shoots {
        world
            .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
            .await
            .unwrap();
    }
    let [stays, leaves, vanishes] = &shoots;
    let clusters: Api<DynamicObject> = Api::all_with(world.seed.clone(), &cluster_resource());
    let unknown = |lease_probe, shoot| {
        let world = &world;
        async move {
            let error = world.verdict(lease_probe, shoot).await.err();
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
        Ok(world.scaling(&coordinator, leaves.namespace()).await.is_err())
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
    let lease_probe = world.setup.again(&lease_probe).await.unwrap();
    lease_probe.wait_ready().await.unwrap();
    world.wait_replicas(stays, 0, BOUND).await.unwrap();
    assert!(unknown(&lease_probe, vanishes.namespace()).await.unwrap());
    for shoot in [leaves, vanishes] {
        assert_eq!(world.writes(shoot), Vec::<String>::new());
    }
}

/// A Cluster that is deleted during a loss ends what was begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_shoot_that_is_skipped_during_a_loss_is_held() {
    let world = World::start("loss-and-migration", &["one"]).await.unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    let coordinator = world.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    let shoot = world.shoot("one").unwrap();
    world
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy, BOUND)
        .await
        .unwrap();
    shoot.cut(Cut::All);
    world.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    shoot.set_last_operation("Migrate", "Processing").unwrap();
    world
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Skipped, BOUND)
        .await
        .unwrap();
    // A shoot that migrates is not protected any more: the coordinator holds and removes meltdown-protection-active.
    until_true(
        "the coordinator holds and has released the shoot",
        BOUND,
        || async {
            let scaling = world.scaling(&coordinator, shoot.namespace()).await?;
            Ok(scaling.direction() == scaling::Direction::Hold && !scaling.meltdown_protection_active)
        },
    )
    .await
    .unwrap();
    let before = world.writes(&shoot).len();
    shoot.heal();
    holds("nothing is restored", Duration::from_secs(5), || async {
        Ok(world.writes(&shoot).len() == before)
    })
    .await
    .unwrap();
    shoot.set_last_operation("Restore", "Succeeded").unwrap();
    world.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}

/// Grace period, node conditions and kubeconfig of a probe that runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_probe_depends_on_takes_effect_without_a_restart() {
    let world = World::start("settings", &["one"]).await.unwrap();
    let lease_probe = world.lease_probe().await.unwrap();
    let shoot = world.shoot("one").unwrap();
    let namespace = shoot.namespace().to_owned();
    let evidence = || async {
        let verdict = world.verdict(&lease_probe, &namespace).await?;
        anyhow::Ok(verdict.evidence.unwrap_or_default())
    };
    world
        .wait_outcome(&lease_probe, &namespace, Outcome::Healthy, BOUND)
        .await
        .unwrap();

    for (grace, seconds) in [("40s", 31), ("16s", 12)] {
        let pointer = "/spec/shoot/spec/kubernetes/kubeControllerManager/nodeMonitorGracePeriod";
        change(&shoot, pointer, &json!(grace));
        until_true(
            &format!("a lease is expired as follows from {grace}"),
            BOUND,
            || async {
                Ok(evidence()
                    .await?
                    .expiry_age
                    .is_some_and(|age| age.seconds == seconds))
            },
        )
        .await
        .unwrap();
    }

    // One of five nodes is cut off: no loss, but its lease counts until its pool's conditions say otherwise.
    let node = shoot.nodes()[0].name.clone();
    shoot.cut(Cut::Nodes(vec![node.clone()]));
    until_true("its lease is expired and counts", BOUND, || async {
        let evidence = evidence().await?;
        Ok((evidence.candidates, evidence.expired) == (5, 1))
    })
    .await
    .unwrap();
    let rusty = json!({"type": "Rusty", "status": "True", "reason": "Rain"});
    shoot
        .api()
        .store()
        .modify(
            &keys::NODES,
            "",
            &node,
            Part::All,
            &WriteOptions::default(),
            |node| {
                node["status"]["conditions"].as_array_mut().unwrap().push(rusty);
                Ok(())
            },
        )
        .unwrap();
    let pool = format!("{WORKERS}/0/machineControllerManager");
    change(&shoot, &pool, &json!({"nodeConditions": ["Rusty"]}));
    until_true("its lease does not count any more", BOUND, || async {
        let evidence = evidence().await?;
        let excluded: Vec<_> = evidence
            .excluded
            .iter()
            .map(|count| (count.reason(), count.leases))
            .collect();
        Ok(evidence.candidates == 4 && excluded == [(probe::Exclusion::UnhealthyCondition, 1)])
    })
    .await
    .unwrap();

    let other = shoot.api().kubeconfig("somebody-else");
    let data = json!({"data": {"kubeconfig": k8s_openapi::ByteString(other.into_bytes())}});
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(world.seed.clone(), &namespace);
    secrets
        .patch(PROBE_SECRET, &PatchParams::default(), &Patch::Merge(data))
        .await
        .unwrap();
    until_true("the probe is somebody else", BOUND, || async {
        let audit = shoot.api().audit();
        Ok(audit
            .iter()
            .any(|entry| entry.user == "somebody-else" && entry.path.ends_with("/leases")))
    })
    .await
    .unwrap();
    let verdict = world.verdict(&lease_probe, &namespace).await.unwrap();
    assert_eq!(verdict.outcome(), Outcome::Healthy, "{}", verdict.message);
}
