//! Mode observe, and the mode that a Shoot asks for.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use watchdog_api::names::{FAILURE_FRACTION_ANNOTATION, MODE_ANNOTATION};
use watchdog_api::unix_time::{UnixTime, micros};
use watchdog_proto::scaling::v1::{
    Direction, FlowState, HoldReason, Incident, ListScalingRequest, Mode, ResourceState, ShootScaling,
};
use watchdog_sandbox::resource::keys;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};
use watchdog_watch_stream::wire;

use crate::coordinator::{Coordinator, one_shoot_with, resource, state_of, until_written};
use crate::seed::{PROTECTED, Seed};
use crate::{CA, KCM, MCM, SHOOT, eventually};

const OBSERVE: &[&str] = &["--mode=observe"];

/// A seed with one healthy shoot, and a coordinator with these options.
async fn start(options: &[&str]) -> (Seed, FakeProbe, Coordinator) {
    let (seed, probe, coordinator) = one_shoot_with(2, true, options).await;
    coordinator.recover(&probe, SHOOT).await;
    (seed, probe, coordinator)
}

/// Waits until everything that is left to do is kept back.
async fn until_kept_back(coordinator: &Coordinator, direction: Direction) -> ShootScaling {
    let what = format!("{direction:?} is kept back");
    let wanted = |s: &ShootScaling| (s.direction(), s.state()) == (direction, FlowState::KeptBack);
    coordinator.until(SHOOT, &what, wanted).await
}

/// Reports a loss and waits until the writes are kept back.
async fn lose_observed(coordinator: &Coordinator, probe: &FakeProbe) -> ShootScaling {
    probe.say([SHOOT], Outcome::LeasesExpired);
    until_kept_back(coordinator, Direction::Down).await
}

async fn until_mode(coordinator: &Coordinator, mode: Mode) {
    coordinator
        .until(SHOOT, &format!("the mode is {mode:?}"), |s| s.mode() == mode)
        .await;
}

/// Waits until the autoscaler is down and machine-controller-manager is not.
async fn until_mcm_is_waited_for(coordinator: &Coordinator) -> ShootScaling {
    let wanted = |s: &ShootScaling| {
        state_of(s, MCM) == ResourceState::Waiting && state_of(s, CA) == ResourceState::Reached
    };
    coordinator.until(SHOOT, "mcm is waited for", wanted).await
}

fn now() -> UnixTime {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    UnixTime(micros(since_epoch))
}

/// The number of shoots with this mode.
async fn listed(coordinator: &Coordinator, mode: Mode) -> i32 {
    let request = ListScalingRequest {
        modes: vec![mode.into()],
        ..Default::default()
    };
    let answer = coordinator.client.clone().list_scaling(request).await.unwrap();
    answer.into_inner().total_size
}

/// Waits until the incident has ended, and returns its record.
async fn incident(coordinator: &Coordinator) -> Incident {
    let ended = |s: &ShootScaling| s.incident.is_none() && s.last_incident.is_some();
    let shown = coordinator.until(SHOOT, "the incident has ended", ended).await;
    shown.last_incident.unwrap()
}

#[tokio::test]
async fn the_first_writes_are_kept_back_and_nothing_is_simulated_after_them() {
    let (seed, probe, coordinator) = start(OBSERVE).await;
    let down = lose_observed(&coordinator, &probe).await;
    assert_eq!((down.mode(), down.mode_from_annotation), (Mode::Observe, false));
    assert!(!down.meltdown_protection_active, "nothing is held down");
    // A renewed verdict keeps nothing back a second time.
    probe.say([SHOOT], Outcome::LeasesExpired);
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(listed(&coordinator, Mode::Observe).await, 1);
    assert_eq!(listed(&coordinator, Mode::Protect).await, 0);
    let ended = incident(&coordinator).await;
    assert_eq!(
        (ended.in_mode_observe, ended.scaled_down, ended.scaled_up),
        (true, 2, 0)
    );
    assert!(ended.verdict_to_first_write.is_some(), "{ended:#?}");
    assert_eq!(ended.first_to_scale_down, "scaling-coordinator");
    assert_eq!(ended.scale_down_lead, None, "nobody else has scaled");
    // Its time is that of the write, had it been sent.
    let after = ended.scale_times.iter().map(|times| times.scaled_after);
    assert!(
        after.flatten().all(|after| wire::micros(Some(&after)) >= 0),
        "{ended:#?}"
    );
    assert_eq!(seed.all_writes(), [""; 0]);
    assert_eq!(seed.all(SHOOT), [2, 1, 1]);
    let metrics = coordinator.metrics().await;
    for line in [
        &format!(
            "watchdog_scaling_operations_total{{shoot=\"{SHOOT}\",direction=\"down\",result=\"kept_back\"}} 2"
        ),
        "watchdog_scaling_shoots_by_mode{mode=\"observe\",source=\"seed\",end=\"never\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    coordinator.stop().await;
    assert_eq!(seed.all_writes(), [""; 0]);
}

#[tokio::test]
async fn events_are_written_on_request_and_nothing_else() {
    let (seed, probe, coordinator) = start(&["--mode=observe", "--observe-events"]).await;
    lose_observed(&coordinator, &probe).await;
    eventually("Events tell of it", || {
        [MCM, CA]
            .iter()
            .all(|name| seed.events(SHOOT, name) == ["WriteKeptBack"])
    })
    .await;
    let writes = seed.all_writes();
    assert!(writes.iter().all(|write| write.contains("/events")), "{writes:?}");
}

#[tokio::test]
async fn a_change_to_observe_stops_the_flow_and_restores_what_it_holds_down() {
    let (seed, probe, coordinator) = start(&[]).await;
    seed.freeze(SHOOT, MCM);
    probe.say([SHOOT], Outcome::LeasesExpired);
    until_mcm_is_waited_for(&coordinator).await;
    seed.annotate_shoot(SHOOT, MODE_ANNOTATION, Some("observe until=2126-12-01T06:00:00Z"));
    until_mode(&coordinator, Mode::Observe).await;
    let observed = coordinator.get(SHOOT).await.unwrap();
    let end = observed.mode_expire_time.map(|until| until.seconds);
    assert_eq!((observed.mode_from_annotation, end), (true, Some(4_951_778_400)));
    let mode = format!(
        "watchdog_scaling_shoot_mode{{shoot=\"{SHOOT}\",mode=\"observe\",source=\"shoot\",end=\"never\"}} 1\n"
    );
    let metrics = coordinator.metrics().await;
    assert!(metrics.contains(&mode), "{mode} is not in\n{metrics}");
    seed.thaw(SHOOT, MCM);
    let down = until_kept_back(&coordinator, Direction::Down).await;
    assert_eq!(state_of(&down, KCM), ResourceState::KeptBack, "{down:#?}");
    assert_eq!(seed.all(SHOOT), [2, 0, 0], "the next level was kept back");
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [2, 1, 1]);
    assert_eq!(seed.annotation(SHOOT, MCM, PROTECTED), None);
    let writes = seed.writes(SHOOT);
    assert!(!writes.iter().any(|write| write.contains(KCM)), "{writes:?}");
    // The next loss finds nothing that is held down.
    let before = seed.all_writes().len();
    lose_observed(&coordinator, &probe).await;
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all_writes().len(), before);
}

#[tokio::test]
async fn a_change_to_protect_in_the_middle_of_an_incident_scales_down_in_order() {
    let (seed, probe, coordinator) = start(OBSERVE).await;
    lose_observed(&coordinator, &probe).await;
    assert_eq!(seed.all_writes(), [""; 0]);
    seed.freeze(SHOOT, MCM);
    seed.annotate_shoot(SHOOT, MODE_ANNOTATION, Some("protect"));
    until_written(&seed, SHOOT, &format!("down {MCM} 1")).await;
    let waiting = until_mcm_is_waited_for(&coordinator).await;
    assert_eq!(
        (waiting.mode(), waiting.mode_from_annotation),
        (Mode::Protect, true)
    );
    assert_eq!(
        state_of(&waiting, KCM),
        ResourceState::Pending,
        "what was kept back is forgotten"
    );
    assert_eq!(seed.all(SHOOT), [2, 0, 0]);
    seed.thaw(SHOOT, MCM);
    coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(seed.all(SHOOT), [0, 0, 0]);
    coordinator.recover(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [2, 1, 1]);
}

#[tokio::test]
async fn the_default_of_the_seed_holds_again_after_the_end() {
    let (seed, probe, coordinator) = start(&[]).await;
    // In whole seconds.
    let until = now()
        .after(Duration::from_secs(5))
        .at_multiple_of(Duration::from_secs(1));
    seed.annotate_shoot(SHOOT, MODE_ANNOTATION, Some(&format!("observe until={until}")));
    probe.say([SHOOT], Outcome::LeasesExpired);
    eventually("it is scaled down after the end", || seed.all(SHOOT) == [0, 0, 0]).await;
    until_mode(&coordinator, Mode::Protect).await;
    // Also if the annotation came later than the verdict: the Cluster is read before a write.
    let audit = seed.api.audit().into_iter();
    let writes = audit.filter(|entry| entry.is_write() && entry.path.contains("/deployments/"));
    let early: Vec<_> = writes
        .filter(|entry| entry.done.as_microsecond() < until.0)
        .collect();
    assert!(early.is_empty(), "{early:#?}");
}

#[tokio::test]
async fn malformed_annotations_are_named_and_change_nothing() {
    let (seed, probe, coordinator) = start(&[]).await;
    seed.change_shoot(SHOOT, |shoot| {
        shoot["metadata"]["annotations"][MODE_ANNOTATION] = "watch".into();
        shoot["metadata"]["annotations"][FAILURE_FRACTION_ANNOTATION] = "80%".into();
    });
    let named = coordinator
        .until(SHOOT, "they are named", |s| {
            s.reason.contains("\"watch\"") && s.reason.contains("\"80%\"")
        })
        .await;
    assert_eq!((named.mode(), named.mode_from_annotation), (Mode::Protect, false));
    eventually("Warnings tell of them", || {
        seed.events(SHOOT, SHOOT) == ["ShootAnnotationMalformed"; 2]
    })
    .await;
    coordinator.lose(&probe, SHOOT).await;
    assert_eq!(seed.all(SHOOT), [0, 0, 0]);
}

#[tokio::test]
async fn what_another_watchdog_takes_down_again_is_left_to_it() {
    let (seed, probe, coordinator) = start(&[]).await;
    coordinator.lose(&probe, SHOOT).await;
    seed.annotate_shoot(SHOOT, MODE_ANNOTATION, Some("observe"));
    until_mode(&coordinator, Mode::Observe).await;
    seed.freeze(SHOOT, KCM);
    probe.say([SHOOT], Outcome::Healthy);
    until_written(&seed, SHOOT, &format!("scale {KCM} 2")).await;
    // The other one sees it otherwise, before the annotation is removed.
    seed.scale_as_dwd(SHOOT, KCM, Some(2), 0);
    until_kept_back(&coordinator, Direction::Up).await;
    assert_eq!(seed.all(SHOOT), [0, 0, 0], "the next levels wait for it");
    let restores = seed.writes(SHOOT);
    let restores = restores
        .iter()
        .filter(|write| **write == format!("scale {KCM} 2"));
    assert_eq!(restores.count(), 1);
    seed.thaw(SHOOT, KCM);
    seed.scale_as_dwd(SHOOT, KCM, None, 2);
    let up = coordinator.until_settled(SHOOT, Direction::Up).await;
    assert!(!up.meltdown_protection_active);
    assert_eq!(seed.all(SHOOT), [2, 1, 1]);
}

/// gardenlet copies the annotations of a Shoot only when it reconciles the Shoot.
#[tokio::test]
async fn the_annotation_of_the_cluster_is_the_brake_and_takes_precedence() {
    let (seed, probe, coordinator) = start(&[]).await;
    seed.annotate_shoot(SHOOT, MODE_ANNOTATION, Some("protect"));
    seed.freeze(SHOOT, MCM);
    probe.say([SHOOT], Outcome::LeasesExpired);
    until_mcm_is_waited_for(&coordinator).await;
    seed.modify(&keys::CLUSTERS, "", SHOOT, |cluster| {
        cluster["metadata"]["annotations"][MODE_ANNOTATION] = "off".into();
    });
    let off = coordinator.until_holding(SHOOT, MODE_ANNOTATION).await;
    assert_eq!((off.mode(), off.hold_reason()), (Mode::Off, HoldReason::Mode));
    seed.thaw(SHOOT, MCM);
    coordinator
        .until(SHOOT, "mcm is down, so that kcm would be next", |s| {
            resource(s, MCM).ready_replicas == Some(0)
        })
        .await;
    assert_eq!(seed.replicas(SHOOT, KCM), 2, "the brake holds");
    seed.modify(&keys::CLUSTERS, "", SHOOT, |cluster| {
        cluster["metadata"]["annotations"] = json!({});
    });
    coordinator.until_settled(SHOOT, Direction::Down).await;
    assert_eq!(seed.all(SHOOT), [0, 0, 0]);
}
