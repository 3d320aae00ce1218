//! Scenarios of the coordinator. Each finds the shoot up and leaves it up.

use std::time::Duration;

use anyhow::ensure;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject};
use serde_json::{Value, json};
use watchdog_proto::scaling::v1::{Direction, Step};
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::fixtures::{CA, KCM, MCM};
use watchdog_test_support::real::create_deployment;
use watchdog_test_support::wait;
use watchdog_test_support::workload_controller::deployments;

use super::{
    BOUND, COUNTS, ENGINE, ETCD, Seed, World, config_with_other_kinds, create_others, engines, stateful_sets,
};

const SHOOT: &str = "shoot--scenario--one";
const OTHER: &str = "shoot--scenario--two";

/// Plays all of them on one seed.
pub async fn play_all(name: &str, seed: Seed) -> anyhow::Result<()> {
    let kinds = vec![deployments(), stateful_sets(), engines()];
    let shoots = [SHOOT.to_owned(), OTHER.to_owned()];
    let mut world = World::start(name, seed, &shoots, &config_with_other_kinds(), kinds).await?;
    create_others(&world.client, SHOOT).await?;
    wait::until_true("the others run", BOUND, || async {
        let runs = |name, count| world.workloads.last(name, count, true).is_some();
        Ok(runs(ETCD, 3) && runs(ENGINE, 2))
    })
    .await?;
    settled(&world, Direction::Up).await?;
    down_and_up_in_order(&world).await?;
    a_contrary_verdict_in_the_middle(&world).await?;
    one_is_to_be_left_alone(&world).await?;
    an_optional_one_is_absent(&world).await?;
    somebody_else_writes_all_the_time(&world).await?;
    hibernated_in_the_middle(&world).await?;
    killed_in_the_middle(&mut world).await
}

async fn settled(world: &World, direction: Direction) -> anyhow::Result<()> {
    world.coordinator.until_settled(SHOOT, direction, BOUND).await
}

fn say(world: &World, outcome: Outcome) {
    world.probe.say([SHOOT], outcome);
}

async fn lose(world: &World) -> anyhow::Result<()> {
    say(world, Outcome::LeasesExpired);
    settled(world, Direction::Down).await
}

async fn recover(world: &World) -> anyhow::Result<()> {
    say(world, Outcome::Healthy);
    settled(world, Direction::Up).await
}

/// Nothing that this one has to do ends before it is let go.
fn hold(world: &World, name: &str) {
    world.workloads.hold(name);
}

fn let_go(world: &World) {
    world.workloads.release();
}

async fn until_replicas(world: &World, name: &str, wanted: i64) -> anyhow::Result<()> {
    wait::until_true(&format!("{name} is scaled to {wanted}"), BOUND, || async {
        Ok(world.replicas(SHOOT, name).await? == wanted)
    })
    .await
}

/// Down in order, with recorded counts; up in order, to these counts.
async fn down_and_up_in_order(world: &World) -> anyhow::Result<()> {
    let others = [(stateful_sets(), ETCD, 3), (engines(), ENGINE, 2)];
    let all: Vec<_> = COUNTS
        .iter()
        .map(|(name, count)| (deployments(), *name, *count))
        .chain(others)
        .collect();
    world.workloads.forget_changes();
    lose(world).await?;
    for (resource, name, count) in &all {
        let state = world.state(SHOOT, resource, name).await?;
        ensure!(state == (0, Some(count.to_string()), true), "{name} is {state:?}");
    }
    let wanted = |name| world.workloads.first(name, 0, false);
    let gone = |name| world.workloads.first(name, 0, true);
    for (first, then) in [(MCM, KCM), (CA, KCM), (KCM, ETCD), (KCM, ENGINE)] {
        ensure!(
            gone(first) < wanted(then) && gone(first).is_some(),
            "{first} before {then}"
        );
    }

    world.workloads.forget_changes();
    recover(world).await?;
    for (resource, name, count) in &all {
        let (replicas, _, held) = world.state(SHOOT, resource, name).await?;
        ensure!((replicas, held) == (*count, false), "{name} has {replicas}");
    }
    let wanted = |name, count| world.workloads.first(name, count, false);
    let ready = |name, count| world.workloads.first(name, count, true);
    for (first, count) in [(KCM, 2), (ETCD, 3), (ENGINE, 2)] {
        ensure!(ready(first, count) < wanted(MCM, 3), "{first} before {MCM}");
        ensure!(ready(first, count).is_some(), "{first} never became ready");
    }
    ensure!(ready(MCM, 3) < wanted(CA, 1), "{CA} last");
    Ok(())
}

/// A resource that is not down yet never goes down.
async fn a_contrary_verdict_in_the_middle(world: &World) -> anyhow::Result<()> {
    world.workloads.forget_changes();
    hold(world, MCM);
    say(world, Outcome::LeasesExpired);
    until_replicas(world, MCM, 0).await?;
    say(world, Outcome::Healthy);
    let_go(world);
    settled(world, Direction::Up).await?;
    let state = world.state(SHOOT, &deployments(), MCM).await?;
    ensure!(state == (3, Some("3".to_owned()), false), "{MCM} is {state:?}");
    ensure!(
        world.workloads.first(KCM, 0, false).is_none(),
        "{KCM} was touched"
    );
    Ok(())
}

/// As long as it says so, and no longer.
async fn one_is_to_be_left_alone(world: &World) -> anyhow::Result<()> {
    let ignore = "dependency-watchdog.gardener.cloud/ignore-scaling";
    let protected = "dependency-watchdog.gardener.cloud/meltdown-protection-active";
    world.annotate(SHOOT, KCM, ignore, json!("True")).await?;
    world.annotate(SHOOT, KCM, protected, json!("")).await?;
    say(world, Outcome::ExternalUnreachable);
    settled(world, Direction::Down).await?;
    let (replicas, _, held) = world.state(SHOOT, &deployments(), KCM).await?;
    ensure!((replicas, held) == (2, false), "{KCM}: {replicas}, held {held}");
    ensure!(world.replicas(SHOOT, MCM).await? == 0, "{MCM} is down");
    world.annotate(SHOOT, KCM, ignore, Value::Null).await?;
    until_replicas(world, KCM, 0).await?;
    recover(world).await?;
    ensure!(world.replicas(SHOOT, KCM).await? == 2, "{KCM} is back");
    Ok(())
}

async fn an_optional_one_is_absent(world: &World) -> anyhow::Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), SHOOT, &deployments());
    api.delete(CA, &DeleteParams::default()).await?;
    lose(world).await?;
    let state = world.coordinator.get(SHOOT).await?;
    let absent = state
        .resources
        .iter()
        .filter(|r| r.step() == Step::Absent)
        .count();
    ensure!(absent == 1, "{state:?}");
    recover(world).await?;
    create_deployment(&world.client, SHOOT, CA, 1).await?;
    wait::until_true("it is seen", BOUND, || async {
        let state = world.coordinator.get(SHOOT).await?;
        Ok(state.resources.iter().all(|r| r.step() != Step::Absent))
    })
    .await
}

/// Conflicts: somebody else changes a Deployment all the time, and wants other replicas in the middle.
async fn somebody_else_writes_all_the_time(world: &World) -> anyhow::Result<()> {
    // Often enough to come in between, and not endlessly: who always comes in between is always right.
    let meddle = async {
        for count in 0..60 {
            world
                .annotate(SHOOT, MCM, "example.org/count", json!(count.to_string()))
                .await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let incident = async {
        hold(world, MCM);
        say(world, Outcome::LeasesExpired);
        until_replicas(world, MCM, 0).await?;
        world.patch(SHOOT, KCM, json!({"spec": {"replicas": 4}})).await?;
        let_go(world);
        settled(world, Direction::Down).await?;
        let state = world.state(SHOOT, &deployments(), KCM).await?;
        ensure!(state == (0, Some("4".to_owned()), true), "{KCM} is {state:?}");
        recover(world).await
    };
    tokio::try_join!(meddle, incident)?;
    for (name, wanted) in [(KCM, 4), (MCM, 3), (CA, 1)] {
        let (replicas, _, held) = world.state(SHOOT, &deployments(), name).await?;
        ensure!((replicas, held) == (wanted, false), "{name} has {replicas}");
    }
    world.patch(SHOOT, KCM, json!({"spec": {"replicas": 2}})).await?;
    settled(world, Direction::Up).await
}

/// Not one more write, until it is awake again.
async fn hibernated_in_the_middle(world: &World) -> anyhow::Result<()> {
    hold(world, MCM);
    say(world, Outcome::LeasesExpired);
    until_replicas(world, MCM, 0).await?;
    let hibernation = |enabled: bool| json!({"spec": {"hibernation": {"enabled": enabled}}});
    world.change_shoot(SHOOT, hibernation(true)).await?;
    wait::until_true("it is let go", BOUND, || async {
        Ok(world.coordinator.get(SHOOT).await?.direction() == Direction::Hold)
    })
    .await?;
    let_go(world);
    // Another shoot goes through all of it: whatever was to come has come by then.
    for (outcome, direction) in [
        (Outcome::LeasesExpired, Direction::Down),
        (Outcome::Healthy, Direction::Up),
    ] {
        world.probe.say([OTHER], outcome);
        world.coordinator.until_settled(OTHER, direction, BOUND).await?;
    }
    let state = world.state(SHOOT, &deployments(), KCM).await?;
    ensure!((state.0, state.2) == (2, false), "{KCM} is {state:?}");
    world.change_shoot(SHOOT, hibernation(false)).await?;
    settled(world, Direction::Down).await?;
    recover(world).await
}

/// Killed as soon as each of the Deployments is seen to be recorded, scaled down, or scaled up.
async fn killed_in_the_middle(world: &mut World) -> anyhow::Result<()> {
    let recorded = "record";
    let (down, up) = ("scale to 0", "scale up");
    for (outcome, direction, moments) in [
        (
            Outcome::LeasesExpired,
            Direction::Down,
            [(MCM, recorded), (MCM, down), (KCM, recorded), (KCM, down)],
        ),
        (
            Outcome::Healthy,
            Direction::Up,
            [(KCM, up), (MCM, up), (CA, up), (CA, up)],
        ),
    ] {
        world.workloads.forget_changes();
        say(world, outcome);
        for (name, moment) in moments {
            wait::until_true(&format!("{name}: {moment}"), BOUND, || async {
                let (replicas, _, held) = world.state(SHOOT, &deployments(), name).await?;
                Ok(match moment {
                    "record" => held,
                    "scale to 0" => replicas == 0,
                    _ => replicas > 0,
                })
            })
            .await?;
            world.crash().await?;
        }
        settled(world, direction).await?;
        for (name, count) in COUNTS {
            let (replicas, recorded, held) = world.state(SHOOT, &deployments(), name).await?;
            let wanted = if direction == Direction::Down { 0 } else { count };
            ensure!(replicas == wanted, "{name} has {replicas} instead of {wanted}");
            ensure!(held == (direction == Direction::Down), "{name}: held {held}");
            ensure!(
                direction == Direction::Up || recorded == Some(count.to_string()),
                "{name}: {recorded:?}"
            );
        }
        let order: &[(&str, &str)] = if direction == Direction::Down {
            &[(MCM, KCM), (CA, KCM)]
        } else {
            &[(KCM, MCM), (MCM, CA)]
        };
        for (first, then) in order {
            let of = |name: &str| {
                let count = COUNTS
                    .iter()
                    .find(|(n, _)| *n == name)
                    .map_or(0, |(_, count)| *count);
                if direction == Direction::Down { 0 } else { count }
            };
            let reached = world.workloads.first(first, of(first), true);
            let begun = world.workloads.first(then, of(then), false);
            ensure!(reached < begun && reached.is_some(), "{first} before {then}");
        }
    }
    Ok(())
}
