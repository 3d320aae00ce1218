use super::super::*;
use super::bench::{Bench, DOWN, MS, UP, refused, unknown};
use crate::domain::observed::{Observed, ResourceState};
use crate::domain::testing::{S, held, recorded, seen};

#[test]
fn three_tries_then_the_level_has_failed_and_is_tried_again() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    for attempt in 1..=3 {
        bench.answer(DOWN, "down mcm 1", refused());
        let steps = bench.next(DOWN);
        assert_eq!(steps.status.resources[1].attempts, attempt);
        let message = &steps.status.resources[1].message;
        assert!(message.contains(refused().error().unwrap()), "{message}");
        assert_eq!(
            steps.alerts.len(),
            usize::from(attempt == 3),
            "an alert when all have failed"
        );
        let expected = if attempt == 3 {
            FlowState::Failed
        } else {
            FlowState::Running
        };
        assert_eq!(steps.status.state, expected);
        assert_eq!(steps.status.retry_at, steps.wake.filter(|_| attempt == 3));
        assert_eq!(steps.actions, [], "it backs off");
        bench.now = steps.wake.unwrap();
    }
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"], "while the verdict stands");
    assert_eq!(bench.state(DOWN), FlowState::Running);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        for _ in 0..3 {
            bench.answer(DOWN, "down mcm 1", refused());
            let steps = bench.next(DOWN);
            if let Some(retry) = steps.status.retry_at {
                pauses.push((retry - bench.now).as_secs());
            }
            bench.now = steps.wake.unwrap();
        }
    }
    assert_eq!(pauses, [10, 20, 40, 60, 60, 60], "the pause grows to a bound");
    bench.done(DOWN, "down mcm 1", "mcm", held(1));
    assert_eq!(
        bench.wanted(DOWN),
        ["down kcm 1"],
        "the next level starts as soon as this one has worked"
    );
}

#[test]
fn the_server_may_ask_for_a_longer_pause_but_not_for_ever() {
    for (asked, expected) in [(0, 500 * MS), (7, 7 * S), (3600, 60 * S)] {
        let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
        let retry_after = Some(asked * S);
        bench.answer(
            DOWN,
            "down mcm 1",
            ActionOutcome::Refused {
                why: "429".into(),
                retry_after,
            },
        );
        assert_eq!(bench.next(DOWN).wake, Some(bench.now + expected));
    }
}

#[test]
fn a_timeout_bounds_the_wait_and_readiness_ends_the_failure() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.done(DOWN, "down mcm 1", "mcm", ResourceState { ready: 1, ..held(1) });
    let begun = bench.now;
    bench.next(DOWN);
    bench.now = begun + 30 * S;
    for _ in 0..2 {
        assert_eq!(bench.steps(DOWN)[1], Step::BackingOff);
        bench.now = bench.next(DOWN).wake.unwrap();
        assert_eq!(bench.steps(DOWN)[1], Step::Waiting);
        bench.now += 30 * S;
    }
    let steps = bench.next(DOWN);
    assert_eq!(steps.status.state, FlowState::Failed);
    assert!(
        steps.alerts[0]
            .1
            .contains("not done within 30s: it is scaled to 0, but 1 are still ready")
    );
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["down kcm 1"]);
}

/// kcm is scaled up and its level has failed, because it did not become ready.
fn failed_to_start() -> (Bench, ResourceState) {
    let mut bench = Bench::new(held(1), held(1), Observed::Absent);
    let starting = ResourceState {
        ready: 0,
        ..recorded(1)
    };
    bench.done(UP, "scale kcm 1", "kcm", starting.clone());
    while bench.state(UP) != FlowState::Failed {
        bench.now = bench.next(UP).wake.unwrap();
        if !bench.wanted(UP).is_empty() {
            bench.answer(UP, "read kcm", ActionOutcome::Done);
        }
    }
    (bench, starting)
}

#[test]
fn what_is_ready_after_its_level_failed_is_cleaned_up_at_once() {
    let (mut bench, _) = failed_to_start();
    bench.see("kcm", recorded(1));
    assert_eq!(bench.wanted(UP), ["clean kcm"]);
}

#[test]
fn a_watch_that_lists_again_ends_no_failure() {
    let (mut bench, starting) = failed_to_start();
    bench.forget("kcm");
    bench.next(UP);
    bench.see("kcm", starting);
    assert_eq!(bench.state(UP), FlowState::Failed);
}

#[test]
fn the_timeout_covers_the_writes_of_a_try() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.answer(DOWN, "down mcm 1", ActionOutcome::Conflict);
    bench.see("mcm", seen(2, 2));
    bench.now += 29 * S;
    let action = bench.next(DOWN).actions[0].clone();
    let within = bench.flow.clone().start(bench.now, &action);
    assert_eq!(within, S, "what remains of the timeout");
    bench.now += S;
    assert_eq!(bench.steps(DOWN)[1], Step::BackingOff);
}

#[test]
fn a_write_that_may_have_been_applied_is_looked_at_before_the_next_one() {
    let mut bench = Bench::new(seen(1, 1), recorded(1), Observed::Absent);
    bench.answer(DOWN, "down mcm 1", unknown());
    let pause = bench.next(DOWN);
    assert_eq!(pause.status.resources[1].step, Step::BackingOff);
    bench.now = pause.wake.unwrap();
    // It was not applied after all: reading shows the same version.
    bench.answer(DOWN, "read mcm", ActionOutcome::Done);
    bench.answer(DOWN, "down mcm 1", unknown());
    // It was applied: the watch shows it, and nothing waits for the back-off.
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["down kcm 1"]);
}

#[test]
fn an_applied_write_is_waited_for_and_then_read() {
    let mut bench = Bench::new(seen(1, 1), recorded(1), Observed::Absent);
    bench.answer(DOWN, "down mcm 1", ActionOutcome::Done);
    let steps = bench.next(DOWN);
    assert_eq!(
        (steps.actions.len(), steps.status.resources[1].step),
        (0, Step::Waiting)
    );
    bench.now = steps.wake.unwrap();
    bench.answer(DOWN, "read mcm", unknown());
    assert_eq!(bench.steps(DOWN)[1], Step::BackingOff);
    bench.now = bench.next(DOWN).wake.unwrap();
    bench.answer(DOWN, "read mcm", ActionOutcome::Done);
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["down kcm 1"]);
}

#[test]
fn conflicts_are_decided_again_but_not_for_ever() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.answer(DOWN, "down mcm 1", ActionOutcome::Conflict);
    assert_eq!(
        bench.steps(DOWN)[1],
        Step::Waiting,
        "for the watch to show what somebody wrote"
    );
    bench.see("mcm", seen(3, 3));
    assert_eq!(bench.wanted(DOWN), ["down mcm 3"]);
    for replicas in [4, 5, 6, 7, 8, 9] {
        bench.next(DOWN);
        let action = bench.next(DOWN).actions[0].clone();
        bench.flow.start(bench.now, &action);
        bench.flow.finish(bench.now, &action, ActionOutcome::Conflict);
        bench.see("mcm", seen(replicas, replicas));
    }
    assert_eq!(
        bench.next(DOWN).status.resources[1].attempts,
        2,
        "a busy writer costs a try"
    );
}

#[test]
fn tries_and_their_pauses_go_on_after_a_hold() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    for attempt in 1..=3 {
        bench.answer(DOWN, "down mcm 1", refused());
        let until = bench.next(DOWN).wake.unwrap();
        bench.next(None);
        let steps = bench.next(DOWN);
        assert_eq!(
            (steps.status.resources[1].attempts, steps.wake),
            (attempt, Some(until))
        );
        bench.now = until;
    }
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"], "another round");
}

#[test]
fn no_try_times_out_while_holding() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.done(DOWN, "down mcm 1", "mcm", ResourceState { ready: 1, ..held(1) });
    bench.next(DOWN);
    bench.now += 20 * S;
    bench.next(None);
    bench.now += 60 * S;
    let times_out = bench.now + 10 * S;
    assert_eq!(bench.steps(DOWN)[1], Step::Waiting);
    bench.now = times_out - MS;
    assert_eq!(
        bench.steps(DOWN)[1],
        Step::Waiting,
        "20 of 30 s are over, and no more"
    );
    bench.now = times_out;
    assert_eq!(bench.steps(DOWN)[1], Step::BackingOff);
}

#[test]
fn the_end_of_a_request_counts_while_holding() {
    let mut bench = Bench::new(seen(1, 1), recorded(1), Observed::Absent);
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    bench.next(None);
    bench.flow.finish(bench.now, &action, unknown());
    bench.next(None);
    assert_eq!(bench.steps(DOWN)[1], Step::BackingOff);
    // It is seen to have worked: nothing waits for the back-off.
    bench.next(None);
    bench.see("mcm", held(1));
    bench.next(None);
    assert_eq!(bench.wanted(DOWN), ["down kcm 1"]);
}

#[test]
fn a_withdrawn_write_costs_nothing() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.answer(
        DOWN,
        "down mcm 1",
        ActionOutcome::Cancelled { why: "the Cluster" },
    );
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"]);
}

#[test]
fn what_is_waited_for_is_read_when_nothing_new_is_seen() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    let stopping = || ResourceState { ready: 1, ..held(1) };
    bench.done(DOWN, "down mcm 1", "mcm", stopping());
    let begun = bench.now;
    let mut read_after = Vec::new();
    for outcome in [ActionOutcome::Done, refused(), unknown()] {
        bench.now = bench.next(DOWN).wake.unwrap();
        bench.answer(DOWN, "read mcm", outcome);
        assert_eq!(
            bench.steps(DOWN)[1],
            Step::Waiting,
            "a read that fails is no failed try"
        );
        read_after.push((bench.now - begun).as_secs());
    }
    assert_eq!(read_after, [2, 6, 14]);
    // Something new: it is waited for from the start.
    bench.see("mcm", stopping());
    let wake = bench.next(DOWN).wake.unwrap();
    assert_eq!(wake, bench.now + 2 * S);
    bench.now = wake;
    bench.answer(DOWN, "read mcm", ActionOutcome::Done);
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["down kcm 1"]);
    // What was read is not read again for the next level.
    bench.done(DOWN, "down kcm 1", "kcm", held(1));
    assert_eq!(bench.next(DOWN).wake, None, "nothing is read once all is reached");
}
