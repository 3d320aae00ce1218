use std::collections::BTreeMap;
use std::time::Duration;

use watchdog_api::prober::DependentResource;

use super::*;
use crate::domain::sight::{Seen, Sight};
use crate::domain::testing::{S, gardener, held, item, seen, start};

const DOWN: Option<Direction> = Some(Direction::Down);
const UP: Option<Direction> = Some(Direction::Up);
const MS: Duration = Duration::from_millis(1);

/// One shoot with Gardener's three resources (kcm, mcm, ca), whose writes the test answers.
struct Bench {
    config: Vec<DependentResource>,
    sights: BTreeMap<&'static str, Sight>,
    flow: Flow,
    now: Instant,
    version: u32,
}

const NAMES: [(&str, &str); 3] = [
    ("kcm", "kube-controller-manager"),
    ("mcm", "machine-controller-manager"),
    ("ca", "cluster-autoscaler"),
];

fn short(reference: &ResourceRef) -> &'static str {
    NAMES
        .iter()
        .find(|(_, long)| *long == reference.name)
        .map_or("?", |(short, _)| short)
}

impl Bench {
    fn new(kcm: impl Into<Sight>, mcm: impl Into<Sight>, ca: impl Into<Sight>) -> Self {
        let sights = [("kcm", kcm.into()), ("mcm", mcm.into()), ("ca", ca.into())];
        Self {
            config: gardener(),
            sights: sights.into(),
            flow: Flow::default(),
            now: start(),
            version: 1,
        }
    }

    fn next(&mut self, direction: Option<Direction>) -> Steps {
        let items: Vec<_> = self
            .config
            .iter()
            .map(|d| item(d, self.sights[short(&d.reference)].clone()))
            .collect();
        self.flow.next(self.now, direction, &items)
    }

    /// The requests that are to be made now, as text.
    fn wanted(&mut self, direction: Option<Direction>) -> Vec<String> {
        self.next(direction).actions.iter().map(text).collect()
    }

    fn steps(&mut self, direction: Option<Direction>) -> Vec<Step> {
        self.next(direction)
            .status
            .resources
            .iter()
            .map(|r| r.step)
            .collect()
    }

    fn state(&mut self, direction: Option<Direction>) -> State {
        self.next(direction).status.state
    }

    /// Makes the only request that is to be made now and gives its outcome.
    fn answer(&mut self, direction: Option<Direction>, wanted: &str, outcome: Outcome) {
        let steps = self.next(direction);
        let action = steps.actions.iter().find(|a| text(a) == wanted);
        let action = action
            .unwrap_or_else(|| panic!("{wanted} is not among {:?}", steps.actions))
            .clone();
        self.flow.start(self.now, &action);
        self.flow.finish(self.now, &action, outcome);
    }

    /// The watch shows this.
    fn see(&mut self, name: &'static str, seen: Seen) {
        self.version += 1;
        let seen = Seen {
            resource_version: self.version.to_string().into(),
            ..seen
        };
        self.sights.insert(name, seen.into());
    }

    fn done(&mut self, direction: Option<Direction>, wanted: &str, name: &'static str, then: Seen) {
        self.answer(direction, wanted, Outcome::Done);
        self.see(name, then);
    }
}

fn text(action: &Action) -> String {
    let name = short(&action.reference);
    match &action.what {
        What::Read => format!("read {name}"),
        What::Write(Write::Record { replicas }) => format!("record {name} {replicas}"),
        What::Write(Write::Scale { to, .. }) => format!("scale {name} {to}"),
        What::Write(Write::CleanUp) => format!("clean {name}"),
    }
}

fn recorded(replicas: i32) -> Seen {
    Seen {
        replicas: Some(replicas),
        ready: replicas,
        ..held(replicas)
    }
}

fn unknown() -> Outcome {
    Outcome::Unknown {
        why: "no answer within 10s".into(),
        retry_after: None,
    }
}

#[test]
fn down_runs_level_by_level_and_waits_for_ready_replicas() {
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), Sight::Absent);
    assert_eq!(bench.wanted(DOWN), ["record mcm 1"]);
    assert_eq!(bench.steps(DOWN), [Step::Pending, Step::Writing, Step::Absent]);
    bench.done(DOWN, "record mcm 1", "mcm", recorded(1));
    bench.done(DOWN, "scale mcm 0", "mcm", Seen { ready: 1, ..held(1) });
    assert_eq!(bench.wanted(DOWN), [""; 0]);
    assert_eq!(
        bench.steps(DOWN),
        [Step::Pending, Step::Waiting, Step::Absent],
        "scaled is not reached"
    );
    bench.see("mcm", held(1));
    bench.done(DOWN, "record kcm 2", "kcm", recorded(2));
    bench.done(DOWN, "scale kcm 0", "kcm", Seen { ready: 2, ..held(2) });
    assert_eq!(bench.state(DOWN), State::Running);
    bench.see("kcm", held(2));
    let end = bench.next(DOWN);
    assert_eq!((end.status.state, end.finished), (State::Settled, true));
    assert!(!bench.next(DOWN).finished, "it finishes once");
    assert_eq!(bench.next(DOWN).wake, None, "nothing is polled");
}

#[test]
fn the_resources_of_a_level_go_together() {
    let mut bench = Bench::new(seen(2, 2), seen(1, 1), seen(1, 1));
    assert_eq!(bench.wanted(DOWN), ["record mcm 1", "record ca 1"]);
    bench.done(DOWN, "record ca 1", "ca", recorded(1));
    bench.done(DOWN, "scale ca 0", "ca", held(1));
    assert_eq!(
        bench.wanted(DOWN),
        ["record mcm 1"],
        "the slow one does not keep the fast one back, but the level"
    );
}

#[test]
fn up_restores_counts_after_delays_and_cleans_up() {
    let mut bench = Bench::new(held(2), held(1), held(1));
    bench.done(
        UP,
        "scale kcm 2",
        "kcm",
        Seen {
            ready: 0,
            ..recorded(2)
        },
    );
    bench.done(UP, "clean kcm", "kcm", seen(2, 0));
    assert_eq!(bench.steps(UP), [Step::Waiting, Step::Pending, Step::Pending]);
    bench.see("kcm", seen(2, 1));
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
    assert_eq!(bench.state(UP), State::Settled);
}

#[test]
fn a_healthy_shoot_with_nothing_to_write_is_settled_even_when_unready() {
    let mut bench = Bench::new(seen(1, 0), seen(1, 1), Sight::Absent);
    let steps = bench.next(UP);
    assert_eq!(
        (steps.status.state, steps.wake, steps.finished),
        (State::Settled, None, false)
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
fn three_tries_then_the_level_has_failed_and_is_tried_again() {
    let refused = || Outcome::Refused {
        why: "forbidden".into(),
        retry_after: None,
    };
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Sight::Absent);
    for attempt in 1..=3 {
        bench.answer(DOWN, "record mcm 1", refused());
        let steps = bench.next(DOWN);
        assert_eq!(steps.status.resources[1].attempts, attempt);
        assert_eq!(
            steps.alerts.len(),
            usize::from(attempt == 3),
            "an alert when all have failed"
        );
        let expected = if attempt == 3 {
            State::Failed
        } else {
            State::Running
        };
        assert_eq!(steps.status.state, expected);
        assert_eq!(steps.status.retry_at, steps.wake.filter(|_| attempt == 3));
        assert_eq!(steps.actions, [], "it backs off");
        bench.now = steps.wake.unwrap();
    }
    assert_eq!(bench.wanted(DOWN), ["record mcm 1"], "while the verdict stands");
    assert_eq!(bench.state(DOWN), State::Running);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        for _ in 0..3 {
            bench.answer(DOWN, "record mcm 1", refused());
            let steps = bench.next(DOWN);
            if let Some(retry) = steps.status.retry_at {
                pauses.push((retry - bench.now).as_secs());
            }
            bench.now = steps.wake.unwrap();
        }
    }
    assert_eq!(pauses, [10, 20, 40, 60, 60, 60], "the pause grows to a bound");
    bench.done(DOWN, "record mcm 1", "mcm", recorded(1));
    bench.done(DOWN, "scale mcm 0", "mcm", held(1));
    assert_eq!(
        bench.wanted(DOWN),
        ["record kcm 1"],
        "the next level starts as soon as this one has worked"
    );
}

#[test]
fn the_server_may_ask_for_a_longer_pause_but_not_for_ever() {
    for (asked, expected) in [(0, 500 * MS), (7, 7 * S), (3600, 60 * S)] {
        let mut bench = Bench::new(seen(1, 1), seen(1, 1), Sight::Absent);
        let retry_after = Some(asked * S);
        bench.answer(
            DOWN,
            "record mcm 1",
            Outcome::Refused {
                why: "429".into(),
                retry_after,
            },
        );
        assert_eq!(bench.next(DOWN).wake, Some(bench.now + expected));
    }
}

#[test]
fn a_timeout_bounds_the_wait_and_readiness_ends_the_failure() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Sight::Absent);
    bench.done(DOWN, "record mcm 1", "mcm", recorded(1));
    bench.done(DOWN, "scale mcm 0", "mcm", Seen { ready: 1, ..held(1) });
    let begun = bench.now;
    assert_eq!(bench.next(DOWN).wake, Some(begun + 30 * S));
    for _ in 0..2 {
        bench.now = bench.next(DOWN).wake.unwrap();
        assert_eq!(bench.steps(DOWN)[1], Step::BackingOff);
        bench.now = bench.next(DOWN).wake.unwrap();
        assert_eq!(bench.steps(DOWN)[1], Step::Waiting);
    }
    bench.now = bench.next(DOWN).wake.unwrap();
    let steps = bench.next(DOWN);
    assert_eq!(steps.status.state, State::Failed);
    assert!(
        steps.alerts[0]
            .1
            .contains("not done within 30s: it is scaled to 0, but 1 are still ready")
    );
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["record kcm 1"]);
}

#[test]
fn the_timeout_covers_the_writes_of_a_try() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Sight::Absent);
    bench.done(DOWN, "record mcm 1", "mcm", recorded(1));
    bench.now += 29 * S;
    let steps = bench.next(DOWN);
    assert_eq!(steps.actions[0].within, S, "what remains of the timeout");
    bench.now += S;
    assert_eq!(bench.steps(DOWN)[1], Step::BackingOff);
}

#[test]
fn absent_optional_is_skipped_and_absent_mandatory_fails_visibly() {
    let mut bench = Bench::new(seen(1, 1), Sight::Absent, Sight::Absent);
    let steps = bench.next(DOWN);
    assert_eq!(steps.status.state, State::Failed);
    assert_eq!(steps.status.level, Some(0));
    assert_eq!(steps.alerts.len(), 1);
    assert_eq!(
        (steps.actions.len(), steps.wake),
        (0, None),
        "the watch will tell"
    );
    assert_eq!(bench.next(DOWN).alerts, [], "told once");
    bench.see("mcm", seen(1, 1));
    assert_eq!(bench.wanted(DOWN), ["record mcm 1"]);
}

#[test]
fn ignored_resources_are_left_alone() {
    let ignored = Seen {
        ignored: true,
        ..seen(1, 1)
    };
    let mut bench = Bench::new(seen(1, 1), ignored.clone(), Sight::Absent);
    assert_eq!(bench.wanted(DOWN), ["record kcm 1"]);
    assert_eq!(bench.steps(DOWN)[1], Step::Ignored);
    bench.see(
        "mcm",
        Seen {
            protected: true,
            ..ignored
        },
    );
    assert_eq!(bench.wanted(DOWN), ["clean mcm"]);
}

#[test]
fn a_write_that_may_have_been_applied_is_looked_at_before_the_next_one() {
    let mut bench = Bench::new(seen(1, 1), recorded(1), Sight::Absent);
    bench.answer(DOWN, "scale mcm 0", unknown());
    let pause = bench.next(DOWN);
    assert_eq!(pause.status.resources[1].step, Step::BackingOff);
    bench.now = pause.wake.unwrap();
    // It was not applied after all: reading shows the same version.
    bench.answer(DOWN, "read mcm", Outcome::Done);
    bench.answer(DOWN, "scale mcm 0", unknown());
    // It was applied: the watch shows it, and nothing waits for the back-off.
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["record kcm 1"]);
}

#[test]
fn an_applied_write_is_waited_for_and_then_read() {
    let mut bench = Bench::new(seen(1, 1), recorded(1), Sight::Absent);
    bench.answer(DOWN, "scale mcm 0", Outcome::Done);
    let steps = bench.next(DOWN);
    assert_eq!(
        (steps.actions.len(), steps.status.resources[1].step),
        (0, Step::Waiting)
    );
    bench.now = steps.wake.unwrap();
    bench.answer(DOWN, "read mcm", unknown());
    assert_eq!(bench.steps(DOWN)[1], Step::BackingOff);
    bench.now = bench.next(DOWN).wake.unwrap();
    bench.answer(DOWN, "read mcm", Outcome::Done);
    bench.see("mcm", held(1));
    assert_eq!(bench.wanted(DOWN), ["record kcm 1"]);
}

#[test]
fn conflicts_are_decided_again_but_not_for_ever() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Sight::Absent);
    bench.answer(DOWN, "record mcm 1", Outcome::Conflict);
    assert_eq!(
        bench.steps(DOWN)[1],
        Step::Waiting,
        "for the watch to show what somebody wrote"
    );
    bench.see("mcm", seen(3, 3));
    assert_eq!(bench.wanted(DOWN), ["record mcm 3"]);
    for replicas in [4, 5, 6, 7, 8, 9] {
        bench.next(DOWN);
        let action = bench.next(DOWN).actions[0].clone();
        bench.flow.start(bench.now, &action);
        bench.flow.finish(bench.now, &action, Outcome::Conflict);
        bench.see("mcm", seen(replicas, replicas));
    }
    assert_eq!(
        bench.next(DOWN).status.resources[1].attempts,
        2,
        "a busy writer costs a try"
    );
}

#[test]
fn a_contrary_direction_turns_at_the_next_write() {
    // Between the two writes.
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Sight::Absent);
    bench.done(DOWN, "record mcm 1", "mcm", recorded(1));
    assert_eq!(bench.wanted(UP), [""; 0], "the initial delay of mcm");
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["clean mcm"]);
    // While a write is under way: nothing is done to its resource until its end is known.
    let mut bench = Bench::new(seen(1, 1), recorded(1), Sight::Absent);
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    assert_eq!(bench.wanted(UP), [""; 0]);
    bench.flow.finish(bench.now, &action, Outcome::Done);
    assert_eq!(bench.wanted(UP), [""; 0], "what is seen is older than the write");
    bench.see("mcm", held(1));
    bench.next(UP);
    bench.now += 30 * S;
    assert_eq!(bench.wanted(UP), ["scale mcm 1"]);
    // While a write on the resource that now comes first is under way: the next level waits for its end.
    let mut bench = Bench::new(seen(2, 2), held(1), Sight::Absent);
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    assert_eq!(bench.steps(UP), [Step::Writing, Step::Pending, Step::Absent]);
    bench.flow.finish(bench.now, &action, Outcome::Done);
    assert_eq!(bench.steps(UP), [Step::Waiting, Step::Pending, Step::Absent]);
    bench.see("kcm", recorded(2));
    assert_eq!(bench.wanted(UP), ["clean kcm"]);
    // While a try backs off: the other direction starts fresh.
    let mut bench = Bench::new(held(2), held(1), Sight::Absent);
    bench.answer(
        UP,
        "scale kcm 2",
        Outcome::Refused {
            why: "500".into(),
            retry_after: Some(60 * S),
        },
    );
    assert_eq!(bench.steps(UP)[0], Step::BackingOff);
    assert_eq!(bench.state(DOWN), State::Settled);
    assert_eq!(bench.wanted(UP), ["scale kcm 2"]);
}

#[test]
fn holding_does_nothing() {
    let mut bench = Bench::new(seen(1, 1), recorded(1), held(1));
    let steps = bench.next(None);
    assert_eq!(
        (steps.status.state, steps.actions.len(), steps.wake),
        (State::Holding, 0, None)
    );
    let action = bench.next(DOWN).actions[0].clone();
    bench.flow.start(bench.now, &action);
    assert_eq!(bench.steps(None)[1], Step::Writing, "what is under way is shown");
}

#[test]
fn replicas_that_the_object_does_not_show_are_read_first() {
    let mut bench = Bench::new(
        seen(1, 1),
        Seen {
            replicas: None,
            ..seen(0, 0)
        },
        Sight::Absent,
    );
    bench.done(DOWN, "read mcm", "mcm", seen(2, 2));
    assert_eq!(bench.wanted(DOWN), ["record mcm 2"]);
    assert_eq!(
        Bench::new(
            seen(1, 1),
            Seen {
                replicas: None,
                ..seen(0, 0)
            },
            Sight::Absent
        )
        .wanted(None),
        [""; 0]
    );
}

#[test]
fn a_withdrawn_write_costs_nothing() {
    let mut bench = Bench::new(seen(1, 1), seen(1, 1), Sight::Absent);
    bench.answer(DOWN, "record mcm 1", Outcome::Withdrawn);
    assert_eq!(bench.wanted(DOWN), ["record mcm 1"]);
}
