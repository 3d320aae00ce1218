use super::super::*;
use super::bench::{Bench, DOWN, MS, UP, refused};
use crate::domain::observed::Observed;
use crate::domain::request::RequestOutcome;
use crate::domain::testing::{S, held, recorded, seen, starting, stopping};
use watchdog_api::workload::RecordedReplicas;

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
        assert_eq!(steps.requests, [], "it backs off");
        bench.now = steps.wake.unwrap();
    }
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"], "while the verdict stands");
    assert_eq!(bench.state(DOWN), FlowState::Running);
    let (mut pauses, mut alerts) = (Vec::new(), 0);
    for _ in 0..6 {
        for _ in 0..3 {
            bench.answer(DOWN, "down mcm 1", refused());
            let steps = bench.next(DOWN);
            alerts += steps.alerts.len();
            assert_eq!(bench.next(DOWN).alerts, [], "reported once");
            if let Some(retry) = steps.status.retry_at {
                pauses.push((retry - bench.now).as_secs());
            }
            bench.now = steps.wake.unwrap();
        }
    }
    assert_eq!(pauses, [10, 20, 40, 60, 60, 60], "the pause grows to a bound");
    assert_eq!(alerts, 6, "each round that fails is reported");
    bench.done(DOWN, "down mcm 1", held(1));
    assert_eq!(
        bench.wanted(DOWN),
        ["down kcm 1"],
        "the next level starts as soon as this one has worked"
    );
}

#[test]
fn in_a_loss_what_is_not_listed_is_read_and_nothing_waits_for_failed_reads_once_it_is_seen() {
    let mut bench = Bench::new(seen(2, 2), Observed::NotListed, Observed::NotListed);
    assert_eq!(bench.wanted(DOWN), ["read mcm", "read ca"]);
    bench.done(DOWN, "read ca", seen(1, 1));
    for _ in 0..3 {
        bench.answer(DOWN, "read mcm", refused());
        bench.now += S;
    }
    assert_eq!(bench.state(DOWN), FlowState::Failed);
    assert_eq!(bench.steps(DOWN), "Pending Failed Writing");
    assert_eq!(bench.wanted(DOWN), ["down ca 1"]);
    bench.see("mcm", seen(1, 1));
    assert_eq!(bench.wanted(DOWN), ["down mcm 1", "down ca 1"]);
}

#[test]
fn on_the_way_up_what_is_not_listed_is_read_once_the_flow_has_begun() {
    let mut bench = Bench::new(seen(2, 2), Observed::NotListed, Observed::Absent);
    assert_eq!(bench.wanted(UP), [""; 0], "one read of every healthy shoot");
    assert_eq!(bench.steps(UP), "Reached Waiting Absent");
    assert_eq!(bench.next(UP).wake, None);
    let mut bench = Bench::new(held(2), Observed::NotListed, Observed::Absent);
    bench.done(UP, "scale kcm 2", recorded(2));
    bench.done(UP, "clean kcm", seen(2, 2));
    bench.done(UP, "read mcm", held(1));
    bench.next(UP);
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["scale mcm 1"]);
    // What it wants may be in a later level that cannot begin before.
    let mut bench = Bench::new(Observed::NotListed, held(1), Observed::Absent);
    assert_eq!(bench.wanted(UP), ["read kcm"]);
}

#[test]
fn what_was_read_without_a_list_counts_for_one_loss_of_one_leader() {
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), Observed::Absent);
    for (wanted, begins) in [
        (None, false),
        (UP, true),
        (DOWN, true),
        (None, false),
        (DOWN, false),
        (UP, false),
    ] {
        assert_eq!(bench.hints.begins(wanted), begins, "{wanted:?}");
        bench.next(wanted);
    }
}

#[test]
fn the_server_may_ask_for_a_longer_pause_but_not_for_ever() {
    for (asked, expected) in [(0, 500 * MS), (7, 7 * S), (3600, 60 * S)] {
        let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
        let retry_after = Some(asked * S);
        bench.answer(
            DOWN,
            "down mcm 1",
            RequestOutcome::Refused {
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
    bench.done(DOWN, "down mcm 1", stopping(1));
    let begun = bench.now;
    bench.next(DOWN);
    bench.now = begun + 30 * S;
    for _ in 0..2 {
        assert_eq!(bench.steps(DOWN), "Pending BackingOff Absent");
        bench.now = bench.next(DOWN).wake.unwrap();
        assert_eq!(bench.steps(DOWN), "Pending Waiting Absent");
        bench.now += 30 * S;
    }
    let steps = bench.next(DOWN);
    assert_eq!(steps.status.state, FlowState::Failed);
    assert!(
        steps.alerts[0]
            .why
            .contains("not done within 30s: it is scaled to 0, but 1 are still ready")
    );
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["down kcm 1"]);
}

/// kcm is scaled up and its level has failed, because it did not become ready.
fn failed_to_start() -> Bench {
    let mut bench = Bench::new(held(1), held(1), Observed::Absent);
    bench.done(UP, "scale kcm 1", starting(1));
    while bench.state(UP) != FlowState::Failed {
        bench.now = bench.next(UP).wake.unwrap();
        if !bench.wanted(UP).is_empty() {
            bench.answer(UP, "read kcm", RequestOutcome::Done);
        }
    }
    bench
}

#[test]
fn what_is_ready_after_its_level_failed_is_cleaned_up_at_once() {
    let mut bench = failed_to_start();
    bench.see("kcm", recorded(1));
    assert_eq!(bench.wanted(UP), ["clean kcm"]);
}

#[test]
fn a_watch_that_lists_again_ends_no_failure() {
    let mut bench = failed_to_start();
    bench.forget("kcm");
    bench.next(UP);
    bench.see("kcm", starting(1));
    assert_eq!(bench.state(UP), FlowState::Failed);
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
fn a_withdrawn_write_costs_nothing() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.answer(
        DOWN,
        "down mcm 1",
        RequestOutcome::Cancelled { why: "the Cluster" },
    );
    assert_eq!(bench.wanted(DOWN), ["down mcm 1"]);
}

#[test]
fn what_is_waited_for_is_read_when_nothing_new_is_seen() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.done(DOWN, "down mcm 1", stopping(1));
    let begun = bench.now;
    let mut read_after = Vec::new();
    for outcome in [RequestOutcome::Done, refused(), refused()] {
        bench.now = bench.next(DOWN).wake.unwrap();
        bench.answer(DOWN, "read mcm", outcome);
        assert_eq!(
            bench.steps(DOWN),
            "Pending Waiting Absent",
            "a read that fails is no failed try"
        );
        read_after.push((bench.now - begun).as_secs());
    }
    assert_eq!(read_after, [2, 6, 14]);
    // Something new: it is waited for from the start.
    bench.see("mcm", stopping(1));
    let wake = bench.next(DOWN).wake.unwrap();
    assert_eq!(wake, bench.now + 2 * S);
    bench.now = wake;
    bench.answer(DOWN, "read mcm", RequestOutcome::Done);
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["down kcm 1"]);
    // What was read is not read again for the next level.
    bench.done(DOWN, "down kcm 1", held(1));
    assert_eq!(bench.next(DOWN).wake, None, "nothing is read once all is reached");
    // On the way up most pods need longer.
    bench.done(UP, "scale kcm 1", starting(1));
    assert_eq!(bench.next(UP).wake, Some(bench.now + 5 * S));
}

/// A slow API server answers at last, also where no watch does.
#[test]
fn a_read_of_what_is_waited_for_may_take_longer_than_the_one_before() {
    for (direction, write, waits, expected) in [
        (DOWN, "down mcm 1", stopping(1), &[2, 4, 5][..]),
        (UP, "scale mcm 1", starting(1), &[5, 5]),
    ] {
        let mcm = if direction == UP { held(1) } else { seen(1, 1) };
        let mut bench = Bench::new(seen(1, 1), mcm, Observed::Absent);
        bench.next(direction);
        bench.now += 30 * S;
        bench.done(direction, write, waits);
        for seconds in expected {
            bench.now = bench.next(direction).wake.unwrap();
            let request = bench.next(direction).requests[0].clone();
            let within = bench.hints.clone().begin(bench.now, &request);
            assert_eq!(within.as_secs(), *seconds, "{direction:?}");
            bench.answer(direction, "read mcm", refused());
        }
    }
}

#[test]
fn the_timeout_covers_the_writes_of_a_try() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.answer(DOWN, "down mcm 1", RequestOutcome::Conflict);
    bench.see("mcm", seen(2, 2));
    bench.now += 29 * S;
    let request = bench.next(DOWN).requests[0].clone();
    let within = bench.hints.clone().begin(bench.now, &request);
    assert_eq!(within, S, "what remains of the timeout");
    bench.now += S;
    assert_eq!(bench.steps(DOWN), "Pending BackingOff Absent");
}

#[test]
fn conflicts_are_decided_again_but_not_for_ever() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    for replicas in 1..=6 {
        bench.answer(DOWN, &format!("down mcm {replicas}"), RequestOutcome::Conflict);
        bench.see("mcm", seen(replicas + 1, replicas + 1));
        let next = bench.next(DOWN);
        let attempts = next.status.resources[1].attempts;
        assert_eq!(attempts, 1, "after {replicas} conflicts");
        assert_eq!(
            next.requests.is_empty(),
            replicas > 1,
            "only the first one is decided again at once"
        );
        bench.now = next.wake.filter(|_| replicas > 1).unwrap_or(bench.now);
    }
    assert_eq!(bench.wanted(DOWN), ["down mcm 7"]);
    bench.answer(DOWN, "down mcm 7", refused());
    assert_eq!(
        bench.next(DOWN).status.resources[1].attempts,
        2,
        "a busy writer costs a try"
    );
}

/// When the writes of the first 40 s are made, if `reverse` answers each of them.
fn writes_beside_another_client(
    mut bench: Bench,
    direction: Option<Direction>,
    resource: usize,
    reverse: impl Fn(&mut Bench),
) -> Vec<Duration> {
    let (begun, mut written) = (bench.now, vec![]);
    while bench.now < begun + 40 * S {
        let next = bench.next(direction);
        if next.requests.is_empty() {
            let message = &next.status.resources[resource].message;
            assert!(message.contains("admission webhook"), "{message}");
            bench.now = next.wake.unwrap();
            continue;
        }
        written.push(bench.now - begun);
        reverse(&mut bench);
    }
    written
}

/// Two that a flow may need, and then one each second.
fn each_second(seconds: u32) -> Vec<Duration> {
    [0, 0]
        .into_iter()
        .chain(0..seconds)
        .map(|second| second * S)
        .collect()
}

/// By a controller that wants another count, or by an admission webhook, which leaves nothing to wait for.
#[test]
fn a_scaling_that_is_reversed_each_time_is_repeated_each_second_until_the_try_times_out() {
    let reversed = ObservedResource {
        protected: true,
        recorded: RecordedReplicas::Count(1),
        ..seen(1, 1)
    };
    let bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    let written = writes_beside_another_client(bench, DOWN, 1, |bench| {
        bench.done(DOWN, "down mcm 1", reversed.clone());
    });
    assert_eq!(written[..32], each_second(30), "{written:?}");
    assert_eq!(written[32], 30 * S + 500 * MS, "the next try: {written:?}");
}

/// Another client keeps it at zero, and nothing is held down: each scaling settles the shoot.
#[test]
fn a_scaling_that_is_reversed_once_it_has_settled_is_repeated_each_second_too() {
    let bench = Bench::new(seen(0, 0), seen(1, 1), Observed::Absent);
    let written = writes_beside_another_client(bench, UP, 0, |bench| {
        bench.done(UP, "scale kcm 1", seen(1, 1));
        assert_eq!(bench.state(UP), FlowState::Settled);
        bench.see("kcm", seen(0, 0));
    });
    assert_eq!(written, each_second(40));
}

#[test]
fn no_try_times_out_while_holding() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Observed::Absent);
    bench.done(DOWN, "down mcm 1", stopping(1));
    bench.next(DOWN);
    bench.now += 20 * S;
    bench.next(None);
    bench.now += 60 * S;
    assert_eq!(bench.steps(DOWN), "Pending Waiting Absent");
    bench.now += 30 * S - MS;
    assert_eq!(bench.steps(DOWN), "Pending Waiting Absent");
    bench.now += MS;
    assert_eq!(bench.steps(DOWN), "Pending BackingOff Absent");
}
