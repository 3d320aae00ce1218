//! The real coordinator process when something around it is not as it should be: a source that has gone silent, and
//! a second coordinator that acts on the same shoots by mistake.

use std::time::Duration;

use watchdog_proto::scaling::v1::Direction;
use watchdog_sandbox::ShootSpec;
use watchdog_sandbox::resource::keys;
use watchdog_test_support::coordinator::{Coordinator, FakeProbe, Outcome};
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::real::create_namespace;
use watchdog_test_support::sandboxed::World;
use watchdog_test_support::wait::{self, BOUND};

const COUNTS: [(&str, u32); 3] = [(KCM, 2), (MCM, 3), (CA, 1)];

async fn world(name: &str) -> anyhow::Result<(World, FakeProbe, String)> {
    let prober = fixtures::prober("probeInterval: 5s", "100ms");
    let shoots = vec![ShootSpec::new("one", 1)];
    let world = World::start_with(name, shoots, &prober, &fixtures::weeder("1m")).await?;
    let shoot = world.shoot("one")?;
    for (name, replicas) in COUNTS {
        shoot.scale(name, replicas)?;
    }
    let namespace = shoot.namespace().to_owned();
    let probe = FakeProbe::start().await?;
    probe.say([namespace.as_str()], Outcome::Healthy);
    Ok((world, probe, namespace))
}

async fn start(world: &World, probe: &FakeProbe, namespace: &str) -> anyhow::Result<Coordinator> {
    let (config, kubeconfig) = (world.setup.prober_file(), world.kubeconfig());
    Coordinator::start_in(namespace, &world.scratch, config, &kubeconfig, probe).await
}

fn replicas(world: &World, shoot: &str) -> Vec<(i64, bool)> {
    let store = world.sandbox.seed().store();
    let count = |(name, _): &(&str, u32)| {
        let object = store.find(&keys::DEPLOYMENTS, shoot, name).unwrap();
        let held = object.annotation("dependency-watchdog.gardener.cloud/meltdown-protection-active");
        (object.number("/spec/replicas"), held.is_some())
    };
    COUNTS.iter().map(count).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_to_its_source_holds() {
    let (world, probe, shoot) = world("half-open").await.unwrap();
    let coordinator = start(&world, &probe, "garden").await.unwrap();
    coordinator
        .until_settled(&shoot, Direction::Up, BOUND)
        .await
        .unwrap();
    probe.set_silent(true);
    // The verdict itself would be valid for minutes; what counts is that nobody can contradict it any more.
    let held = wait::until("it holds", BOUND, || async {
        let state = coordinator.get(&shoot).await?;
        Ok((state.direction() == Direction::Hold).then_some(state))
    })
    .await
    .unwrap();
    assert!(
        held.reason.contains("No stream from lease-probe"),
        "{}",
        held.reason
    );
    probe.say([shoot.as_str()], Outcome::LeasesExpired);
    wait::holds("nothing is written", Duration::from_secs(1), || async {
        Ok(replicas(&world, &shoot) == [(2, false), (3, false), (1, false)])
    })
    .await
    .unwrap();
    probe.set_silent(false);
    coordinator
        .until_settled(&shoot, Direction::Down, BOUND)
        .await
        .unwrap();
    assert_eq!(replicas(&world, &shoot), [(0, true), (0, true), (0, true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_know_nothing_of_each_other_lose_and_double_nothing() {
    let (world, probe, shoot) = world("two").await.unwrap();
    create_namespace(&world.seed, "garden-by-mistake").await.unwrap();
    let one = start(&world, &probe, "garden").await.unwrap();
    let two = start(&world, &probe, "garden-by-mistake").await.unwrap();
    for _ in 0..5 {
        for (outcome, direction) in [
            (Outcome::LeasesExpired, Direction::Down),
            (Outcome::Healthy, Direction::Up),
        ] {
            probe.say([shoot.as_str()], outcome);
            for coordinator in [&one, &two] {
                coordinator.until_settled(&shoot, direction, BOUND).await.unwrap();
            }
            let expected = match direction {
                Direction::Down => [(0, true), (0, true), (0, true)],
                _ => [(2, false), (3, false), (1, false)],
            };
            assert_eq!(replicas(&world, &shoot), expected);
        }
    }
    let audit = world.sandbox.seed().audit();
    let writes = audit
        .iter()
        .filter(|entry| entry.user == "watchdog" && entry.path.contains("/deployments/"));
    let (done, refused): (Vec<_>, Vec<_>) = writes
        .filter(|entry| entry.is_write())
        .partition(|entry| entry.code < 300);
    eprintln!("{} writes, {} conflicts", done.len(), refused.len());
    assert!(refused.iter().all(|entry| entry.code == 409));
    assert!(!refused.is_empty(), "they never met");
    assert_eq!(
        done.len(),
        5 * (3 + 6),
        "one write on each of three down and two up, five times: {done:#?}"
    );
}
