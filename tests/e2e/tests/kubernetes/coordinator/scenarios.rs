//! The parts of a flow that only a real API server shows: other kinds than Deployments, its conflicts, and the order
//! in which its watches bring what a coordinator that was killed has left behind. Each finds the shoot up and leaves
//! it up.

use std::time::Duration;

use anyhow::ensure;
use kube::api::{DynamicObject, PostParams};
use serde_json::json;
use tokio::time::sleep;
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::workload_controller::deployments;

use super::{COUNTS, Fixture, engines, stateful_sets};

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
    down_and_up_in_order(&fixture).await.unwrap();
    somebody_else_writes_all_the_time(&fixture).await.unwrap();
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
        let api = fixture.api(&resource);
        api.create(&PostParams::default(), &object).await?;
    }
    wait::until_true("the others run", BOUND, || async {
        let runs = |name, count| fixture.workloads.first(name, count, true).is_some();
        Ok(runs(ETCD, 3) && runs(ENGINE, 2))
    })
    .await?;
    fixture.until_settled(Direction::Up).await
}

async fn lose(fixture: &Fixture) -> anyhow::Result<()> {
    fixture.say(Outcome::LeasesExpired);
    fixture.until_settled(Direction::Down).await
}

async fn recover(fixture: &Fixture) -> anyhow::Result<()> {
    fixture.say(Outcome::Healthy);
    fixture.until_settled(Direction::Up).await
}

/// Down in order, with recorded counts; up in order, to these counts.
async fn down_and_up_in_order(fixture: &Fixture) -> anyhow::Result<()> {
    let others = [(stateful_sets(), ETCD, 3), (engines(), ENGINE, 2)];
    let all: Vec<_> = COUNTS
        .iter()
        .map(|(name, count)| (deployments(), *name, *count))
        .chain(others)
        .collect();
    fixture.workloads.forget_changes();
    lose(fixture).await?;
    for (resource, name, count) in &all {
        let state = fixture.state(resource, name).await?;
        ensure!(state == (0, Some(count.to_string()), true), "{name} is {state:?}");
    }
    let wanted = |name| fixture.workloads.first(name, 0, false);
    let gone = |name| fixture.workloads.first(name, 0, true);
    for (first, then) in [(MCM, KCM), (CA, KCM), (KCM, ETCD), (KCM, ENGINE)] {
        ensure!(
            gone(first) < wanted(then) && gone(first).is_some(),
            "{first} before {then}"
        );
    }

    fixture.workloads.forget_changes();
    recover(fixture).await?;
    for (resource, name, count) in &all {
        let (replicas, _, held) = fixture.state(resource, name).await?;
        ensure!((replicas, held) == (*count, false), "{name} has {replicas}");
    }
    let wanted = |name, count| fixture.workloads.first(name, count, false);
    let ready = |name, count| fixture.workloads.first(name, count, true);
    for (first, count) in [(KCM, 2), (ETCD, 3), (ENGINE, 2)] {
        ensure!(ready(first, count) < wanted(MCM, 3), "{first} before {MCM}");
        ensure!(ready(first, count).is_some(), "{first} never became ready");
    }
    ensure!(ready(MCM, 3) < wanted(CA, 1), "{CA} last");
    Ok(())
}

/// Conflicts: somebody else changes a Deployment all the time, and wants other replicas in the middle.
async fn somebody_else_writes_all_the_time(fixture: &Fixture) -> anyhow::Result<()> {
    // Often enough to come in between, and not endlessly: who always comes in between is always right.
    let meddle = async {
        for count in 0..60 {
            let annotations = json!({"example.org/count": count.to_string()});
            let patch = json!({"metadata": {"annotations": annotations}});
            fixture.patch(MCM, patch).await?;
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let incident = async {
        fixture.workloads.hold(MCM);
        fixture.say(Outcome::LeasesExpired);
        fixture.until_replicas(MCM, 0).await?;
        fixture.patch(KCM, json!({"spec": {"replicas": 4}})).await?;
        fixture.workloads.release();
        fixture.until_settled(Direction::Down).await?;
        let state = fixture.state(&deployments(), KCM).await?;
        ensure!(state == (0, Some("4".to_owned()), true), "{KCM} is {state:?}");
        recover(fixture).await
    };
    tokio::try_join!(meddle, incident)?;
    for (name, wanted) in [(KCM, 4), (MCM, 3), (CA, 1)] {
        let (replicas, _, held) = fixture.state(&deployments(), name).await?;
        ensure!((replicas, held) == (wanted, false), "{name} has {replicas}");
    }
    fixture.patch(KCM, json!({"spec": {"replicas": 2}})).await?;
    fixture.until_settled(Direction::Up).await
}

/// Killed as soon as each of the Deployments is seen to be recorded, scaled down, or scaled up.
async fn killed_in_the_middle(fixture: &mut Fixture) -> anyhow::Result<()> {
    #[derive(Debug, Clone, Copy)]
    enum Moment {
        Recorded,
        Down,
        Up,
    }
    use Moment::{Down, Recorded, Up};
    let down = [(MCM, Recorded), (MCM, Down), (KCM, Recorded), (KCM, Down)];
    let up = [(KCM, Up), (MCM, Up), (CA, Up), (CA, Up)];
    for (outcome, direction, moments, order) in [
        (
            Outcome::LeasesExpired,
            Direction::Down,
            down,
            [(MCM, KCM), (CA, KCM)],
        ),
        (Outcome::Healthy, Direction::Up, up, [(KCM, MCM), (MCM, CA)]),
    ] {
        let is_down = direction == Direction::Down;
        fixture.workloads.forget_changes();
        fixture.say(outcome);
        for (name, moment) in moments {
            wait::until_true(&format!("{name}: {moment:?}"), BOUND, || async {
                let (replicas, _, held) = fixture.state(&deployments(), name).await?;
                Ok(match moment {
                    Recorded => held,
                    Down => replicas == 0,
                    Up => replicas > 0,
                })
            })
            .await?;
            fixture.crash().await?;
        }
        fixture.until_settled(direction).await?;
        let target = |count: i32| if is_down { 0 } else { count };
        for (name, count) in COUNTS {
            let (replicas, recorded, held) = fixture.state(&deployments(), name).await?;
            ensure!(
                (replicas, held) == (target(count), is_down),
                "{name} has {replicas}, held {held}"
            );
            ensure!(
                !is_down || recorded == Some(count.to_string()),
                "{name}: {recorded:?}"
            );
        }
        let changed = |name: &str, is_ready| {
            let mut counts = COUNTS.iter().filter(|(of, _)| *of == name);
            let (_, count) = counts.next()?;
            let count = i64::from(target(*count));
            fixture.workloads.first(name, count, is_ready)
        };
        for (first, then) in order {
            let (reached, begun) = (changed(first, true), changed(then, false));
            ensure!(reached < begun && reached.is_some(), "{first} before {then}");
        }
    }
    Ok(())
}
