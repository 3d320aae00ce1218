//! Watches that are open and silent while requests work.

use serde_json::json;
use watchdog_proto::scaling::v1::Direction;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::{Coordinator, one_shoot, resource};
use crate::seed::Seed;
use crate::{KCM, MCM, SHOOT, eventually};

#[tokio::test]
async fn a_flow_goes_on_without_its_watches() {
    let (seed, probe, coordinator) = one_shoot(2, true).await;
    for (outcome, direction, counts) in [
        (Outcome::LeasesExpired, Direction::Down, [0, 0, 0]),
        (Outcome::Healthy, Direction::Up, [2, 1, 1]),
    ] {
        seed.api.silence_watches();
        probe.say([SHOOT], outcome);
        coordinator.until_settled(SHOOT, direction).await;
        assert_eq!(seed.all(SHOOT), counts);
    }
    for name in [KCM, MCM] {
        let events = seed.events(SHOOT, name);
        let failed = events.iter().any(|event| event.ends_with("Failed"));
        assert!(!failed, "the resource is not to blame: {events:?}");
    }
}

#[tokio::test]
async fn a_cluster_that_changed_unseen_is_taken_in_before_the_first_write() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for shoot in [SHOOT, "shoot--hibernated"] {
        seed.shoot(shoot, 1, false).await;
    }
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    seed.api.silence_watches();
    seed.change_shoot(SHOOT, |shoot| shoot["metadata"] = json!({ "generation": 2 }));
    seed.hibernate("shoot--hibernated");
    for shoot in [SHOOT, "shoot--hibernated"] {
        probe.say([shoot], Outcome::LeasesExpired);
    }
    let down = coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(resource(&down, MCM).attempts, 0, "no write had to be tried again");
    coordinator.until_holding("shoot--hibernated", "hibernat").await;
    assert_eq!(seed.writes("shoot--hibernated"), [""; 0]);
}

#[tokio::test]
async fn a_silent_watch_is_opened_again() {
    let (seed, probe, coordinator) = one_shoot(1, false).await;
    coordinator.recover(&probe, SHOOT).await;
    seed.api.silence_watches();
    seed.scale(SHOOT, KCM, 4);
    coordinator
        .until(SHOOT, "the new count is seen", |s| {
            resource(s, KCM).spec_replicas == Some(4)
        })
        .await;
    // The same must hold for the watch of the Clusters.
    seed.api.silence_watches();
    seed.hibernate(SHOOT);
    coordinator.until_holding(SHOOT, "hibernat").await;
    eventually("no write was made for all that", || seed.writes(SHOOT).is_empty()).await;
}
