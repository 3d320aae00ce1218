//! The API server refuses, fails, hangs; others write; the process dies; the shoot goes away.

use std::time::Instant;

use serde_json::json;
use watchdog_proto::scaling::v1::{Direction, FlowState, GetSeedSummaryRequest, ResourceState, ShootScaling};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{Fault, FaultAction, Rule};
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};
use watchdog_test_support::in_process::rule;

use crate::coordinator::{Coordinator, one_shoot, resource};
use crate::seed::{CONFIG, PROTECTED, RECORDED, Seed, USER};
use crate::{CA, KCM, MCM, SHOOT, eventually};

fn path(name: &str) -> String {
    format!("/apis/apps/v1/namespaces/{SHOOT}/deployments/{name}")
}

/// A fault on the writes on a workload.
fn on_patch(action: FaultAction, name: &str) -> Fault {
    Fault::always(action).verb("patch").path(&path(name))
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_write_loses_nothing() {
    for (fate, turn) in [
        (FaultAction::Hang, Outcome::LeasesExpired),
        (FaultAction::ApplyAndHang, Outcome::LeasesExpired),
        (FaultAction::ApplyAndHang, Outcome::Healthy),
    ] {
        let (seed, probe, coordinator) = one_shoot(3, false).await;
        let fault = seed.api.inject(on_patch(fate, KCM));
        probe.say([SHOOT], Outcome::LeasesExpired);
        // What a request without an answer asked for is not recorded.
        eventually("a write on kcm is not answered", || {
            let attempts = seed.attempts(SHOOT);
            attempts
                .iter()
                .any(|write| write.contains(KCM) && write.ends_with(": 0"))
        })
        .await;
        coordinator.kill();
        seed.api.clear_fault(fault);
        probe.say([SHOOT], turn);
        let coordinator = Coordinator::start(&seed, &[&probe]).await;
        if turn == Outcome::LeasesExpired {
            coordinator.until_settled(SHOOT, Direction::Down).await;
            assert_eq!(seed.all(SHOOT), [0, 0, -1]);
            assert_eq!(seed.annotation(SHOOT, KCM, RECORDED).as_deref(), Some("3"));
            probe.say([SHOOT], Outcome::Healthy);
        }
        coordinator.until_settled(SHOOT, Direction::Up).await;
        assert_eq!(seed.all(SHOOT), [3, 1, -1]);
        assert_eq!(seed.annotation(SHOOT, KCM, PROTECTED), None);
    }
}

#[tokio::test]
async fn a_shoot_that_hibernates_or_goes_away_is_released_and_not_scaled_again() {
    let stop: [fn(&Seed); 4] = [
        |seed| seed.hibernate(SHOOT),
        |seed| seed.delete(&keys::CLUSTERS, "", SHOOT),
        |seed| {
            seed.change_shoot(SHOOT, |s| {
                s["metadata"] = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" })
            })
        },
        |seed| seed.change_shoot(SHOOT, |s| s["status"]["lastOperation"]["type"] = "Migrate".into()),
    ];
    for (gone, stop) in [false, true, false, false].into_iter().zip(stop) {
        let (seed, probe, coordinator) = one_shoot(1, false).await;
        seed.freeze(SHOOT, MCM);
        probe.say([SHOOT], Outcome::LeasesExpired);
        coordinator.until_state(SHOOT, MCM, ResourceState::Waiting).await;
        let mut expected = seed.writes(SHOOT);
        stop(&seed);
        if !gone {
            expected.push(format!("clean {MCM}"));
            eventually("it is released", || {
                seed.annotation(SHOOT, MCM, PROTECTED).is_none()
            })
            .await;
            eventually("an Event tells of it", || {
                seed.events(SHOOT, MCM)
                    .contains(&"MeltdownProtectionReleased".to_owned())
            })
            .await;
        }
        // The next level would start now.
        seed.thaw(SHOOT, MCM);
        eventually("mcm is unready", || seed.ready(SHOOT, MCM) == 0).await;
        crate::eventually_async("the shoot is let go", async || {
            match coordinator.get(SHOOT).await {
                None => true,
                Some(scaling) => scaling.direction() == Direction::Hold,
            }
        })
        .await;
        if !gone {
            let is_over = |shown: &ShootScaling| shown.incident.is_none() && shown.last_incident.is_some();
            let shown = coordinator.until(SHOOT, "the incident is over", is_over).await;
            let ended = shown.last_incident.unwrap();
            assert!(ended.verdict_to_restored.is_some(), "{ended:#?}");
            assert_eq!(ended.verdict_to_healthy, None, "it is released, not healthy");
        }
        // Another shoot goes through all of it: whatever would come has come by then.
        seed.shoot("shoot--other", 1, false).await;
        coordinator.lose(&probe, "shoot--other").await;
        assert_eq!(seed.writes(SHOOT), expected);
        assert_eq!(seed.all(SHOOT), [1, 0, -1], "no replica count is written");
    }
}

#[tokio::test]
async fn a_shoot_that_was_created_again_while_the_watches_were_broken_begins_with_nothing() {
    let (seed, probe, coordinator) = one_shoot(1, false).await;
    coordinator.lose(&probe, SHOOT).await;
    probe.take_back(SHOOT);
    seed.api.stop().await.unwrap();
    seed.delete(&keys::CLUSTERS, "", SHOOT);
    seed.cluster_only(SHOOT);
    seed.api.compact();
    seed.api.resume().await.unwrap();
    let begins = |shown: &ShootScaling| shown.incident.is_none() && shown.last_incident.is_none();
    coordinator
        .until(SHOOT, "it has no incident of the one before", begins)
        .await;
}

/// Shoots whose scaling may take a minute each.
async fn patient_shoots(shoots: &[String]) -> (Seed, FakeProbe, Coordinator) {
    let config = CONFIG.replace("timeout: 5s", "timeout: 60s");
    let (seed, probe) = (
        Seed::with_config(&config).await,
        FakeProbe::start().await.unwrap(),
    );
    for shoot in shoots {
        seed.shoot(shoot, 1, true).await;
    }
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    (seed, probe, coordinator)
}

/// No renewal of a Lease of 4 s would come in time. To measure with: `SLOW_MILLIS` is another delay of each request,
/// `SLOW_SHOOTS` another number of shoots.
#[tokio::test]
async fn a_slow_api_server_delays_and_does_not_prevent() {
    let setting = |name, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (millis, count) = (setting("SLOW_MILLIS", 2_000), setting("SLOW_SHOOTS", 1));
    let shoots: Vec<_> = (0..count).map(|number| format!("{SHOOT}-{number}")).collect();
    let (seed, probe, coordinator) = patient_shoots(&shoots).await;
    seed.api
        .inject(Fault::always(FaultAction::Delay { millis }).user(USER));
    for (outcome, direction) in [
        (Outcome::LeasesExpired, Direction::Down),
        (Outcome::Healthy, Direction::Up),
    ] {
        let begun = Instant::now();
        probe.say(&shoots, outcome);
        for shoot in &shoots {
            coordinator.until_settled(shoot, direction).await;
        }
        println!(
            "{count} shoots, {millis} ms for each request: {direction:?} after {:.1?}",
            begun.elapsed()
        );
    }
}

/// An admission webhook, for example: the Lease is renewed fast, and a Lease of 4 s ends before the write does.
#[tokio::test]
async fn writes_that_are_slow_alone_are_delayed_and_not_prevented() {
    let (seed, probe, coordinator) = patient_shoots(&[SHOOT.to_owned()]).await;
    let slow = FaultAction::Delay { millis: 4_000 };
    seed.api.inject(Fault::always(slow).user(USER).verb("patch"));
    coordinator.lose(&probe, SHOOT).await;
}

#[tokio::test]
async fn somebody_else_writes_in_between() {
    let (seed, probe, coordinator) = one_shoot(1, false).await;
    // The write is under way, late; somebody scales to 4 meanwhile.
    seed.api
        .inject(on_patch(FaultAction::Delay { millis: 1000 }, KCM).times(1));
    probe.say([SHOOT], Outcome::LeasesExpired);
    eventually("the write is under way", || seed.api.faults().is_empty()).await;
    seed.scale(SHOOT, KCM, 4);
    coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(
        seed.annotation(SHOOT, KCM, RECORDED).as_deref(),
        Some("4"),
        "the newest wish is recorded"
    );
    assert!(
        seed.attempts(SHOOT).contains(&format!("down {KCM} 1: 409")),
        "{:?}",
        seed.attempts(SHOOT)
    );
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [4, 1, -1]);
}

/// As an operator of its own, or an admission webhook, may do.
#[tokio::test]
async fn somebody_else_scales_it_up_again_each_time() {
    let (seed, probe, coordinator) = one_shoot(1, false).await;
    // It never has the time to stop.
    seed.freeze(SHOOT, MCM);
    let begun = Instant::now();
    probe.say([SHOOT], Outcome::LeasesExpired);
    let writes = || {
        let mut writes = seed.writes(SHOOT);
        writes.retain(|write| write.contains(MCM));
        writes
    };
    crate::eventually_async(
        "more writes than it needs, of which it names the cause",
        async || {
            if seed.replicas(SHOOT, MCM) == 0 {
                seed.scale(SHOOT, MCM, 1);
            }
            let shown = coordinator.get(SHOOT).await;
            let message = shown.map(|shown| resource(&shown, MCM).message.clone());
            message.is_some_and(|message| message.contains("managedFields names that client"))
                && writes().len() > 4
        },
    )
    .await;
    // One that needs no pause after the two that a flow may need, and then one each second.
    let (writes, seconds) = (writes(), begun.elapsed().as_secs_f64());
    assert!(writes.len() as f64 <= 3.0 + seconds, "{seconds} s: {writes:?}");
    seed.thaw(SHOOT, MCM);
    coordinator.until_settled(SHOOT, Direction::Down).await;
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [1, 1, -1]);
}

#[tokio::test]
async fn refusals_and_failures_are_tried_again() {
    let faults = [
        FaultAction::TooManyRequests { retry_after: 1 },
        FaultAction::InternalError,
        FaultAction::Cut,
        FaultAction::Garbage,
    ];
    for action in faults {
        let (seed, probe, coordinator) = one_shoot(2, false).await;
        seed.api.inject(on_patch(action.clone(), MCM).times(1));
        seed.api.inject(on_patch(action.clone(), KCM).times(1));
        coordinator.lose(&probe, SHOOT).await;
        assert_eq!(seed.all(SHOOT), [0, 0, -1], "{action:?}");
        assert_eq!(seed.annotation(SHOOT, KCM, RECORDED).as_deref(), Some("2"));
        coordinator.recover(&probe, SHOOT).await;
        assert_eq!(seed.all(SHOOT), [2, 1, -1], "{action:?}");
    }
}

#[tokio::test]
async fn a_write_that_was_applied_without_an_answer_is_not_doubled() {
    let (seed, probe, coordinator) = one_shoot(2, false).await;
    seed.api.inject(on_patch(FaultAction::ApplyAndHang, KCM).times(1));
    // Nobody else writes: a conflict would take the fault.
    seed.freeze(SHOOT, KCM);
    probe.say([SHOOT], Outcome::LeasesExpired);
    eventually("it is applied", || seed.replicas(SHOOT, KCM) == 0).await;
    seed.thaw(SHOOT, KCM);
    coordinator.until_settled(SHOOT, Direction::Down).await;
    let scaled = seed
        .writes(SHOOT)
        .iter()
        .filter(|write| write.starts_with(&format!("down {KCM}")))
        .count();
    assert_eq!(scaled, 1);
    eventually("an Event tells of it all the same", || {
        seed.events(SHOOT, KCM) == ["MeltdownProtectionStarted"]
    })
    .await;
    assert_eq!(seed.annotation(SHOOT, KCM, RECORDED).as_deref(), Some("2"));
}

#[tokio::test]
async fn a_missing_permission_fails_the_level_and_is_named() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, 1, false).await;
    seed.api.deny(rule(&["patch"], &["deployments"]));
    let coordinator = Coordinator::launch(&seed, "coordinator-0", &[&probe], &[]).await;
    let missing = format!("patch deployments.apps named {KCM}");
    eventually("readiness names the permission", || {
        coordinator.blockers().iter().any(|line| line.contains(&missing))
    })
    .await;
    probe.say([SHOOT], Outcome::LeasesExpired);
    let failed = coordinator
        .until(SHOOT, "the level has failed", |s| s.state() == FlowState::Failed)
        .await;
    let message = &resource(&failed, MCM).message;
    assert!(
        message.contains("patch deployments.apps in namespace shoot--project--one"),
        "{message}"
    );
    assert!(failed.retry_time.is_some());
    eventually("an Event tells of it", || {
        seed.events(SHOOT, MCM).contains(&"ScaleDownFailed".to_owned())
    })
    .await;
    // It is tried again while the direction stays the same.
    seed.api.allow_all();
    coordinator.until_settled(SHOOT, Direction::Down).await;
}

/// Forbids these verbs on machine-controller-manager.
fn deny_mcm(seed: &Seed, verbs: &[&str]) {
    seed.api.deny(Rule {
        names: vec![MCM.to_owned()],
        ..rule(verbs, &["deployments"])
    });
}

#[tokio::test]
async fn a_resource_whose_list_is_refused_from_the_start_is_read() {
    const OTHER: &str = "shoot--other";
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for shoot in [SHOOT, OTHER] {
        seed.shoot(shoot, 2, false).await;
    }
    deny_mcm(&seed, &["list", "watch"]);
    let coordinator = Coordinator::launch(&seed, "coordinator-0", &[&probe], &[]).await;
    probe.say([OTHER], Outcome::Healthy);
    coordinator.lose(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [0, 0, -1]);
    coordinator.kill();
    // The next leader has seen nothing of it. Once kube-controller-manager is restored, nothing else shows that
    // machine-controller-manager is held down.
    let coordinator = Coordinator::launch(&seed, "coordinator-1", &[&probe], &[]).await;
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [2, 1, -1]);
    assert_eq!(seed.annotation(SHOOT, MCM, PROTECTED), None);
    coordinator.until_state(OTHER, MCM, ResourceState::Waiting).await;
    let path = format!("/apis/apps/v1/namespaces/{OTHER}/deployments/{MCM}");
    let reads = seed.api.audit().into_iter().filter(|entry| entry.path == path);
    assert_eq!(reads.count(), 0, "a healthy shoot waits for the list");
    seed.api.allow_all();
    coordinator.until_settled(OTHER, Direction::Up).await;
}

/// It was absent in the first loss. Without a list nothing shows that it came.
#[tokio::test]
async fn a_resource_whose_list_is_refused_is_read_anew_in_each_loss() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, 2, false).await;
    seed.api.deny(Rule {
        names: vec![CA.to_owned()],
        ..rule(&["list", "watch"], &["deployments"])
    });
    let coordinator = Coordinator::launch(&seed, "coordinator-0", &[&probe], &[]).await;
    coordinator.lose(&probe, SHOOT).await;
    coordinator.recover(&probe, SHOOT).await;
    seed.deployment(SHOOT, CA, 1);
    coordinator.lose(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [0, 0, 0]);
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [2, 1, 1]);
}

#[tokio::test]
async fn a_resource_that_can_neither_be_listed_nor_read_fails_its_level() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, 1, false).await;
    deny_mcm(&seed, &["list", "watch", "get"]);
    let coordinator = Coordinator::launch(&seed, "coordinator-0", &[&probe], &[]).await;
    probe.say([SHOOT], Outcome::LeasesExpired);
    let failed = coordinator
        .until(SHOOT, "the level has failed", |s| s.state() == FlowState::Failed)
        .await;
    let message = &resource(&failed, MCM).message;
    assert!(message.contains("cannot get resource"), "{message}");
    eventually("an Event tells of it", || {
        seed.events(SHOOT, MCM).contains(&"ScaleDownFailed".to_owned())
    })
    .await;
    assert_eq!(seed.all(SHOOT), [1, 1, -1], "no level is passed over");
    seed.api.allow_all();
    coordinator.until_settled(SHOOT, Direction::Down).await;
}

#[tokio::test]
async fn a_malformed_cluster_concerns_only_its_shoot() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, 1, false).await;
    seed.shoot("shoot--broken", 1, false).await;
    seed.change_shoot("shoot--broken", |shoot| shoot["spec"] = "nonsense".into());
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    for shoot in [SHOOT, "shoot--broken"] {
        probe.say([shoot], Outcome::LeasesExpired);
    }
    coordinator.until_settled(SHOOT, Direction::Down).await;
    coordinator.until_holding("shoot--broken", "cannot be used").await;
    assert_eq!(seed.writes("shoot--broken"), [""; 0]);
}

#[tokio::test]
async fn an_api_server_that_goes_away_and_comes_back() {
    let (seed, probe, coordinator) = one_shoot(2, false).await;
    coordinator.until_holding(SHOOT, "reports this shoot").await;
    seed.api.stop().await.unwrap();
    probe.say([SHOOT], Outcome::LeasesExpired);
    // Without the API server the lease of the replica runs out: it must not act, and says so everywhere.
    coordinator.until_holding(SHOOT, "must not act").await;
    let overdue = "leader-election: the Lease garden/scaling-coordinator-leader was not renewed in time";
    let blockers = coordinator.blockers();
    assert!(
        blockers.iter().any(|line| line.starts_with(overdue)),
        "{blockers:?}"
    );
    let summary = coordinator.client.clone();
    let summary = { summary }
        .get_seed_summary(GetSeedSummaryRequest::default())
        .await;
    let summary = summary.unwrap().into_inner();
    assert_eq!(summary.summary.unwrap().leader, "");
    assert!(!summary.completeness.unwrap().complete);
    let metrics = coordinator.metrics().await;
    assert!(metrics.contains("watchdog_ready 0"), "{metrics}");
    seed.api.resume().await.unwrap();
    coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(seed.all(SHOOT), [0, 0, -1]);
    // The permissions may be checked again before long.
    eventually("it is ready", || coordinator.blockers().is_empty()).await;
}
