//! The parts of a flow that only a real API server shows: other kinds than Deployments, its conflicts, and the order
//! in which its watches bring what a coordinator that was killed has left behind. Each finds the shoot up and leaves
//! it up.

use std::time::Duration;

use anyhow::ensure;
use kube::api::{DynamicObject, PostParams};
use serde_json::json;
use tokio::time::sleep;
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::fake_probe::Outcome;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::history::timeline::{Dependant, Timeline};
use watchdog_test_support::wait::{self, BOUND};

use super::{COUNTS, Fixture, SHOOT, engines, stateful_sets};

const ETCD: &str = "etcd-events";
const ENGINE: &str = "engine";

/// Gardener's three, then a StatefulSet and a custom resource: the last to go down, the first to come up.
fn config() -> String {
    let three = fixtures::prober("probeInterval: 10s", "100ms");
    format!(
        "{three}
- ref: {{apiVersion: apps/v1, kind: StatefulSet, name: {ETCD}}}
  optional: true
  scaleUp: {{level: 0}}
  scaleDown: {{level: 2}}
- ref: {{apiVersion: machines.example.com/v1, kind: Engine, name: {ENGINE}}}
  optional: true
  scaleUp: {{level: 0}}
  scaleDown: {{level: 2}}
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_in_order_against_other_writers_and_through_crashes() {
    let mut fixture = Fixture::start("coordinator", &config()).await.unwrap();
    create_others(&fixture).await.unwrap();
    down_and_up_in_order(&mut fixture).await.unwrap();
    somebody_else_writes_all_the_time(&mut fixture).await.unwrap();
    killed_in_the_middle(&mut fixture).await.unwrap();
}

async fn create_others(fixture: &Fixture) -> anyhow::Result<()> {
    let set = json!({"spec": {
        "replicas": 3, "serviceName": ETCD,
        "selector": {"matchLabels": {"app": ETCD}},
        "template": {
            "metadata": {"labels": {"app": ETCD}},
            "spec": {"containers": [{"name": "etcd", "image": "simulated"}]},
        },
    }});
    for (resource, name, data) in [
        (stateful_sets(), ETCD, set),
        (engines(), ENGINE, json!({"spec": {"size": 2}})),
    ] {
        let object = DynamicObject::new(name, &resource).data(data);
        let api = fixture.seed.api(&resource);
        api.create(&PostParams::default(), &object).await?;
    }
    wait::until_true("the others run", BOUND, || async {
        let runs = |name, count| fixture.seed.workloads.first(name, count, true).is_some();
        Ok(runs(ETCD, 3) && runs(ENGINE, 2))
    })
    .await?;
    fixture.until_settled(Direction::Up).await
}

/// The other kinds after kube-controller-manager on the way down, before machine-controller-manager on the way up.
async fn down_and_up_in_order(fixture: &mut Fixture) -> anyhow::Result<()> {
    let others = [(stateful_sets(), ETCD, 3), (engines(), ENGINE, 2)];
    fixture.seed.workloads.forget_changes();
    fixture.lose().await?;
    fixture.seed.until_down().await?;
    for (resource, name, count) in &others {
        let state = fixture.seed.state(resource, name).await?;
        ensure!(state == (0, Some(count.to_string()), true), "{name} is {state:?}");
        let gone = fixture.seed.workloads.first(KCM, 0, true);
        let in_order = gone.is_some() && gone < fixture.seed.workloads.first(name, 0, false);
        ensure!(in_order, "{KCM} before {name}");
    }
    fixture.seed.workloads.forget_changes();
    fixture.recover().await?;
    for (resource, name, count) in others {
        let (replicas, _, held) = fixture.seed.state(&resource, name).await?;
        ensure!((replicas, held) == (count, false), "{name} has {replicas}");
        let ready = fixture.seed.workloads.first(name, count.into(), true);
        let in_order = ready.is_some() && ready < fixture.seed.workloads.first(MCM, 3, false);
        ensure!(in_order, "{name} before {MCM}");
    }
    fixture.end(COUNTS).await
}

/// Conflicts: somebody else changes a Deployment all the time, and wants other replicas in the middle.
async fn somebody_else_writes_all_the_time(fixture: &mut Fixture) -> anyhow::Result<()> {
    // Often enough to come in between, and not endlessly: who always comes in between is always right.
    let meddle = async {
        for count in 0..60 {
            let annotations = json!({"example.org/count": count.to_string()});
            let patch = json!({"metadata": {"annotations": annotations}});
            fixture.seed.patch(MCM, patch).await?;
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let incident = async {
        fixture.seed.workloads.hold(MCM);
        fixture.seed.say(Outcome::LeasesExpired);
        fixture.seed.until_replicas(MCM, 0).await?;
        fixture.seed.patch(KCM, json!({"spec": {"replicas": 4}})).await?;
        fixture.seed.workloads.release();
        fixture.until_settled(Direction::Down).await?;
        fixture.seed.until_down().await?;
        fixture.recover().await
    };
    tokio::try_join!(meddle, incident)?;
    fixture.end([(KCM, 4), (MCM, 3), (CA, 1)]).await?;
    fixture.seed.patch(KCM, json!({"spec": {"replicas": 2}})).await?;
    fixture.until_settled(Direction::Up).await
}

/// Killed as soon as each of the Deployments is seen to be recorded, scaled down, or scaled up.
async fn killed_in_the_middle(fixture: &mut Fixture) -> anyhow::Result<()> {
    let recorded: fn(&Dependant) -> bool = |found| found.held;
    let down: fn(&Dependant) -> bool = |found| found.wanted == 0;
    let up: fn(&Dependant) -> bool = |found| found.wanted > 0;
    let moments_down = [(MCM, recorded), (MCM, down), (KCM, recorded), (KCM, down)];
    let moments_up = [(KCM, up), (MCM, up), (CA, up), (CA, up)];
    for (outcome, direction, moments) in [
        (Outcome::LeasesExpired, Direction::Down, moments_down),
        (Outcome::Healthy, Direction::Up, moments_up),
    ] {
        fixture.seed.say(outcome);
        for (name, moment) in moments {
            let is_there = |timeline: &Timeline| {
                timeline
                    .dependant(SHOOT, name)
                    .is_some_and(|found| moment(&found))
            };
            let what = format!("{name} is where the coordinator is killed");
            fixture.seed.timeline.until(&what, BOUND, is_there).await?;
            fixture.crash().await?;
        }
        fixture.until_settled(direction).await?;
        if direction == Direction::Down {
            fixture.seed.until_down().await?;
        }
    }
    fixture.end(COUNTS).await
}
