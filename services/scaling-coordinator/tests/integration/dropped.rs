//! Resources that leave the configuration while something is done with them.

use watchdog_proto::scaling::v1::{Direction, ShootScaling};
use watchdog_test_support::fake_probe::Outcome;

use crate::coordinator::{one_shoot, resource};
use crate::seed::{CONFIG, PROTECTED};
use crate::{CA, KCM, MCM, SHOOT, eventually};

/// The configuration without one of its resources.
fn without(name: &str) -> String {
    let (head, resources) = CONFIG.split_at(CONFIG.find("- ref").unwrap());
    let kept = resources
        .split("- ref:")
        .filter(|text| !text.trim().is_empty() && !text.contains(name))
        .map(|text| format!("- ref:{text}"))
        .collect::<String>();
    format!("{head}{kept}")
}

fn knows(scaling: &ShootScaling, name: &str) -> bool {
    let mut names = scaling.resources.iter().filter_map(|r| r.resource.as_ref());
    names.any(|reference| reference.name == name)
}

fn is_dropped(scaling: &ShootScaling, name: &str) -> bool {
    knows(scaling, name) && resource(scaling, name).message.contains("no longer configured")
}

#[tokio::test]
async fn what_is_held_down_when_it_leaves_the_configuration_is_restored() {
    let (seed, probe, coordinator) = one_shoot(2, true).await;
    coordinator.lose(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [0, 0, 0]);
    seed.configure(&without(CA));
    let dropped = coordinator
        .until(SHOOT, "the autoscaler is not configured", |s| is_dropped(s, CA))
        .await;
    assert!(dropped.meltdown_protection_active);
    assert!(
        coordinator
            .metrics()
            .await
            .contains("watchdog_scaling_held_down_resources 3"),
        "it is still counted, so that the alert still sees it"
    );
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [2, 1, 1]);
    assert_eq!(seed.annotation(SHOOT, CA, PROTECTED), None);
    coordinator.until(SHOOT, "it is let go", |s| !knows(s, CA)).await;
    // From now on it is somebody else's.
    coordinator.lose(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [0, 0, 1]);
}

#[tokio::test]
async fn what_leaves_the_configuration_is_not_scaled_down_any_more() {
    let (seed, probe, coordinator) = one_shoot(2, false).await;
    // The level before waits.
    seed.freeze(SHOOT, MCM);
    probe.say([SHOOT], Outcome::LeasesExpired);
    eventually("level 0 is worked on", || seed.replicas(SHOOT, MCM) == 0).await;
    seed.configure(&without(KCM));
    coordinator
        .until(SHOOT, "kcm is not configured", |s| is_dropped(s, KCM))
        .await;
    seed.thaw(SHOOT, MCM);
    coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(seed.all(SHOOT), [2, 0, -1]);
    assert_eq!(seed.annotation(SHOOT, KCM, PROTECTED), None);
}
