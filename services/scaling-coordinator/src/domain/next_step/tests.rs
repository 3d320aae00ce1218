mod bench;
mod tries;

use watchdog_api::names::COORDINATOR_FIELD_MANAGER;
use watchdog_api::workload::FieldWriters;

use self::bench::{Bench, DOWN, UP, refused};
use super::*;
use crate::domain::observed::Observed;
use crate::domain::request::RequestOutcome;
use crate::domain::testing::{S, held, recorded, seen, starting, stopping, unread};

#[test]
fn down_runs_level_by_level_and_waits_for_ready_replicas() {
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), Observed::Absent);
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"]);
    assert_eq!(bench.steps(DOWN), "Pending Writing Absent");
    let message = &bench.next(DOWN).status.resources[0].message;
    assert_eq!(message, "level 0 comes first; it has 2 replicas, target 0");
    bench.done(DOWN, "down mcm 1", stopping(1));
    assert_eq!(bench.wanted(DOWN), [""; 0]);
    assert_eq!(
        bench.steps(DOWN),
        "Pending Waiting Absent",
        "scaled is not reached"
    );
    bench.see("mcm", held(1));
    bench.done(DOWN, "down kcm 2", stopping(2));
    assert_eq!(bench.state(DOWN), FlowState::Running);
    bench.see("kcm", held(2));
    assert_eq!(bench.state(DOWN), FlowState::Settled);
    assert_eq!(bench.next(DOWN).wake, None, "nothing is polled");
}

#[test]
fn the_resources_of_a_level_go_together() {
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), seen(1, 1));
    assert_eq!(bench.wanted(DOWN), ["down mcm 1", "down ca 1"]);
    bench.done(DOWN, "down ca 1", held(1));
    assert_eq!(
        bench.wanted(DOWN),
        ["down mcm 1"],
        "the slow one does not keep the fast one back, but the level"
    );
}

#[test]
fn up_restores_counts_after_delays_and_cleans_up() {
    let mut bench = Bench::new(held(2), held(1), held(1));
    bench.done(UP, "scale kcm 2", starting(2));
    assert_eq!(bench.wanted(UP), [""; 0], "protected until it is ready");
    assert_eq!(bench.steps(UP), "Waiting Pending Pending");
    bench.see("kcm", recorded(2));
    bench.done(UP, "clean kcm", seen(2, 1));
    let started = bench.now;
    let steps = bench.next(UP);
    assert_eq!(steps.status.resources[1].state, ResourceState::Delayed);
    let message = &steps.status.resources[1].message;
    assert!(
        message.ends_with("waiting for the initial delay of 30s"),
        "{message}"
    );
    assert_eq!(steps.wake, Some(started + 30 * S));
    bench.now += 10 * S;
    assert_eq!(
        bench.next(UP).wake,
        Some(started + 30 * S),
        "the delay counts once"
    );
    bench.now += 20 * S;
    bench.done(UP, "scale mcm 1", recorded(1));
    assert_eq!(
        bench.wanted(UP),
        ["clean mcm"],
        "no second delay in the same level"
    );
    bench.done(UP, "clean mcm", seen(1, 1));
    bench.done(UP, "scale ca 1", recorded(1));
    bench.done(UP, "clean ca", seen(1, 1));
    assert_eq!(bench.state(UP), FlowState::Settled);
}

#[test]
fn a_healthy_shoot_with_nothing_to_write_is_settled_even_when_unready() {
    let mut bench = Bench::new(seen(1, 0), seen(1, 1), Observed::Absent);
    let steps = bench.next(UP);
    assert_eq!((steps.status.state, steps.wake), (FlowState::Settled, None));
    // But an unready level keeps the next one back once there is something to do there.
    bench.see("mcm", held(1));
    assert_eq!(bench.steps(UP), "Waiting Pending Absent");
}

#[test]
fn an_initial_delay_does_not_count_without_work() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 0), held(1));
    assert_eq!(
        bench.steps(UP),
        "Reached Waiting Pending",
        "nothing to write at mcm"
    );
    bench.see("mcm", seen(1, 1));
    assert_eq!(bench.wanted(UP), ["scale ca 1"]);
}

#[test]
fn while_holding_only_an_optional_resource_is_absent() {
    let mut bench = Bench::new(Observed::Absent, seen(1, 1), Observed::Absent);
    assert_eq!(bench.steps(None), "Pending Pending Absent");
    bench.forget("ca");
    assert_eq!(
        bench.steps(None),
        "Pending Pending Pending",
        "it may exist and was not listed"
    );
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
fn replicas_that_the_object_does_not_show_are_read_first() {
    let mut bench = Bench::new(seen(1, 1), unread(), Observed::Absent);
    bench.done(DOWN, "read mcm", seen(2, 2));
    assert_eq!(bench.wanted(DOWN), ["down mcm 2"]);
    let mut bench = Bench::new(seen(1, 1), unread(), Observed::Absent);
    assert_eq!(bench.wanted(None), [""; 0]);
}

#[test]
fn pods_of_an_earlier_status_are_read_again_only_where_something_depends_on_them() {
    let outdated = |seen| ObservedResource {
        outdated: true,
        ..seen
    };
    for ready in [0, 1] {
        let mut bench = Bench::new(seen(1, 1), outdated(seen(1, ready)), Observed::Absent);
        let next = bench.next(UP);
        assert_eq!((next.status.state, next.wake), (FlowState::Settled, None));
        assert_eq!(next.requests, []);
        // To scale the level above rests on them.
        bench.see("ca", held(1));
        assert_eq!(bench.wanted(UP), ["read mcm"]);
    }
    let mut bench = Bench::new(held(2), outdated(held(1)), Observed::Absent);
    assert_eq!(
        (bench.state(DOWN), bench.wanted(DOWN)),
        (FlowState::Settled, vec![])
    );
    bench.see("mcm", outdated(stopping(1)));
    assert_eq!(bench.wanted(DOWN), ["read mcm"]);
    bench.see("mcm", outdated(starting(1)));
    assert_eq!(bench.wanted(UP), ["scale kcm 2"]);
    bench.see("kcm", seen(2, 2));
    assert_eq!(bench.wanted(UP), ["read mcm"]);
}

#[test]
fn a_level_starts_on_what_was_just_read() {
    let mut bench = Bench::new(seen(2, 2), held(1), Observed::Absent);
    bench.unread = ["kcm", "mcm", "ca"].into();
    let next = bench.next(DOWN);
    assert!(next.prepares_write);
    assert_eq!(
        bench.wanted(DOWN),
        ["read mcm", "read ca"],
        "of the level below only"
    );
    bench.answer(DOWN, "read ca", RequestOutcome::Done);
    assert_eq!(bench.wanted(DOWN), ["read mcm"]);
    // It shows that the watch was wrong.
    bench.done(DOWN, "read mcm", seen(1, 1));
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"]);
    bench.done(DOWN, "down mcm 1", held(1));
    assert_eq!(bench.wanted(DOWN), ["down kcm 2"]);
    // Nothing is read where nothing must be written.
    let mut bench = Bench::new(held(2), held(1), held(1));
    bench.unread = ["kcm", "mcm", "ca"].into();
    assert_eq!(
        (bench.wanted(DOWN), bench.state(DOWN)),
        (Vec::new(), FlowState::Settled)
    );
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), held(1));
    bench.unread = ["kcm", "mcm", "ca"].into();
    assert_eq!(bench.wanted(UP), ["read kcm", "read mcm"]);
    // What was dropped from the configuration and is not held down belongs to others.
    bench.dropped.insert("kcm");
    assert_eq!(bench.wanted(UP), ["read mcm"]);
}

/// On a slow API server it takes longer than a read of what is waited for may.
#[test]
fn the_read_for_the_next_level_has_a_time_of_its_own() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.done(DOWN, "down mcm 1", stopping(1));
    bench.now = bench.next(DOWN).wake.unwrap();
    bench.answer(DOWN, "read mcm", refused());
    bench.now += 27 * S;
    bench.see("mcm", held(1));
    bench.unread.insert("mcm");
    let requests = bench.next(DOWN).requests;
    assert_eq!(requests.iter().map(bench::text).collect::<Vec<_>>(), ["read mcm"]);
    let within = bench.hints.begin(bench.now, &requests[0]);
    assert_eq!(within, requests[0].timeout);
}

#[test]
fn removing_the_annotation_rests_on_the_resource_alone() {
    let mut bench = Bench::new(seen(2, 2), recorded(1), held(1));
    bench.unread = ["kcm", "mcm", "ca"].into();
    bench.next(UP);
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["clean mcm"]);
    assert!(!bench.next(UP).prepares_write);
    bench.done(UP, "clean mcm", seen(1, 1));
    assert_eq!(
        bench.wanted(UP),
        ["read kcm", "read mcm"],
        "to scale rests on all below"
    );
}

#[test]
fn a_read_that_fails_holds_the_next_level_up_and_is_tried_again() {
    let mut bench = Bench::new(seen(2, 2), held(1), Observed::Absent);
    bench.unread.insert("mcm");
    for attempt in 1..=3 {
        bench.answer(DOWN, "read mcm", refused());
        let next = bench.next(DOWN);
        assert_eq!((next.requests.len(), next.prepares_write), (0, false));
        let why = next.alerts.iter().map(|alert| &*alert.why);
        assert!(why.eq(refused().error().filter(|_| attempt == 3)));
        bench.now = next.wake.unwrap();
    }
    bench.answer(DOWN, "read mcm", RequestOutcome::Done);
    assert_eq!(bench.wanted(DOWN), ["down kcm 2"]);
}

#[test]
fn what_is_absent_and_not_optional_is_at_zero_on_the_way_down_and_fails_on_the_way_up() {
    let mut bench = Bench::new(seen(1, 1), Observed::Absent, Observed::Absent);
    let next = bench.next(DOWN);
    let [warning] = &next.alerts[..] else {
        panic!("{:?}", next.alerts)
    };
    assert!(
        !warning.failed && warning.why.contains("not optional"),
        "{warning:?}"
    );
    assert_eq!(bench.next(DOWN).alerts, [], "reported once");
    assert_eq!(bench.wanted(DOWN), ["down kcm 1"]);
    bench.done(DOWN, "down kcm 1", held(1));
    assert_eq!(bench.steps(DOWN), "Reached Absent Absent");
    assert_eq!(bench.next(DOWN).alerts, [], "reported once");
    bench.done(UP, "scale kcm 1", recorded(1));
    bench.done(UP, "clean kcm", seen(1, 1));
    let next = bench.next(UP);
    assert_eq!(
        (next.status.state, next.status.level),
        (FlowState::Failed, Some(1))
    );
    assert!(next.alerts[0].failed);
    assert_eq!((next.requests.len(), next.wake), (0, None), "the watch will tell");
    assert_eq!(bench.next(UP).alerts, [], "reported once");
    bench.see("mcm", held(1));
    bench.next(UP);
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["scale mcm 1"]);
}

#[test]
fn a_contrary_direction_turns_at_the_next_write() {
    let mut bench = Bench::new(seen(1, 1), recorded(1), Observed::Absent);
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"]);
    assert_eq!(bench.wanted(UP), [""; 0], "the initial delay of mcm");
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["clean mcm"]);
    // While a try backs off: the other direction starts fresh.
    let mut bench = Bench::new(held(2), held(1), Observed::Absent);
    let retry_after = Some(60 * S);
    let why = "500".into();
    bench.answer(UP, "scale kcm 2", RequestOutcome::Refused { why, retry_after });
    assert_eq!(bench.steps(UP), "BackingOff Pending Absent");
    assert_eq!(bench.state(DOWN), FlowState::Settled);
    assert_eq!(bench.wanted(UP), ["scale kcm 2"]);
    // The end of a write of the direction before means nothing.
    let down = Request {
        direction: Direction::Down,
        ..bench.next(UP).requests[0].clone()
    };
    bench.hints.end(bench.now, &down, &refused());
    assert_eq!(bench.wanted(UP), ["scale kcm 2"]);
}

#[test]
fn losing_the_hints_costs_only_time() {
    let mut bench = Bench::new(held(2), held(1), held(1));
    bench.done(UP, "scale kcm 2", starting(2));
    bench.hints = FlowHints::default();
    assert_eq!(bench.steps(UP), "Waiting Pending Pending");
    bench.see("kcm", recorded(2));
    bench.done(UP, "clean kcm", seen(2, 1));
    bench.next(UP);
    bench.now += 20 * S;
    bench.hints = FlowHints::default();
    assert_eq!(
        bench.next(UP).wake,
        Some(bench.now + 30 * S),
        "the delay begins anew"
    );
}

#[test]
fn a_released_shoot_is_cleaned_up_without_delay_and_then_held() {
    let release = Some(Direction::Release);
    let mut bench = Bench::new(held(2), held(1), Observed::Absent);
    bench.unread = ["kcm", "mcm", "ca"].into();
    bench.done(release, "clean kcm", seen(0, 0));
    bench.done(release, "clean mcm", seen(0, 0));
    let next = bench.next(release);
    let found = (next.status.state, next.requests.len(), next.wake);
    assert_eq!(found, (FlowState::Holding, 0, None));
}

#[test]
fn mode_observe_keeps_back_what_restores_nothing_of_its_own() {
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), Observed::Absent);
    bench.mode = Mode::Observe;
    bench.unread = ["kcm", "mcm", "ca"].into();
    let kept_back = |next: &NextStep| next.kept_back.iter().map(bench::text).collect::<Vec<_>>();
    let next = bench.next(DOWN);
    assert_eq!(kept_back(&next), ["down mcm 1"]);
    assert_eq!((next.status.state, next.requests), (FlowState::KeptBack, vec![]));
    assert_eq!(
        bench.steps(DOWN),
        "Pending KeptBack Absent",
        "nothing is simulated"
    );
    // Another watchdog has scaled it down: the next level rests on no read, because nothing is written.
    bench.see("mcm", held(1));
    assert_eq!(kept_back(&bench.next(DOWN)), ["down kcm 2"]);
    // What another watchdog holds down is its own; what this program holds down is restored.
    bench.see("kcm", held(2));
    assert_eq!(kept_back(&bench.next(UP)), ["scale kcm 2"]);
    let own = FieldWriters {
        replicas: None,
        protection: Some(COORDINATOR_FIELD_MANAGER.to_owned()),
    };
    bench.see(
        "kcm",
        ObservedResource {
            writers: Some(Box::new(own)),
            ..held(2)
        },
    );
    assert_eq!(bench.wanted(UP), ["scale kcm 2"]);
    assert_eq!(bench.state(UP), FlowState::Running);
}
