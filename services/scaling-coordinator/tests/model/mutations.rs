//! Every rule is needed: with one switched off, the search finds a violation of the invariant that rests on it.

use crate::rules::{Budget, NONE, Rules};
use crate::search::explore;
use crate::state::ModelState;

/// Explores with a rule switched off and expects `invariant` to break.
fn breaks(rules: Rules, budget: Budget, invariant: &str) {
    for in_two_steps in [false, true] {
        let rules = Rules {
            in_two_steps,
            ..rules
        };
        let explored = explore(&ModelState::new(budget), rules);
        let broken = explored.broken.expect("the search finds nothing wrong");
        assert!(broken.starts_with(invariant), "{broken}");
    }
}

#[test]
fn an_expired_verdict_is_acted_upon() {
    let rules = Rules {
        validity: false,
        ..Rules::default()
    };
    breaks(rules, Budget { turns: 1, ..NONE }, "S1");
}

#[test]
fn an_observer_is_not_heard() {
    let rules = Rules {
        observers: false,
        ..Rules::default()
    };
    breaks(
        rules,
        Budget {
            turns: 1,
            all_verdicts: true,
            ..NONE
        },
        "S2",
    );
}

#[test]
fn the_next_level_starts_early() {
    let rules = Rules {
        order: false,
        ..Rules::default()
    };
    breaks(rules, Budget { turns: 1, ..NONE }, "S3");
}

#[test]
fn the_cluster_is_not_asked_for() {
    let rules = Rules {
        cluster: false,
        ..Rules::default()
    };
    breaks(
        rules,
        Budget {
            turns: 1,
            stops: 1,
            ..NONE
        },
        "S4",
    );
}

#[test]
fn what_hibernates_is_not_released() {
    let rules = Rules {
        release: false,
        ..Rules::default()
    };
    breaks(rules, Budget { stops: 1, ..NONE }, "S6");
}

#[test]
fn a_handover_does_not_wait_for_writes_under_way() {
    let rules = Rules {
        permit: false,
        ..Rules::default()
    };
    breaks(
        rules,
        Budget {
            turns: 1,
            moves: 1,
            ..NONE
        },
        "S5",
    );
}

#[test]
fn a_successor_believes_its_watches() {
    let rules = Rules {
        reads: false,
        ..Rules::default()
    };
    breaks(
        rules,
        Budget {
            turns: 1,
            moves: 1,
            ..NONE
        },
        "S3",
    );
}

#[test]
fn a_replica_believes_what_it_read_before_it_lost_the_shoot() {
    let rules = Rules {
        anew: false,
        ..Rules::default()
    };
    breaks(
        rules,
        Budget {
            turns: 2,
            moves: 2,
            ..NONE
        },
        "S3",
    );
}

#[test]
fn two_act_at_once() {
    let rules = Rules {
        exclusive: false,
        ..Rules::default()
    };
    breaks(rules, NONE, "S5");
}

#[test]
fn nothing_is_recorded() {
    let rules = Rules {
        record: false,
        ..Rules::default()
    };
    breaks(rules, Budget { turns: 1, ..NONE }, "S6");
}

#[test]
fn writes_have_no_precondition() {
    let rules = Rules {
        precondition: false,
        ..Rules::default()
    };
    breaks(
        rules,
        Budget {
            turns: 1,
            meddles: 1,
            ..NONE
        },
        "S6",
    );
}

#[test]
fn recorded_counts_do_not_outlive_a_crash() {
    let rules = Rules {
        durable: false,
        ..Rules::default()
    };
    breaks(
        rules,
        Budget {
            turns: 1,
            crashes: 1,
            ..NONE
        },
        "S6",
    );
}

#[test]
fn a_request_without_an_answer_is_waited_for_for_ever() {
    let rules = Rules {
        deadline: false,
        ..Rules::default()
    };
    breaks(
        rules,
        Budget {
            turns: 1,
            losses: 1,
            ..NONE
        },
        "S6",
    );
}
