//! Resources that leave the configuration, or are configured in another way, while something is done with them.

use watchdog_proto::scaling::v1::{Direction, FlowState, ShootScaling};
use watchdog_sandbox::Rule;
use watchdog_sandbox::resource::keys;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::{Coordinator, one_shoot, resource};
use crate::seed::{CONFIG, PROTECTED, Seed};
use crate::{CA, KCM, SHOOT};

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

/// As with the chart, which grants no permission on what it does not configure.
#[tokio::test]
async fn what_can_no_longer_be_restored_holds_up_nothing_but_the_levels_above_it() {
    const OTHER: &str = "shoot--other";
    let (seed, probe, coordinator) = one_shoot(2, false).await;
    seed.shoot(OTHER, 2, false).await;
    for shoot in [SHOOT, OTHER] {
        coordinator.lose(&probe, shoot).await;
    }
    probe.say([SHOOT, OTHER], Outcome::Inconclusive);
    coordinator.until_holding(OTHER, "INCONCLUSIVE").await;
    // An operator restores the first level of one of them.
    seed.modify(&keys::DEPLOYMENTS, OTHER, KCM, |object| {
        object["metadata"]["annotations"] = serde_json::json!({});
        object["spec"]["replicas"] = 2.into();
    });
    coordinator
        .until(OTHER, "it is seen", |s| {
            resource(s, KCM).ready_replicas == Some(2)
        })
        .await;
    seed.api.deny(Rule {
        names: vec![KCM.to_owned()],
        ..Rule::default()
    });
    seed.configure(&without(KCM));
    seed.api.drop_watches();
    crate::eventually_async("the watch is refused, and the replica is ready", async || {
        let (status, text) = coordinator.admin_get("/readyz").await.unwrap();
        status == 200 && text.contains("the last try of the removed resource failed")
    })
    .await;
    probe.say([SHOOT, OTHER], Outcome::Healthy);
    coordinator.until_settled(OTHER, Direction::Up).await;
    assert_eq!(seed.all(OTHER), [2, 1, -1]);
    coordinator
        .until(SHOOT, "the level has failed", |s| s.state() == FlowState::Failed)
        .await;
    assert_eq!(
        seed.all(SHOOT),
        [0, 0, -1],
        "the second level waits for the first"
    );
    assert_eq!(coordinator.blockers(), [""; 0]);
}

/// A replica stays only as long as the configuration says, and a count that was recorded before it changed stays.
#[tokio::test]
async fn another_scale_down_count_loses_no_replicas() {
    let to = |replicas: u8| {
        let of_kcm = "scaleDown: {level: 1, timeout: 5s";
        CONFIG.replace(of_kcm, &format!("{of_kcm}, replicas: {replicas}"))
    };
    for down_to in [0, 2] {
        let (seed, probe) = (Seed::with_config(&to(1)).await, FakeProbe::start().await.unwrap());
        seed.shoot(SHOOT, 3, false).await;
        let coordinator = Coordinator::start(&seed, &[&probe]).await;
        coordinator.lose(&probe, SHOOT).await;
        assert_eq!(seed.all(SHOOT), [1, 0, -1]);
        seed.configure(&to(down_to));
        let target = i32::from(down_to.min(1));
        coordinator
            .until(SHOOT, "the change is known", |s| {
                let kcm = resource(s, KCM);
                kcm.spec_replicas == Some(target) && kcm.target_replicas == Some(target)
            })
            .await;
        coordinator.recover(&probe, SHOOT).await;
        assert_eq!(seed.all(SHOOT), [3, 1, -1], "{down_to}");
        assert_eq!(seed.annotation(SHOOT, KCM, PROTECTED), None);
    }
}
