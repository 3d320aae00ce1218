pub(super) mod bench;
mod tries;

use self::bench::{Bench, DOWN, UP};
use super::*;
use crate::domain::observed::{Observed, ResourceState};
use crate::domain::testing::{S, held, recorded, seen, unread};

#[test]
fn down_runs_level_by_level_and_waits_for_ready_replicas() {
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), Observed::Absent);
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"]);
    assert_eq!(bench.steps(DOWN), [Step::Pending, Step::Writing, Step::Absent]);
    bench.done(DOWN, "down mcm 1", "mcm", ResourceState { ready: 1, ..held(1) });
    assert_eq!(bench.wanted(DOWN), [""; 0]);
    assert_eq!(
        bench.steps(DOWN),
        [Step::Pending, Step::Waiting, Step::Absent],
        "scaled is not reached"
    );
    bench.see("mcm", held(1));
    bench.done(DOWN, "down kcm 2", "kcm", ResourceState { ready: 2, ..held(2) });
    assert_eq!(bench.state(DOWN), FlowState::Running);
    bench.see("kcm", held(2));
    let end = bench.next(DOWN);
    assert_eq!((end.status.state, end.finished), (FlowState::Settled, true));
    assert!(!bench.next(DOWN).finished, "it finishes once");
    assert_eq!(bench.next(DOWN).wake, None, "nothing is polled");
}

#[test]
fn the_resources_of_a_level_go_together() {
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), seen(1, 1));
    assert_eq!(bench.wanted(DOWN), ["down mcm 1", "down ca 1"]);
    bench.done(DOWN, "down ca 1", "ca", held(1));
    assert_eq!(
        bench.wanted(DOWN),
        ["down mcm 1"],
        "the slow one does not keep the fast one back, but the level"
    );
}

#[test]
fn up_restores_counts_after_delays_and_cleans_up() {
    let mut bench = Bench::new(held(2), held(1), held(1));
    let unready = ResourceState {
        ready: 0,
        ..recorded(2)
    };
    bench.done(UP, "scale kcm 2", "kcm", unready);
    assert_eq!(bench.wanted(UP), [""; 0], "protected until it is ready");
    assert_eq!(bench.steps(UP), [Step::Waiting, Step::Pending, Step::Pending]);
    bench.see("kcm", recorded(2));
    bench.done(UP, "clean kcm", "kcm", seen(2, 1));
    let started = bench.now;
    let steps = bench.next(UP);
    assert_eq!(steps.status.resources[1].step, Step::Delayed);
    assert_eq!(steps.wake, Some(started + 30 * S));
    bench.now += 10 * S;
    assert_eq!(
        bench.next(UP).wake,
        Some(started + 30 * S),
        "the delay counts once"
    );
    bench.now += 20 * S;
    bench.done(UP, "scale mcm 1", "mcm", recorded(1));
    assert_eq!(
        bench.wanted(UP),
        ["clean mcm"],
        "no second delay in the same level"
    );
    bench.done(UP, "clean mcm", "mcm", seen(1, 1));
    bench.done(UP, "scale ca 1", "ca", recorded(1));
    bench.done(UP, "clean ca", "ca", seen(1, 1));
    assert_eq!(bench.state(UP), FlowState::Settled);
}

#[test]
fn a_healthy_shoot_with_nothing_to_write_is_settled_even_when_unready() {
    let mut bench = Bench::new(seen(1, 0), seen(1, 1), Observed::Absent);
    let steps = bench.next(UP);
    assert_eq!(
        (steps.status.state, steps.wake, steps.finished),
        (FlowState::Settled, None, false)
    );
    // But an unready level keeps the next one back once there is something to do there.
    bench.see("mcm", held(1));
    assert_eq!(bench.steps(UP), [Step::Waiting, Step::Pending, Step::Absent]);
}

#[test]
fn an_initial_delay_does_not_count_without_work() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 0), held(1));
    assert_eq!(
        bench.steps(UP),
        [Step::Reached, Step::Waiting, Step::Pending],
        "nothing to write at mcm"
    );
    bench.see("mcm", seen(1, 1));
    assert_eq!(bench.wanted(UP), ["scale ca 1"]);
}

#[test]
fn absent_optional_is_skipped_and_absent_mandatory_fails_visibly() {
    let mut bench = Bench::new(seen(1, 1), Observed::Absent, Observed::Absent);
    let steps = bench.next(DOWN);
    assert_eq!(steps.status.state, FlowState::Failed);
    assert_eq!(steps.status.level, Some(0));
    assert_eq!(steps.alerts.len(), 1);
    assert_eq!(
        (steps.actions.len(), steps.wake),
        (0, None),
        "the watch will tell"
    );
    assert_eq!(bench.next(DOWN).alerts, [], "reported once");
    bench.see("mcm", seen(1, 1));
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"]);
}

#[test]
fn a_contrary_direction_turns_at_the_next_write() {
    // Before anything was scaled.
    let mut bench = Bench::new(seen(1, 1), recorded(1), Observed::Absent);
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"]);
    assert_eq!(bench.wanted(UP), [""; 0], "the initial delay of mcm");
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["clean mcm"]);
    // While a write is under way: nothing is done to its resource until its end is known.
    let mut bench = Bench::new(seen(1, 1), recorded(1), Observed::Absent);
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    assert_eq!(bench.wanted(UP), [""; 0]);
    bench.flow.finish(bench.now, &action, ActionOutcome::Done);
    assert_eq!(bench.wanted(UP), [""; 0], "what is seen is older than the write");
    bench.see("mcm", held(1));
    bench.next(UP);
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["scale mcm 1"]);
    // While a write on the resource that now comes first is under way: the next level waits for its end.
    let mut bench = Bench::new(seen(2, 2), held(1), Observed::Absent);
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    assert_eq!(bench.steps(UP), [Step::Writing, Step::Pending, Step::Absent]);
    bench.flow.finish(bench.now, &action, ActionOutcome::Done);
    assert_eq!(bench.steps(UP), [Step::Waiting, Step::Pending, Step::Absent]);
    bench.see("kcm", recorded(2));
    assert_eq!(bench.wanted(UP), ["clean kcm"]);
    // While a try backs off: the other direction starts fresh.
    let mut bench = Bench::new(held(2), held(1), Observed::Absent);
    bench.answer(
        UP,
        "scale kcm 2",
        ActionOutcome::Refused {
            why: "500".into(),
            retry_after: Some(60 * S),
        },
    );
    assert_eq!(bench.steps(UP)[0], Step::BackingOff);
    assert_eq!(bench.state(DOWN), FlowState::Settled);
    assert_eq!(bench.wanted(UP), ["scale kcm 2"]);
}

#[test]
fn holding_does_nothing() {
    let mut bench = Bench::new(seen(1, 1), recorded(1), held(1));
    let steps = bench.next(None);
    assert_eq!(
        (steps.status.state, steps.actions.len(), steps.wake),
        (FlowState::Holding, 0, None)
    );
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    assert_eq!(bench.steps(None)[1], Step::Writing, "what is under way is shown");
}

#[test]
fn while_holding_only_an_optional_resource_is_absent() {
    let mut bench = Bench::new(Observed::Absent, seen(1, 1), Observed::Absent);
    assert_eq!(bench.steps(None), [Step::Pending, Step::Pending, Step::Absent]);
}

#[test]
fn the_initial_delay_goes_on_while_holding() {
    let mut bench = Bench::new(seen(2, 2), held(1), held(1));
    let due = bench.now + 30 * S;
    assert_eq!(bench.next(UP).wake, Some(due));
    for _ in 0..5 {
        // Every few seconds a probe is throttled, for a moment.
        bench.now += 4 * S;
        bench.next(None);
        bench.now += S;
        assert_eq!(
            bench.next(UP).wake,
            Some(due),
            "once, from the start of the level"
        );
    }
    bench.now = due;
    assert_eq!(bench.wanted(UP), ["scale mcm 1"]);
    // The contrary direction begins anew, with a hold in between or without.
    for hold in [false, true] {
        for direction in [DOWN, UP] {
            if hold {
                bench.next(None);
            }
            bench.next(direction);
        }
        assert_eq!(bench.next(UP).wake, Some(bench.now + 30 * S));
    }
}

#[test]
fn a_hold_in_which_somebody_else_may_have_acted_forgets_the_initial_delay() {
    let mut bench = Bench::new(seen(2, 2), held(1), held(1));
    bench.next(UP);
    bench.now += 20 * S;
    bench.next(None);
    bench.flow.take_over();
    bench.answer(UP, "read kcm", ActionOutcome::Done);
    assert_eq!(bench.next(UP).wake, Some(bench.now + 30 * S));
}

#[test]
fn replicas_that_the_object_does_not_show_are_read_first() {
    let mut bench = Bench::new(seen(1, 1), unread(), Observed::Absent);
    bench.done(DOWN, "read mcm", "mcm", seen(2, 2));
    assert_eq!(bench.wanted(DOWN), ["down mcm 2"]);
    let mut bench = Bench::new(seen(1, 1), unread(), Observed::Absent);
    assert_eq!(bench.wanted(None), [""; 0]);
}

#[test]
fn a_released_shoot_is_cleaned_up_without_delay_and_then_held() {
    let release = Some(Direction::Release);
    let mut bench = Bench::new(held(2), held(1), Observed::Absent);
    bench.done(release, "clean kcm", "kcm", seen(0, 0));
    bench.done(release, "clean mcm", "mcm", seen(0, 0));
    let steps = bench.next(release);
    assert_eq!(
        (
            steps.status.state,
            steps.actions.len(),
            steps.wake,
            steps.finished
        ),
        (FlowState::Holding, 0, None, false)
    );
    // A write down that was on its way is waited for.
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), Observed::Absent);
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    assert_eq!(bench.wanted(release), [""; 0]);
    bench.flow.finish(bench.now, &action, ActionOutcome::Done);
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(release), ["clean mcm"]);
}
