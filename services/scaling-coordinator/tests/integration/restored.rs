//! The seed's etcd is restored from a backup: resource versions are lower than before.

use watchdog_proto::scaling::v1::{Direction, ResourceState};
use watchdog_sandbox::store::Backup;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::Coordinator;
use crate::seed::{RECORDED, Seed};
use crate::{KCM, MCM, SHOOT, eventually};

/// Changes objects of another shoot, so that the backup is 200 revisions older.
fn time_passes(seed: &Seed) {
    for turn in 0..200 {
        seed.annotate("shoot--other", KCM, "example.com/turn", &turn.to_string());
    }
}

async fn start() -> (Seed, FakeProbe, Coordinator) {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for shoot in [SHOOT, "shoot--other"] {
        seed.shoot(shoot, 2, false).await;
    }
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    coordinator.recover(&probe, SHOOT).await;
    (seed, probe, coordinator)
}

/// Restores the backup, waits until the coordinator has ended because of it, and starts another one.
async fn restore(seed: &Seed, probe: &FakeProbe, coordinator: Coordinator, backup: &Backup) -> Coordinator {
    // An API server whose etcd is restored is restarted.
    seed.api.stop().await.unwrap();
    seed.api.restore(backup);
    eventually("its watches fail", || {
        let failures = coordinator.bound.readiness.lines().join("\n");
        failures.contains("deployment/")
    })
    .await;
    seed.api.resume().await.unwrap();
    let error = coordinator.until_failed().await;
    assert!(error.contains("etcd was restored"), "{error}");
    Coordinator::start(seed, &[probe]).await
}

#[tokio::test]
async fn in_the_middle_of_a_flow_down() {
    let (seed, probe, coordinator) = start().await;
    let up = seed.api.store().backup();
    time_passes(&seed);
    seed.freeze(SHOOT, MCM);
    probe.say([SHOOT], Outcome::LeasesExpired);
    coordinator.until_state(SHOOT, MCM, ResourceState::Waiting).await;
    let coordinator = restore(&seed, &probe, coordinator, &up).await;
    seed.thaw(SHOOT, MCM);
    coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(seed.all(SHOOT), [0, 0, -1]);
    assert_eq!(seed.annotation(SHOOT, KCM, RECORDED).as_deref(), Some("2"));
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [2, 1, -1]);
}

#[tokio::test]
async fn when_nothing_is_under_way() {
    let (seed, probe, coordinator) = start().await;
    coordinator.lose(&probe, SHOOT).await;
    let down = seed.api.store().backup();
    time_passes(&seed);
    coordinator.recover(&probe, SHOOT).await;
    let before = seed.writes(SHOOT).len();
    // Its watches go on from versions that do not exist yet and bring nothing.
    let coordinator = restore(&seed, &probe, coordinator, &down).await;
    coordinator.until_settled(SHOOT, Direction::Up).await;
    let writes = seed.writes(SHOOT).split_off(before);
    let expected = [(KCM, 2), (MCM, 1)]
        .iter()
        .flat_map(|(name, n)| [format!("scale {name} {n}"), format!("clean {name}")]);
    assert_eq!(writes, expected.collect::<Vec<_>>(), "once each");
}
