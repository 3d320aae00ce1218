//! The seed's etcd is restored from a backup: resource versions are lower than before.

use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::fake_probe::FakeProbe;

use crate::coordinator::Coordinator;
use crate::seed::Seed;
use crate::{KCM, MCM, SHOOT, eventually};

/// In the middle of a flow it is the same for the process that starts: it reads everything.
#[tokio::test]
async fn what_a_restored_etcd_holds_down_is_restored_by_another_process() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for shoot in [SHOOT, "shoot--other"] {
        seed.shoot(shoot, 2, false).await;
    }
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    coordinator.lose(&probe, SHOOT).await;
    let down = seed.api.store().backup();
    // The backup is 200 revisions older.
    for turn in 0..200 {
        seed.annotate("shoot--other", KCM, "example.com/turn", &turn.to_string());
    }
    coordinator.recover(&probe, SHOOT).await;
    let before = seed.writes(SHOOT).len();

    // An API server whose etcd is restored is restarted.
    seed.api.stop().await.unwrap();
    seed.api.restore(&down);
    eventually("its watches fail", || {
        let failures = coordinator.bound.readiness.lines().join("\n");
        failures.contains("deployment/")
    })
    .await;
    seed.api.resume().await.unwrap();
    // Its watches go on from versions that do not exist yet and bring nothing.
    let error = coordinator.until_failed().await;
    assert!(error.contains("etcd was restored"), "{error}");

    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    coordinator.until_settled(SHOOT, Direction::Up).await;
    let writes = seed.writes(SHOOT).split_off(before);
    let expected = [(KCM, 2), (MCM, 1)]
        .iter()
        .flat_map(|(name, n)| [format!("scale {name} {n}"), format!("clean {name}")]);
    assert_eq!(writes, expected.collect::<Vec<_>>(), "once each");
}
