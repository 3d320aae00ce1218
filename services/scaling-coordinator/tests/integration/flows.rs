//! Down and up, in order, with everything that a configuration can say.

use watchdog_proto::scaling::v1::{Direction, FlowState, ResourceState};
use watchdog_sandbox::resource::keys;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::bulk::requests;
use crate::coordinator::{Coordinator, one_shoot, resource, state_of};
use crate::seed::{IGNORE, PROTECTED, RECORDED, Seed};
use crate::{CA, KCM, MCM, SHOOT, eventually};

#[tokio::test]
async fn down_in_order_and_up_in_order_with_recorded_counts() {
    let (seed, probe, coordinator) = one_shoot(2, true).await;
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.writes(SHOOT), [""; 0], "a healthy shoot is left alone");

    let down = coordinator.lose(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [0, 0, 0]);
    assert!(down.meltdown_protection_active);
    assert_eq!(resource(&down, KCM).recorded_replicas, Some(2));
    assert!(down.reason.contains("LEASES_EXPIRED"), "{}", down.reason);
    let writes = seed.writes(SHOOT);
    let at = |write: &str| {
        writes
            .iter()
            .position(|w| w == write)
            .unwrap_or_else(|| panic!("no {write} in {writes:?}"))
    };
    assert_eq!(writes.len(), 3, "{writes:?}");
    assert!(at(&format!("down {MCM} 1")) < 2 && at(&format!("down {CA} 1")) < 2);
    assert_eq!(
        at(&format!("down {KCM} 2")),
        2,
        "after all of the level before: {writes:?}"
    );
    for (name, count) in [(KCM, "2"), (MCM, "1"), (CA, "1")] {
        assert_eq!(seed.annotation(SHOOT, name, RECORDED).as_deref(), Some(count));
        assert_eq!(seed.annotation(SHOOT, name, PROTECTED).as_deref(), Some(""));
    }

    let up = coordinator.recover(&probe, SHOOT).await;
    assert!(!up.meltdown_protection_active);
    assert_eq!(seed.all(SHOOT), [2, 1, 1]);
    let restored: Vec<_> = [(KCM, 2), (MCM, 1), (CA, 1)]
        .iter()
        .flat_map(|(name, n)| [format!("scale {name} {n}"), format!("clean {name}")])
        .collect();
    assert_eq!(seed.writes(SHOOT)[3..], restored);
    eventually("Events tell of it", || {
        seed.events(SHOOT, KCM) == ["MeltdownProtectionStarted", "MeltdownProtectionEnded"]
    })
    .await;
    eventually("an Event tells that the incident has ended", || {
        seed.events(SHOOT, SHOOT) == ["IncidentEnded"]
    })
    .await;
    let (running, ended) = (down.incident.unwrap(), up.last_incident.unwrap());
    assert_eq!(running.verdict_to_restored, None, "{running:#?}");
    assert_eq!(up.incident, None);
    assert_eq!(running.start_time, ended.start_time);
    assert_eq!((ended.scaled_down, ended.scaled_up), (3, 3), "{ended:#?}");
    assert!(
        ended.reason.contains("LEASES_EXPIRED") && !ended.in_mode_observe,
        "{ended:#?}"
    );
    assert!(ended.verdict_to_restored.is_some(), "{ended:#?}");
    let order = |direction| {
        let times = ended
            .scale_times
            .iter()
            .filter(move |times| times.direction() == direction);
        times
            .map(|times| times.resource.clone().unwrap().name)
            .collect::<Vec<_>>()
    };
    assert_eq!(order(Direction::Down)[2], KCM, "{ended:#?}");
    assert_eq!(order(Direction::Up), [KCM, MCM, CA], "{ended:#?}");
    let metrics = coordinator.metrics().await;
    for line in [
        "watchdog_scaling_shoots{direction=\"up\",state=\"settled\",held=\"no\"} 1",
        "watchdog_scaling_held_down_resources 0",
        &format!(
            "watchdog_scaling_operations_total{{shoot=\"{SHOOT}\",direction=\"down\",result=\"applied\"}} 3"
        ),
        "watchdog_scaling_lease_probe_replicas{state=\"synced\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    coordinator.stop().await;
}

/// A scale-down of three dependants in two levels, and a restore in three. A conflict with the controllers, which
/// report on each write, costs another write and a read.
#[tokio::test]
async fn few_requests_scale_down_and_few_restore() {
    let (seed, probe, coordinator) = one_shoot(2, true).await;
    coordinator.recover(&probe, SHOOT).await;
    for (outcome, direction, most) in [
        (Outcome::LeasesExpired, Direction::Down, 7),
        (Outcome::Healthy, Direction::Up, 10),
    ] {
        let begun = seed.api.audit().last().map_or(0, |entry| entry.id);
        probe.say([SHOOT], outcome);
        coordinator.until_settled(SHOOT, direction).await;
        let requests = requests(&seed, begun);
        let conflicts = requests.iter().filter(|request| request.code == 409).count();
        let paths: Vec<_> = requests
            .iter()
            .map(|r| format!("{} {}", r.verb, r.path))
            .collect();
        assert!(
            requests.len() <= most + 2 * conflicts,
            "{direction:?}: {paths:#?}"
        );
    }
}

#[tokio::test]
async fn a_text_that_is_neither_true_nor_false_is_named() {
    const REASON: &str = "IgnoreScalingInvalid";
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, 2, true).await;
    seed.annotate(SHOOT, KCM, IGNORE, "yes");
    seed.annotate(SHOOT, MCM, IGNORE, "False");
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    // Before any loss, because in one it is too late to correct it.
    let warned = || seed.events(SHOOT, KCM).iter().any(|reason| reason == REASON);
    eventually("the operator is warned", warned).await;
    let named = |message: &str| message.contains("its annotation ignore-scaling is \"yes\"");
    let held = coordinator
        .until(SHOOT, "it is named", |s| named(&resource(s, KCM).message))
        .await;
    assert!(
        !resource(&held, MCM).message.contains("ignore-scaling"),
        "{held:#?}"
    );
    let down = coordinator.lose(&probe, SHOOT).await;
    assert!(named(&resource(&down, KCM).message), "{down:#?}");
    assert_eq!(seed.all(SHOOT), [0, 0, 0]);
    coordinator.recover(&probe, SHOOT).await;
    // Only what is new is warned of.
    seed.annotate(SHOOT, KCM, IGNORE, "on");
    let warnings = || {
        let events = seed.events(SHOOT, KCM).into_iter();
        events.filter(|reason| reason == REASON).count()
    };
    eventually("the other text is warned of", || warnings() == 2).await;
    assert!(!seed.events(SHOOT, MCM).iter().any(|reason| reason == REASON));
}

#[tokio::test]
async fn what_is_absent_and_not_optional_is_at_zero_on_the_way_down_and_fails_on_the_way_up() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, 1, true).await;
    seed.delete(&keys::DEPLOYMENTS, SHOOT, MCM);
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    let down = coordinator.lose(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [0, -1, 0], "it keeps nothing else up");
    assert_eq!(state_of(&down, MCM), ResourceState::Absent);
    let message = &resource(&down, MCM).message;
    assert!(message.contains("not optional"), "{message}");
    eventually("an Event tells of it, once", || {
        seed.events(SHOOT, MCM) == ["DependantMissing"]
    })
    .await;
    probe.say([SHOOT], Outcome::Healthy);
    let failed = coordinator
        .until(SHOOT, "its level has failed", |s| s.state() == FlowState::Failed)
        .await;
    assert_eq!(
        (failed.level, state_of(&failed, MCM)),
        (Some(1), ResourceState::Failed)
    );
    assert_eq!(seed.all(SHOOT), [1, -1, 0], "the next level does not start");
    eventually("an Event tells of it", || {
        seed.events(SHOOT, MCM).contains(&"ScaleUpFailed".to_owned())
    })
    .await;
    let metrics = coordinator.metrics().await;
    assert!(metrics.contains("watchdog_scaling_failed_levels 1"));
    seed.deployment(SHOOT, MCM, 1);
    coordinator.until_settled(SHOOT, Direction::Up).await;
    assert_eq!(seed.all(SHOOT), [1, 1, 1]);
}

#[tokio::test]
async fn an_unreadable_count_falls_back_and_says_so() {
    let (seed, probe, coordinator) = one_shoot(3, false).await;
    coordinator.lose(&probe, SHOOT).await;
    seed.annotate(SHOOT, KCM, RECORDED, "three");
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.replicas(SHOOT, KCM), 1);
    eventually("a Warning tells of it", || {
        seed.events(SHOOT, KCM)
            .contains(&"RecordedReplicasUnreadable".to_owned())
    })
    .await;
}
