//! Every rule is needed: with one switched off, the search finds a violation of the invariant that rests on it.

use crate::rules::{Budget, Rules};
use crate::search::explore;
use crate::state::ModelState;

/// Explores with a rule switched off and expects `invariant` to break.
fn breaks(switch_off: fn(&mut Rules), allow: fn(&mut Budget), invariant: &str) {
    let (mut rules, budget) = (Rules::default(), Budget::of(allow));
    switch_off(&mut rules);
    for in_two_steps in [false, true] {
        rules.in_two_steps = in_two_steps;
        let explored = explore(&ModelState::new(budget, rules), rules);
        let broken = explored.broken.expect("the search finds nothing wrong");
        assert!(broken.starts_with(invariant), "{broken}");
    }
}

#[test]
fn an_expired_verdict_is_acted_upon() {
    breaks(|rules| rules.validity = false, |may| may.turns = 1, "S1");
}

#[test]
fn an_observer_is_not_heard() {
    let allow = |may: &mut Budget| (may.turns, may.all_verdicts) = (1, true);
    breaks(|rules| rules.observers = false, allow, "S2");
}

#[test]
fn the_next_level_starts_early() {
    breaks(|rules| rules.order = false, |may| may.turns = 1, "S3");
}

#[test]
fn the_cluster_is_not_asked_for() {
    let allow = |may: &mut Budget| (may.turns, may.stops) = (1, 1);
    breaks(|rules| rules.cluster = false, allow, "S4");
}

#[test]
fn what_hibernates_is_not_released() {
    breaks(|rules| rules.release = false, |may| may.stops = 1, "S6");
}

#[test]
fn a_handover_does_not_wait_for_writes_under_way() {
    let allow = |may: &mut Budget| (may.turns, may.moves) = (1, 1);
    breaks(|rules| rules.permit = false, allow, "S5");
}

#[test]
fn a_successor_believes_its_watches() {
    let allow = |may: &mut Budget| (may.turns, may.moves) = (1, 1);
    breaks(|rules| rules.reads = false, allow, "S3");
}

#[test]
fn a_replica_believes_what_it_read_before_it_lost_the_shoot() {
    let allow = |may: &mut Budget| (may.turns, may.moves) = (2, 2);
    breaks(|rules| rules.anew = false, allow, "S3");
}

/// Of what is not listed.
#[test]
fn what_was_read_counts_in_the_next_loss_too() {
    let switch_off = |rules: &mut Rules| (rules.forgets, rules.unlisted) = (false, Some(0));
    let allow = |may: &mut Budget| (may.turns, may.moves, may.jumps) = (2, 2, 1);
    breaks(switch_off, allow, "it does not go down");
}

#[test]
fn two_act_at_once() {
    breaks(|rules| rules.exclusive = false, |_| {}, "S5");
}

#[test]
fn nothing_is_recorded() {
    breaks(|rules| rules.record = false, |may| may.turns = 1, "S6");
}

#[test]
fn writes_have_no_precondition() {
    let allow = |may: &mut Budget| (may.turns, may.meddles) = (1, 1);
    breaks(|rules| rules.precondition = false, allow, "S6");
}

#[test]
fn recorded_counts_do_not_outlive_a_crash() {
    let allow = |may: &mut Budget| (may.turns, may.crashes) = (1, 1);
    breaks(|rules| rules.durable = false, allow, "S6");
}

#[test]
fn a_write_is_not_checked_again_right_before_it_is_sent() {
    // Two that go out together, and the verdict changes in between.
    let switch_off = |rules: &mut Rules| (rules.checked, rules.levels) = (false, [(0, 0); 2]);
    breaks(switch_off, |may| may.turns = 1, "S2");
}
