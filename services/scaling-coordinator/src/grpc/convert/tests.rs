use super::*;
use crate::domain::plan;
use crate::domain::testing::{dependent_of, gardener, held};

fn verdict_of(value: probe::Verdict) -> (ReceivedVerdict, Instant) {
    let sent_at = Instant::now();
    let received = Received {
        value,
        sent_at,
        set_at: sent_at,
    };
    (verdict(&received), sent_at)
}

/// Nobody need have received the verdict with which an outcome began.
#[test]
fn a_verdict_shows_the_first_list_of_its_outcome() {
    for (list_revision, first) in [(42, 40), (30, 30)] {
        let (verdict, _) = verdict_of(probe::Verdict {
            list_revision,
            first_list_revision: 40,
            ..Default::default()
        });
        assert_eq!(
            (verdict.list_revision, verdict.first_revision),
            (list_revision, first)
        );
    }
}

#[test]
fn texts_are_bounded_and_nothing_is_concluded_from_what_is_unset() {
    let (long, _) = verdict_of(probe::Verdict {
        message: "x".repeat(10_000),
        ..Default::default()
    });
    assert_eq!(long.message.len(), LONGEST_MESSAGE);
    let (unset, sent_at) = verdict_of(probe::Verdict::default());
    assert_eq!(unset.valid_until, sent_at, "no validity, no action");
    assert_eq!(unset.outcome.direction(), None);
}

#[test]
fn outcomes_are_those_of_the_api_and_new_ones_hold() {
    for unknown in [0, 4711] {
        assert_eq!(outcome(unknown).direction(), None);
        assert_eq!(
            outcome(unknown).as_str(),
            "an outcome that this version does not know"
        );
    }
    for known in 1..=probe::Outcome::Pending.into() {
        let name = probe::Outcome::try_from(known).unwrap().as_str_name();
        assert_eq!(name.strip_prefix("OUTCOME_"), Some(outcome(known).as_str()));
    }
}

#[test]
fn clauses_become_sentences() {
    assert_eq!(sentence("it is scaled to 0"), "It is scaled to 0.");
    assert_eq!(sentence("Done."), "Done.");
    assert_eq!(sentence(""), "");
}

#[test]
fn a_planned_resource_says_what_becomes_of_it_and_why() {
    let plan = super::plan(&ShootPlan {
        direction: Direction::Up,
        levels: plan::plan(Direction::Up, vec![dependent_of(&gardener()[1], held(2))]),
        allowed: true,
        reason: String::new(),
    });
    let planned = &plan.levels[0].resources[0];
    assert_eq!(
        (planned.spec_replicas, planned.target_replicas),
        (Some(0), Some(2))
    );
    let seconds = |duration: &Option<prost_types::Duration>| duration.map(|duration| duration.seconds);
    assert_eq!(
        (seconds(&planned.initial_delay), seconds(&planned.timeout)),
        (Some(30), Some(30))
    );
    assert_eq!(planned.reason, "It has 0 replicas, target 2 (as recorded).");
}
