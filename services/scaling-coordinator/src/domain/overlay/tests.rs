use proptest::prelude::*;
use tokio::time::Instant;
use watchdog_api::prober::DependentResource;
use watchdog_api::workload::FieldWriters;

use super::*;
use crate::domain::flow::{ActionOutcome, Flow};
use crate::domain::status::FlowState;
use crate::domain::testing::{S, dependent_of, gardener, held, recorded, scale_only, seen, start};

fn dependents(config: &[DependentResource], states: Vec<ResourceState>) -> Vec<Dependent<'_>> {
    config
        .iter()
        .zip(states)
        .map(|(config, state)| dependent_of(config, state))
        .collect()
}

/// Runs a flow over the overlay until it is settled, with nobody else about. Returns what was kept back.
fn run(
    now: &mut Instant,
    flow: &mut Flow,
    overlay: &mut Overlay,
    direction: Direction,
    real: &[Dependent<'_>],
) -> Vec<String> {
    let mut kept_back = Vec::new();
    for _ in 0..200 {
        let shown = overlay.over(real);
        let steps = flow.next(*now, Some(direction), &shown);
        for action in &steps.actions {
            flow.start(*now, action);
            let ActionKind::Write(write) = &action.kind else {
                panic!("nothing has to be read: {action:?}");
            };
            kept_back.push(format!("{}: {write}", action.reference.name));
            let known = real
                .iter()
                .find(|d| d.config.reference == action.reference)
                .unwrap();
            assert_eq!(
                WriteDisposition::of(Mode::Observe, action, &known.observed, overlay),
                WriteDisposition::KeepBack
            );
            assert!(overlay.keep_back(action, &known.observed), "{action:?}");
            flow.finish(*now, action, ActionOutcome::KeptBack);
        }
        if steps.actions.is_empty() {
            match steps.wake {
                Some(wake) => *now = wake,
                None => {
                    assert_eq!(steps.status.state, FlowState::Settled, "{steps:?}");
                    return kept_back;
                }
            }
        }
    }
    panic!("it never settles: {kept_back:?}")
}

#[test]
fn a_loss_and_a_recovery_run_as_if_they_were_real() {
    let config = gardener();
    let real = dependents(&config, vec![seen(2, 2), seen(1, 1), seen(1, 1)]);
    let (mut now, mut flow, mut overlay) = (start(), Flow::default(), Overlay::default());
    assert_eq!(
        run(&mut now, &mut flow, &mut overlay, Direction::Down, &real),
        [
            "machine-controller-manager: record 1 replicas and scale to 0",
            "cluster-autoscaler: record 1 replicas and scale to 0",
            "kube-controller-manager: record 2 replicas and scale to 0",
        ]
    );
    assert!(config.iter().all(|config| overlay.covers(&config.reference)));
    let recovered = now;
    assert_eq!(
        run(&mut now, &mut flow, &mut overlay, Direction::Up, &real),
        [
            "kube-controller-manager: scale from 0 to 2",
            "kube-controller-manager: remove meltdown-protection-active",
            "machine-controller-manager: scale from 0 to 1",
            "machine-controller-manager: remove meltdown-protection-active",
            "cluster-autoscaler: scale from 0 to 1",
            "cluster-autoscaler: remove meltdown-protection-active",
        ]
    );
    assert_eq!(
        now - recovered,
        30 * S,
        "the initial delay of machine-controller-manager runs"
    );
    assert!(overlay.is_empty(), "{overlay:?}");
}

#[test]
fn kinds_with_only_a_scale_sub_resource_take_both_writes() {
    let config = [scale_only(gardener().remove(0))];
    let real = dependents(&config, vec![seen(3, 3)]);
    let (mut now, mut flow, mut overlay) = (start(), Flow::default(), Overlay::default());
    assert_eq!(
        run(&mut now, &mut flow, &mut overlay, Direction::Down, &real),
        [
            "kube-controller-manager: record 3 replicas",
            "kube-controller-manager: scale from 3 to 0"
        ]
    );
    assert!(!overlay.is_empty(), "the seed was not written to");
    run(&mut now, &mut flow, &mut overlay, Direction::Up, &real);
    assert!(overlay.is_empty(), "{overlay:?}");
}

#[test]
fn what_another_watchdog_does_takes_the_place_of_what_was_kept_back() {
    let config = [gardener().remove(0)];
    let (mut now, mut flow, mut overlay) = (start(), Flow::default(), Overlay::default());
    let mut at = |states: ResourceState, direction| {
        run(
            &mut now,
            &mut flow,
            &mut overlay,
            direction,
            &dependents(&config, vec![states]),
        )
    };
    assert_eq!(at(seen(2, 2), Direction::Down).len(), 1);
    let annotated = ResourceState {
        resource_version: "2".into(),
        ..recorded(2)
    };
    assert_eq!(at(annotated, Direction::Down), [""; 0], "still only kept back");
    let down = ResourceState {
        resource_version: "3".into(),
        ..held(2)
    };
    assert_eq!(at(down.clone(), Direction::Down), [""; 0], "it is down already");
    assert_eq!(at(down, Direction::Up).len(), 2, "restored and cleaned up");
    let restored = ResourceState {
        resource_version: "4".into(),
        protected: true,
        ..seen(2, 2)
    };
    assert_eq!(at(restored, Direction::Up), [""; 0]);
    let cleaned = ResourceState {
        resource_version: "5".into(),
        ..seen(2, 2)
    };
    assert_eq!(at(cleaned, Direction::Up), [""; 0]);
    assert!(overlay.is_empty(), "{overlay:?}");
}

#[test]
fn a_write_on_an_older_state_is_a_conflict() {
    let config = gardener();
    let real = dependents(&config, vec![seen(2, 2), seen(1, 1), seen(1, 1)]);
    let (mut flow, mut overlay) = (Flow::default(), Overlay::default());
    let steps = flow.next(start(), Some(Direction::Down), &real);
    let action = steps.actions.first().unwrap();
    let changed = ResourceState {
        resource_version: "2".into(),
        ..seen(1, 1)
    };
    assert!(!overlay.keep_back(action, &changed.into()));
    assert!(!overlay.keep_back(action, &Observed::Absent));
    assert!(overlay.is_empty());
}

/// The disposition of the first write in this direction.
fn disposition(mode: Mode, direction: Direction, state: &ResourceState) -> WriteDisposition {
    let config = gardener();
    let real = dependents(&config[..1], vec![state.clone()]);
    let steps = Flow::default().next(start(), Some(direction), &real);
    let action = steps.actions.first().unwrap();
    WriteDisposition::of(mode, action, &real[0].observed, &Overlay::default())
}

#[test]
fn what_another_watchdog_has_scaled_down_again_is_left_to_it() {
    // It finds the annotation there, and only changes the replicas.
    let scaled_by = |writer: &str, state: ResourceState| ResourceState {
        writers: Some(Box::new(FieldWriters {
            replicas: Some(writer.to_owned()),
            protection: Some(COORDINATOR_FIELD_MANAGER.to_owned()),
        })),
        protected: true,
        ..state
    };
    let observed = |state| disposition(Mode::Observe, Direction::Up, &state);
    assert_eq!(
        observed(scaled_by("dependency-watchdog", held(1))),
        WriteDisposition::KeepBack
    );
    assert_eq!(
        observed(scaled_by(COORDINATOR_FIELD_MANAGER, held(1))),
        WriteDisposition::Send
    );
    assert_eq!(
        observed(scaled_by("kubectl", seen(1, 1))),
        WriteDisposition::Send,
        "only the annotation is left, and it is our own"
    );
}

#[test]
fn only_what_this_program_holds_down_is_restored_for_real() {
    let by = |writer: &str| {
        Some(Box::new(FieldWriters {
            replicas: None,
            protection: Some(writer.to_owned()),
        }))
    };
    let ours = ResourceState {
        writers: by(COORDINATOR_FIELD_MANAGER),
        ..held(1)
    };
    let others = ResourceState {
        writers: by("dependency-watchdog"),
        ..held(1)
    };
    assert_eq!(
        disposition(Mode::Observe, Direction::Up, &ours),
        WriteDisposition::Send
    );
    assert_eq!(
        disposition(Mode::Observe, Direction::Release, &ours),
        WriteDisposition::Send
    );
    assert_eq!(
        disposition(Mode::Observe, Direction::Up, &others),
        WriteDisposition::KeepBack
    );
    assert_eq!(
        disposition(Mode::Observe, Direction::Up, &held(1)),
        WriteDisposition::KeepBack
    );
    let leftover = ResourceState {
        replicas: Some(1),
        ready: 1,
        ..ours
    };
    assert_eq!(
        disposition(Mode::Observe, Direction::Down, &leftover),
        WriteDisposition::KeepBack
    );
    assert_eq!(
        disposition(Mode::Protect, Direction::Down, &leftover),
        WriteDisposition::Send
    );
    assert_eq!(
        disposition(Mode::Off, Direction::Up, &others),
        WriteDisposition::KeepBack
    );
}

fn states() -> impl Strategy<Value = ResourceState> {
    (0..3, any::<bool>(), 0..3, 1..50_u32).prop_map(|(replicas, protected, recorded, version)| {
        ResourceState {
            resource_version: version.to_string().into(),
            protected,
            recorded: match recorded {
                0 => RecordedReplicas::Absent,
                count => RecordedReplicas::Count(count),
            },
            ..seen(replicas, replicas)
        }
    })
}

proptest! {
    /// Whatever others do meanwhile: what they change shows, nothing else than the configured resources is covered, and
    /// once they are quiet and the shoot is healthy everything is shown restored.
    #[test]
    fn an_overlay_never_hides_what_others_do(
        steps in prop::collection::vec((states(), any::<bool>(), any::<bool>()), 1..30),
    ) {
        let config = [gardener().remove(0)];
        let (mut now, mut flow, mut overlay) = (start(), Flow::default(), Overlay::default());
        let mut before: Option<ResourceState> = None;
        for (state, change, down) in steps {
            let real = match &before {
                Some(before) if !change => before.clone(),
                _ => state,
            };
            let dependents = dependents(&config, vec![real.clone()]);
            let shown = overlay.over(&dependents).remove(0).observed.seen().cloned().unwrap();
            if before.as_ref().is_none_or(|before| before.replicas != real.replicas) {
                prop_assert_eq!(shown.replicas, real.replicas);
            }
            let direction = if down { Direction::Down } else { Direction::Up };
            run(&mut now, &mut flow, &mut overlay, direction, &dependents);
            prop_assert!(overlay.resources.len() <= 1);
            before = Some(real);
        }
        let real = dependents(&config, vec![before.unwrap()]);
        run(&mut now, &mut flow, &mut overlay, Direction::Up, &real);
        let shown = overlay.over(&real).remove(0).observed.seen().cloned().unwrap();
        prop_assert!(shown.replicas > Some(0) && !shown.protected, "{shown:?}");
    }
}
