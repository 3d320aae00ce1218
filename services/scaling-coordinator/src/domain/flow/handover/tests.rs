use super::super::op::MAX_TRIES;
use super::super::tests::bench::{Bench, DOWN, UP, refused, unknown};
use super::super::*;
use crate::domain::observed::Observed;
use crate::domain::testing::{S, held, recorded, seen, unread};

/// A shoot that this replica has just taken over.
fn taken_over(kcm: impl Into<Observed>, mcm: impl Into<Observed>, ca: impl Into<Observed>) -> Bench {
    let mut bench = Bench::new(kcm, mcm, ca);
    bench.flow = Flow::default();
    bench
}

#[test]
fn a_level_that_only_looks_reached_is_read_before_the_next_one() {
    let mut bench = taken_over(held(2), held(1), held(1));
    bench.see("kcm", seen(2, 2));
    let steps = bench.next(UP);
    assert_eq!(
        (steps.status.level, steps.status.resources[0].step),
        (Some(0), Step::Waiting)
    );
    assert!(
        steps.status.resources[0].message.contains("taken the shoot over"),
        "{}",
        steps.status.resources[0].message
    );
    assert_eq!(bench.wanted(UP), ["read kcm"]);
    // It was scaled down by the replica before; the watch had not brought that yet.
    bench.done(UP, "read kcm", "kcm", held(2));
    assert_eq!(bench.wanted(UP), ["scale kcm 2"]);
}

#[test]
fn what_was_read_or_written_once_is_believed() {
    let mut bench = taken_over(seen(2, 2), held(1), Observed::Absent);
    assert_eq!(
        bench.wanted(DOWN),
        ["read mcm", "read ca"],
        "kcm must be written later"
    );
    bench.answer(DOWN, "read mcm", ActionOutcome::Done);
    bench.answer(DOWN, "read ca", ActionOutcome::Done);
    bench.done(DOWN, "down kcm 2", "kcm", held(2));
    assert_eq!(bench.state(DOWN), FlowState::Settled);
    bench.done(UP, "scale kcm 2", "kcm", recorded(2));
    bench.done(UP, "clean kcm", "kcm", seen(2, 2));
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), [""; 0], "the initial delay begins now");
    bench.now += 30 * S;
    assert_eq!(
        bench.wanted(UP),
        ["scale mcm 1"],
        "kcm was written and needs no read"
    );
}

#[test]
fn a_loss_of_a_healthy_shoot_needs_no_read() {
    let mut bench = taken_over(seen(2, 2), seen(1, 1), seen(1, 1));
    assert_eq!(bench.wanted(DOWN), ["down mcm 1", "down ca 1"]);
    for name in ["mcm", "ca"] {
        bench.done(DOWN, &format!("down {name} 1"), name, held(1));
    }
    assert_eq!(bench.wanted(DOWN), ["down kcm 2"]);
}

#[test]
fn nothing_is_read_without_anything_to_write() {
    for direction in [UP, DOWN, None] {
        let (one, other) = if direction == DOWN {
            (held(2), held(1))
        } else {
            (seen(2, 2), seen(1, 1))
        };
        let mut bench = taken_over(one, other, Observed::Absent);
        assert_eq!(bench.wanted(direction), [""; 0], "{direction:?}");
    }
    // Something that is broken, or still on its way, keeps the level and is no reason either.
    let mut bench = taken_over(Observed::Absent, held(1), Observed::Absent);
    assert_eq!(
        (bench.state(DOWN), bench.wanted(DOWN)),
        (FlowState::Failed, Vec::<String>::new())
    );
}

#[test]
fn a_read_that_fails_is_tried_again_and_nothing_is_written_before() {
    let mut bench = taken_over(seen(2, 2), held(1), held(1));
    bench.answer(DOWN, "read ca", ActionOutcome::Done);
    for failures in 1..=MAX_TRIES {
        bench.answer(DOWN, "read mcm", refused());
        assert_eq!(bench.wanted(DOWN), [""; 0], "after {failures} failures");
        bench.now = bench.next(DOWN).wake.unwrap();
    }
    let failed = bench.next(DOWN);
    assert_eq!(failed.status.level, Some(0));
    bench.answer(DOWN, "read mcm", ActionOutcome::Done);
    assert_eq!(bench.wanted(DOWN), ["down kcm 2"]);
}

#[test]
fn another_tenure_begins_with_nothing() {
    let mut bench = Bench::new(seen(2, 2), held(1), held(1));
    assert_eq!(bench.wanted(DOWN), ["down kcm 2"]);
    bench.flow.take_over();
    assert_eq!(bench.wanted(DOWN), ["read mcm", "read ca"]);
    // A read that was under way when the shoot went elsewhere and came back tells nothing.
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    bench.flow.take_over();
    bench.flow.finish(bench.now, &action, ActionOutcome::Done);
    assert_eq!(bench.wanted(DOWN), ["read mcm", "read ca"]);
    bench.answer(DOWN, "read mcm", ActionOutcome::Done);
    assert_eq!(bench.wanted(DOWN), ["read ca"]);
    // Neither does one without an answer, nor a write that has missed.
    bench.answer(DOWN, "read ca", unknown());
    bench.now += S;
    assert_eq!(bench.wanted(DOWN), ["read ca"]);
}

#[test]
fn a_conflict_confirms_nothing() {
    let mut bench = taken_over(seen(2, 2), recorded(1), held(1));
    bench.answer(DOWN, "down mcm 1", ActionOutcome::Conflict);
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["read mcm", "read ca"]);
}

#[test]
fn the_initial_delay_runs_after_a_read_all_the_same() {
    let mut bench = taken_over(seen(2, 2), unread(), Observed::Absent);
    bench.done(UP, "read mcm", "mcm", held(1));
    bench.done(UP, "read kcm", "kcm", seen(2, 2));
    assert_eq!(bench.steps(UP)[1], Step::Delayed);
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["scale mcm 1"]);
}

#[test]
fn the_answer_to_a_request_of_an_earlier_flow_proves_nothing() {
    let mut bench = taken_over(seen(2, 2), recorded(1), held(1));
    let write = bench.next(DOWN).actions.remove(0);
    bench.flow.start(bench.now, &write);
    bench.flow = Flow::default();
    bench.flow.finish(bench.now, &write, ActionOutcome::Done);
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["read mcm", "read ca"]);
}
