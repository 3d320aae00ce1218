//! The seed's etcd is restored from a backup: resource versions are lower than before.

use watchdog_proto::scaling::v1::{Direction, Step};
use watchdog_sandbox::Rule;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::Coordinator;
use crate::seed::{PROTECTED, RECORDED, Seed, USER};
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

#[tokio::test]
async fn in_the_middle_of_a_flow_down() {
    let (seed, probe, coordinator) = start().await;
    let up = seed.api.store().backup();
    time_passes(&seed);
    seed.freeze(SHOOT, MCM);
    probe.say([SHOOT], Outcome::LeasesExpired);
    coordinator.until_step(SHOOT, MCM, Step::Waiting).await;
    seed.api.restore(&up);
    seed.thaw(SHOOT, MCM);
    coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(seed.all(SHOOT), [0, 0, -1]);
    assert_eq!(seed.annotation(SHOOT, KCM, RECORDED).as_deref(), Some("2"));
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [2, 1, -1]);
}

#[tokio::test]
async fn in_the_middle_of_a_flow_up() {
    let (seed, probe, coordinator) = start().await;
    coordinator.lose(&probe, SHOOT).await;
    let down = seed.api.store().backup();
    time_passes(&seed);
    seed.freeze(SHOOT, KCM);
    probe.say([SHOOT], Outcome::Healthy);
    coordinator.until_step(SHOOT, KCM, Step::Waiting).await;
    seed.api.restore(&down);
    assert_eq!(seed.all(SHOOT), [0, 0, -1]);
    seed.thaw(SHOOT, KCM);
    coordinator.until_settled(SHOOT, Direction::Up).await;
    assert_eq!(seed.all(SHOOT), [2, 1, -1]);
    for name in [KCM, MCM] {
        assert_eq!(seed.annotation(SHOOT, name, PROTECTED), None);
    }
}

#[tokio::test]
async fn a_level_that_etcd_has_forgotten_comes_first() {
    let (seed, probe, coordinator) = start().await;
    let up = seed.api.store().backup();
    time_passes(&seed);
    // The second level waits, so that etcd can be restored between the two.
    seed.api.deny(Rule {
        user: Some(USER.to_owned()),
        verbs: vec!["patch".to_owned()],
        names: vec![KCM.to_owned()],
        ..Rule::default()
    });
    probe.say([SHOOT], Outcome::LeasesExpired);
    eventually("the write of the second level is refused", || {
        seed.attempts(SHOOT).contains(&format!("down {KCM} 2: 403"))
    })
    .await;
    let requests = seed.api.audit().last().map_or(0, |entry| entry.id);
    let before = seed.writes(SHOOT).len();
    seed.api.restore(&up);
    // A real API server is away for seconds; a write within the milliseconds before the watches break is as old as they
    // are.
    eventually("the resources are listed again", || {
        let mut entries = seed.api.audit_since(requests).into_iter();
        entries.any(|e| e.user == USER && e.path.ends_with("/deployments") && e.query.contains("limit=500"))
    })
    .await;
    seed.api.allow_all();
    coordinator.until_settled(SHOOT, Direction::Down).await;
    let mut writes = seed.writes(SHOOT).split_off(before);
    writes.retain(|write| !write.ends_with(": 403"));
    assert_eq!(writes, [format!("down {MCM} 1"), format!("down {KCM} 2")]);
}

#[tokio::test]
async fn when_nothing_is_under_way() {
    let (seed, probe, coordinator) = start().await;
    coordinator.lose(&probe, SHOOT).await;
    let down = seed.api.store().backup();
    time_passes(&seed);
    coordinator.recover(&probe, SHOOT).await;
    let before = seed.writes(SHOOT).len();
    seed.api.restore(&down);
    // Its watches go on from versions that do not exist yet and bring nothing.
    eventually("the shoot is restored again", || {
        seed.all(SHOOT) == [2, 1, -1] && seed.annotation(SHOOT, MCM, PROTECTED).is_none()
    })
    .await;
    coordinator.until_settled(SHOOT, Direction::Up).await;
    let writes = seed.writes(SHOOT).split_off(before);
    let expected = [(KCM, 2), (MCM, 1)]
        .iter()
        .flat_map(|(name, n)| [format!("scale {name} {n}"), format!("clean {name}")]);
    assert_eq!(writes, expected.collect::<Vec<_>>(), "once each");
}
