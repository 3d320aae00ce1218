use watchdog_api::policy::{Mode, ModeInForce};

use super::*;
use crate::domain::resource_step::ResourceWrite;
use crate::domain::status::{FlowStatus, Progress};
use crate::domain::testing::{S, dependent, start};

fn verdict(outcome: Outcome, at: Instant) -> ReceivedVerdict {
    ReceivedVerdict {
        outcome,
        observer: "lease-probe-0".into(),
        observed: at,
        outcome_since: at,
        list_revision: 0,
        first_revision: 0,
        sent: at,
        valid_until: at + 30 * S,
        message: "Because.".into(),
    }
}

pub(crate) fn evidence(expired: u32, zones: &[(&str, u32, u32)]) -> EvidenceCounts {
    EvidenceCounts {
        leases: 4,
        candidates: 4,
        expired,
        zones: zones
            .iter()
            .map(|(zone, candidates, expired)| (zone.to_string(), *candidates, *expired))
            .collect(),
        newest_expired_renewal: (expired > 0).then_some(32 * S),
        ..EvidenceCounts::default()
    }
}

pub(crate) fn action(direction: Direction) -> WriteAttempt {
    let (from, to) = if direction == Direction::Down {
        (1, 0)
    } else {
        (0, 1)
    };
    WriteAttempt {
        reference: dependent("kube-controller-manager", 0, 0).reference,
        direction,
        write: ResourceWrite::Scale {
            from,
            to,
            record: direction == Direction::Down,
            unreadable: None,
        },
    }
}

/// The state of a shoot with one resource.
pub(crate) fn scaling(
    direction: Option<Direction>,
    state: FlowState,
    step: Step,
    protected: bool,
) -> ShootScaling {
    let progress = Progress {
        reference: dependent("kube-controller-manager", 0, 0).reference,
        level: direction.map(|_| 0),
        step,
        replicas: None,
        ready: None,
        recorded: None,
        protected,
        protected_by_coordinator: false,

        target: None,
        attempts: 0,
        message: "as it is".to_owned(),
    };
    ShootScaling {
        direction,
        held: direction.is_none().then_some(HoldReason::Verdict),
        reason: "Because.".to_owned(),
        since: start(),
        status: FlowStatus {
            state,
            level: None,
            resources: vec![progress],
            retry_at: None,
        },
        mode: ModeInForce::default(),
        owner: "me".into(),
    }
}

#[tokio::test]
async fn a_healthy_start_is_no_history() {
    let (mut history, t0) = (ShootHistory::default(), start());
    for outcome in [Outcome::Pending, Outcome::Healthy, Outcome::Healthy] {
        assert_eq!(
            history.verdict(t0, &verdict(outcome, t0), Some(evidence(0, &[]))),
            None
        );
    }
    let mut held = scaling(None, FlowState::Holding, Step::Pending, false);
    held.held = Some(HoldReason::Unreported);
    let up = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, false);
    for state in [&held, &up, &held, &up] {
        assert_eq!(history.published(t0, state), []);
    }
}

#[tokio::test]
async fn a_verdict_that_holds_is_history_without_an_incident() {
    let (mut history, t0) = (ShootHistory::default(), start());
    let up = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, false);
    assert_eq!(history.published(t0, &up), []);
    let held = scaling(None, FlowState::Holding, Step::Pending, false);
    let events = history.published(t0 + S, &held);
    let [event] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(event.message, "The direction is hold. Because.");
}

#[tokio::test]
async fn an_incident_is_told_from_its_first_verdict_until_everything_is_restored() {
    let (mut history, t0) = (ShootHistory::default(), start());
    let up = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, false);
    history.verdict(t0, &verdict(Outcome::Healthy, t0), None);
    history.published(t0, &up);

    let lost = |seconds: u32, expired, zones: &[(&str, u32, u32)]| {
        let at = t0 + S * seconds;
        (
            at + S,
            verdict(Outcome::LeasesExpired, at),
            Some(evidence(expired, zones)),
        )
    };
    let (at, received, counts) = lost(10, 3, &[("a", 2, 2), ("b", 2, 1)]);
    let event = history.verdict(at, &received, counts).unwrap();
    assert!(
        matches!(
            &event.kind,
            ShootEventKind::VerdictChanged {
                previous: Some(Outcome::Healthy),
                ..
            }
        ),
        "{event:?}"
    );
    assert_eq!(event.message, "lease-probe-0 reports LEASES_EXPIRED. Because.");
    let down = scaling(Some(Direction::Down), FlowState::Running, Step::Writing, false);
    let events = history.published(t0 + 11 * S, &down);
    assert_eq!(events.len(), 2, "the direction and a step: {events:?}");
    let written = history.write_ended(
        t0 + 12 * S,
        &action(Direction::Down),
        &RequestOutcome::Conflict,
        S,
    );
    assert!(written.message.contains("the resource had changed"));
    history.write_ended(t0 + 13 * S, &action(Direction::Down), &RequestOutcome::Done, S);
    let (at, received, counts) = lost(14, 4, &[("a", 2, 2), ("b", 2, 2)]);
    assert_eq!(history.verdict(at, &received, counts), None, "the same outcome");
    let waiting = scaling(Some(Direction::Down), FlowState::Settled, Step::Reached, true);
    let [step] = &history.published(t0 + 16 * S, &waiting)[..] else {
        panic!("one step")
    };
    let ShootEventKind::StepChanged { previous, .. } = &step.kind else {
        panic!("{step:?}")
    };
    assert_eq!(*previous, Some((Step::Writing, 5 * S)), "{step:?}");

    history.verdict(t0 + 60 * S, &verdict(Outcome::Healthy, t0 + 60 * S), None);
    let protected = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, true);
    let ended = |events: &[ShootEvent]| {
        events
            .iter()
            .any(|e| matches!(e.kind, ShootEventKind::IncidentEnded(_)))
    };
    assert!(
        !ended(&history.published(t0 + 61 * S, &protected)),
        "it is still held down"
    );
    history.write_ended(t0 + 62 * S, &action(Direction::Up), &RequestOutcome::Done, S);
    let events = history.published(t0 + 70 * S + Duration::from_nanos(880_625_665), &up);
    let end = events.last().unwrap();
    let ShootEventKind::IncidentEnded(incident) = &end.kind else {
        panic!("{events:?}")
    };
    assert_eq!(
        end.message,
        "The incident has ended after 59.88s: 1 resources were scaled down and 1 up."
    );
    let took = 59 * S + Duration::from_nanos(880_625_665);
    let expected = Incident {
        outcome: Some(Outcome::LeasesExpired),
        last_renewal_to_verdict: Some(33 * S),
        first_write: Some(t0 + 13 * S),
        last_write: Some(t0 + 13 * S),
        healthy: Some(t0 + 60 * S),
        restored: Some(t0 + 11 * S + took),
        scaled_down: [action(Direction::Down).reference].into(),
        scaled_up: [action(Direction::Up).reference].into(),
        failed_writes: 1,
        written: true,
        peak_expired_fraction: Some(1.0),
        zones: evidence(4, &[("a", 2, 2), ("b", 2, 2)]).zones,
        decided: BTreeMap::from([(Direction::Down, t0 + 11 * S), (Direction::Up, t0 + 61 * S)]),
        ..Incident::new(t0 + 11 * S)
    };
    assert_eq!(*incident, expected);
    assert!(!incident.in_mode_observe());
    assert_eq!(incident.verdict_to(incident.restored), Some(took));
    assert!(!ended(&history.published(t0 + 80 * S, &up)), "it ends once");
}

#[tokio::test]
async fn a_loss_that_comes_back_is_one_incident() {
    let (mut history, t0) = (ShootHistory::default(), start());
    let mut report = |seconds: u32, outcome| {
        let at = t0 + S * seconds;
        history.verdict(at, &verdict(outcome, at), None)
    };
    assert!(report(0, Outcome::LeasesExpired).is_some());
    assert!(report(1, Outcome::Healthy).is_some());
    assert!(report(2, Outcome::LeasesExpired).is_some());
    assert!(report(3, Outcome::ApiServerUnreachable).is_some());
    let up = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, false);
    let ended = |event: &ShootEvent| matches!(event.kind, ShootEventKind::IncidentEnded(_));
    assert!(
        !history.published(t0 + 4 * S, &up).iter().any(ended),
        "no verdict is healthy"
    );
    let at = t0 + 5 * S;
    history.verdict(at, &verdict(Outcome::Healthy, at), None);
    let events = history.published(t0 + 6 * S, &up);
    let ShootEventKind::IncidentEnded(incident) = &events.last().unwrap().kind else {
        panic!("{events:?}")
    };
    assert_eq!((incident.started, incident.healthy), (t0, Some(t0 + 5 * S)));
    assert_eq!(incident.first_write, None);
}

fn other(direction: Direction) -> OtherWrite {
    let (from, to) = if direction == Direction::Down {
        (1, 0)
    } else {
        (0, 1)
    };
    OtherWrite {
        reference: dependent("kube-controller-manager", 0, 0).reference,
        direction,
        from,
        to,
        writer: "dependency-watchdog".to_owned(),
    }
}

/// An incident in mode observe beside another watchdog, which scales down and up this long after the verdicts.
fn observed(down_after: i32, up_after: u32) -> (Incident, String) {
    let (mut history, t0) = (ShootHistory::default(), start());
    let (loss, healthy) = (t0 + 100 * S, t0 + 200 * S);
    let others = |history: &mut ShootHistory| {
        let at = if down_after < 0 {
            loss - S * down_after.unsigned_abs()
        } else {
            loss + S * down_after.unsigned_abs()
        };
        history.other_wrote(at, &other(Direction::Down)).unwrap();
    };
    if down_after < 0 {
        others(&mut history);
    }
    history.verdict(
        loss,
        &verdict(Outcome::LeasesExpired, loss),
        Some(evidence(3, &[])),
    );
    history.write_ended(loss + S, &action(Direction::Down), &RequestOutcome::KeptBack, S);
    if down_after >= 0 {
        others(&mut history);
    }
    history.verdict(healthy, &verdict(Outcome::Healthy, healthy), None);
    history.write_ended(healthy + S, &action(Direction::Up), &RequestOutcome::KeptBack, S);
    let held = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, true);
    let ended = |event: &ShootEvent| matches!(event.kind, ShootEventKind::IncidentEnded(_));
    assert!(
        !history.published(healthy + S, &held).iter().any(ended),
        "the other holds it down"
    );
    let restored = healthy + S * up_after;
    history.other_wrote(restored, &other(Direction::Up)).unwrap();
    let up = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, false);
    let last = history.published(restored, &up).pop().unwrap();
    let ShootEventKind::IncidentEnded(incident) = last.kind else {
        panic!("{last:?}")
    };
    assert_eq!(
        (incident.outcome, incident.started),
        (Some(Outcome::LeasesExpired), loss)
    );
    (incident, last.message)
}

#[tokio::test]
async fn an_observed_incident_says_who_was_first_and_by_how_much() {
    let (incident, message) = observed(13, 4);
    assert!(incident.in_mode_observe());
    assert_eq!(
        (
            incident.scaled_down.len(),
            incident.scaled_up.len(),
            incident.failed_writes
        ),
        (1, 1, 0)
    );
    assert_eq!(incident.verdict_to(incident.first_write), Some(S));
    assert_eq!(
        incident.first_to_scale(Direction::Down),
        Some("scaling-coordinator")
    );
    assert_eq!(incident.lead_seconds(Direction::Down), Some(12.0));
    assert_eq!(incident.lead_seconds(Direction::Up), Some(3.0));
    let directions: Vec<_> = incident
        .scale_times()
        .iter()
        .map(|times| times.direction)
        .collect();
    assert_eq!(directions, [Direction::Down, Direction::Up]);
    let who = "scaling-coordinator would have scaled down 12 s before dependency-watchdog.";
    assert!(message.ends_with(who), "{message}");
}

#[tokio::test]
async fn of_two_at_the_same_instant_this_program_counts_as_the_first() {
    let (incident, _) = observed(1, 4);
    assert_eq!(incident.lead_seconds(Direction::Down), Some(0.0));
    assert_eq!(
        incident.first_to_scale(Direction::Down),
        Some("scaling-coordinator")
    );
}

#[tokio::test]
async fn another_watchdog_may_be_earlier_than_the_first_verdict() {
    let (incident, message) = observed(-5, 0);
    assert_eq!(
        incident.first_to_scale(Direction::Down),
        Some("dependency-watchdog")
    );
    assert_eq!(incident.lead_seconds(Direction::Down), Some(-6.0));
    assert_eq!(
        incident.first_to_scale(Direction::Up),
        Some("dependency-watchdog")
    );
    let who = "dependency-watchdog scaled down 6 s before scaling-coordinator would have.";
    assert!(message.ends_with(who), "{message}");
}

#[tokio::test]
async fn what_only_another_watchdog_holds_down_is_an_incident_too() {
    let (mut history, t0) = (ShootHistory::default(), start());
    assert_eq!(
        history.other_wrote(t0, &other(Direction::Up)),
        None,
        "nothing has happened"
    );
    history.other_wrote(t0, &other(Direction::Down)).unwrap();
    let held = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, true);
    history.published(t0, &held);
    let up = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, false);
    let last = history.published(t0 + 60 * S, &up).pop().unwrap();
    assert!(
        last.message.ends_with("; only dependency-watchdog scaled down."),
        "{}",
        last.message
    );
}

fn ended(history: &mut ShootHistory, at: Instant) -> (Incident, String) {
    let up = scaling(Some(Direction::Up), FlowState::Settled, Step::Reached, false);
    let last = history.published(at, &up).pop().unwrap();
    match last.kind {
        ShootEventKind::IncidentEnded(incident) => (incident, last.message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watchdog_that_leaves_nothing_to_scale_is_compared_with_the_decision() {
    let (mut history, t0) = (ShootHistory::default(), start());
    history.other_wrote(t0, &other(Direction::Down)).unwrap();
    let (loss, healthy) = (t0 + 20 * S, t0 + 60 * S);
    history.verdict(loss, &verdict(Outcome::LeasesExpired, loss), None);
    let down = scaling(Some(Direction::Down), FlowState::Settled, Step::Reached, true);
    history.published(loss, &down);
    history.other_wrote(t0 + 50 * S, &other(Direction::Up)).unwrap();
    history.verdict(healthy, &verdict(Outcome::Healthy, healthy), None);
    let (incident, message) = ended(&mut history, healthy);
    assert!(incident.in_mode_observe(), "{incident:?}");
    assert_eq!(
        incident.first_to_scale(Direction::Down),
        Some("dependency-watchdog")
    );
    assert_eq!(incident.lead_seconds(Direction::Down), Some(-20.0));
    assert_eq!(incident.lead_seconds(Direction::Up), Some(-10.0));
    let who = "dependency-watchdog scaled down 20 s before scaling-coordinator would have.";
    assert!(message.ends_with(who), "{message}");
}

#[tokio::test]
async fn a_restore_that_a_later_loss_made_void_is_not_compared() {
    let (mut history, t0) = (ShootHistory::default(), start());
    let kept_back = |history: &mut ShootHistory, at: Instant, direction| {
        history.write_ended(at, &action(direction), &RequestOutcome::KeptBack, S)
    };
    history.other_wrote(t0, &other(Direction::Down)).unwrap();
    kept_back(&mut history, t0, Direction::Up);
    let (loss, healthy) = (t0 + 5 * S, t0 + 100 * S);
    history.verdict(loss, &verdict(Outcome::LeasesExpired, loss), None);
    kept_back(&mut history, loss, Direction::Down);
    history.verdict(healthy, &verdict(Outcome::Healthy, healthy), None);
    kept_back(&mut history, healthy, Direction::Up);
    history
        .other_wrote(healthy + 4 * S, &other(Direction::Up))
        .unwrap();
    let (incident, _) = ended(&mut history, healthy + 5 * S);
    assert_eq!(
        (incident.outcome, incident.started),
        (Some(Outcome::LeasesExpired), loss)
    );
    assert_eq!(incident.lead_seconds(Direction::Down), Some(-5.0));
    assert_eq!(incident.lead_seconds(Direction::Up), Some(4.0));
}

#[tokio::test]
async fn an_incident_in_two_modes_says_so() {
    let (mut history, t0) = (ShootHistory::default(), start());
    history.verdict(t0, &verdict(Outcome::LeasesExpired, t0), None);
    for outcome in [RequestOutcome::KeptBack, RequestOutcome::Done] {
        history.write_ended(t0, &action(Direction::Down), &outcome, S);
    }
    history.verdict(t0, &verdict(Outcome::Healthy, t0), None);
    history.write_ended(t0, &action(Direction::Up), &RequestOutcome::Done, S);
    let (_, message) = ended(&mut history, t0);
    let both = "1 resources were or would have been scaled down and 1 up; ";
    assert!(message.contains(both), "{message}");
}

#[tokio::test]
async fn a_change_of_mode_is_an_event_with_its_reason() {
    let (mut history, t0) = (ShootHistory::default(), start());
    let at = |second: i64| UnixTime(second * 1_000_000);
    let of_shoot = |mode, until: Option<i64>| ModeInForce {
        mode,
        from_annotation: true,
        until: until.map(at),
    };
    let of_seed = ModeInForce::default();
    let mut next = |second, mode| {
        let event = history.mode(t0, at(second), mode)?;
        let ShootEventKind::ModeChanged { previous, reason, .. } = event.kind else {
            panic!("{event:?}");
        };
        Some((previous.mode, reason, event.message))
    };
    assert_eq!(next(0, of_seed), None, "a start is no change");
    assert_eq!(
        next(0, of_shoot(Mode::Protect, None)),
        None,
        "nor is the same mode"
    );
    let (previous, reason, message) = next(1, of_shoot(Mode::Observe, Some(5))).unwrap();
    assert_eq!((previous, reason), (Mode::Protect, ModeChangeReason::Annotation));
    assert!(
        message.starts_with("The mode is observe until 1970-01-01T00:00:05Z. "),
        "{message}"
    );
    let (previous, reason, _) = next(2, of_shoot(Mode::Observe, Some(9))).unwrap();
    assert_eq!((previous, reason), (Mode::Observe, ModeChangeReason::Annotation));
    let (previous, reason, _) = next(9, of_seed).unwrap();
    assert_eq!((previous, reason), (Mode::Observe, ModeChangeReason::Ended));
    next(10, of_shoot(Mode::Off, Some(99))).unwrap();
    let (previous, reason, message) = next(11, of_seed).unwrap();
    assert_eq!((previous, reason), (Mode::Off, ModeChangeReason::Withdrawn));
    assert!(message.starts_with("The mode is protect. "), "{message}");
}

/// In mode observe another watchdog restores what it holds down, and no alert of ours may say that we do not.
#[tokio::test]
async fn only_what_the_coordinator_must_restore_counts_as_to_be_restored() {
    let count = |direction, mode, protected_by_coordinator| {
        let mut shoot = scaling(direction, FlowState::Running, Step::Waiting, true);
        shoot.mode.mode = mode;
        shoot.status.resources[0].protected_by_coordinator = protected_by_coordinator;
        shoot.to_restore()
    };
    assert_eq!(
        count(Some(Direction::Up), Mode::Protect, false),
        1,
        "also what another one holds down"
    );
    assert_eq!(count(Some(Direction::Up), Mode::Observe, false), 0);
    assert_eq!(count(Some(Direction::Up), Mode::Observe, true), 1);
    assert_eq!(count(Some(Direction::Down), Mode::Protect, true), 0);
    assert_eq!(count(None, Mode::Off, true), 0);
}
