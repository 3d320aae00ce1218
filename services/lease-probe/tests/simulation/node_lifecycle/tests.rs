use crate::node_lifecycle::{GracePeriods, NodeActivity, NodeLifecycleModel};
use crate::node_lifecycle_input::{KubeletHistory, LeadershipTerm, LeaseWrite, WatchGap};
use crate::random::SECOND;
use crate::timeline::FOREVER;

const GRACE: GracePeriods = GracePeriods {
    monitor: 40 * SECOND,
    startup: 60 * SECOND,
};

const ONE_TERM: [LeadershipTerm; 1] = [LeadershipTerm { from: 0, to: FOREVER }];

fn node(renewals: &[i64], skew: impl Fn(i64) -> i64) -> NodeActivity {
    let write = |at: &i64| LeaseWrite {
        at: at * SECOND,
        renew_time: (at + skew(*at)) * SECOND,
    };
    let last = renewals.last().copied().unwrap_or(0);
    NodeActivity {
        created: -100 * SECOND,
        deleted: FOREVER,
        first_report: Some(-100 * SECOND),
        condition_changes: vec![],
        kubelet: KubeletHistory {
            writes: renewals.iter().map(write).collect(),
            reports: (-10..=last / 10).map(|i| i * 10 * SECOND).collect(),
        },
    }
}

fn every_ten(from: i64, to: i64) -> Vec<i64> {
    (from..=to).step_by(10).collect()
}

fn changes(node: &NodeActivity, terms: &[LeadershipTerm], watch_gaps: &[WatchGap]) -> Vec<(i64, bool)> {
    let model = NodeLifecycleModel {
        grace: GRACE,
        terms,
        watch_gaps,
        seed: 1,
        until: 400 * SECOND,
    };
    let changes = model.ready_changes(node);
    changes
        .iter()
        .map(|change| (change.at / SECOND, change.unknown))
        .collect()
}

fn within(changes: &[(i64, bool)], from: i64, to: i64) -> bool {
    matches!(changes, [(at, true), ..] if (from..=to).contains(at))
}

#[test]
fn a_node_that_renews_stays_ready() {
    assert_eq!(changes(&node(&every_ten(-100, 400), |_| 0), &ONE_TERM, &[]), []);
}

#[test]
fn a_silent_node_turns_unknown_after_the_grace_period_and_up_to_one_look() {
    let found = changes(&node(&every_ten(-100, 100), |_| 0), &ONE_TERM, &[]);
    assert!(found.len() == 1 && within(&found, 140, 145), "{found:?}");
}

#[test]
fn a_node_that_is_back_reports_and_is_no_longer_unknown() {
    let mut renewals = every_ten(-100, 100);
    renewals.extend(every_ten(170, 400));
    let mut node = node(&renewals, |_| 0);
    node.kubelet
        .reports
        .retain(|at| !(101 * SECOND..172 * SECOND).contains(at));
    let found = changes(&node, &ONE_TERM, &[]);
    assert!(within(&found, 140, 150), "{found:?}");
    assert_eq!(found[1..], [(180, false)]);
}

/// Its renewals are no news until they are later than the one that was known.
#[test]
fn a_clock_that_is_set_back_makes_a_living_node_unknown() {
    let found = changes(
        &node(&every_ten(-100, 400), |at| if at > 100 { -90 } else { 0 }),
        &ONE_TERM,
        &[],
    );
    assert!(within(&found, 140, 150), "{found:?}");
    // Setting it forward costs nothing.
    assert_eq!(
        changes(
            &node(&every_ten(-100, 400), |at| if at > 100 { 90 } else { 0 }),
            &ONE_TERM,
            &[]
        ),
        []
    );
    // Nor does a step that is made good within the grace period.
    assert_eq!(
        changes(
            &node(&every_ten(-100, 400), |at| if at > 100 { -20 } else { 0 }),
            &ONE_TERM,
            &[]
        ),
        []
    );
}

#[test]
fn a_process_that_starts_knows_nothing() {
    let terms = [
        LeadershipTerm {
            from: 0,
            to: 120 * SECOND,
        },
        LeadershipTerm {
            from: 130 * SECOND,
            to: FOREVER,
        },
    ];
    let found = changes(&node(&every_ten(-100, 100), |_| 0), &terms, &[]);
    assert!(within(&found, 170, 177), "{found:?}");
}

#[test]
fn what_a_watch_does_not_bring_is_not_known() {
    let gap = WatchGap {
        from: 101 * SECOND,
        to: 135 * SECOND,
    };
    assert_eq!(
        changes(&node(&every_ten(-100, 400), |_| 0), &ONE_TERM, &[gap]),
        []
    );
    let longer = WatchGap {
        to: 150 * SECOND,
        ..gap
    };
    // It cannot write while it is cut off, and sees the renewals first when it is back.
    assert_eq!(
        changes(&node(&every_ten(-100, 400), |_| 0), &ONE_TERM, &[longer]),
        []
    );
}

#[test]
fn a_node_that_never_reported_has_the_startup_grace_period() {
    let never = NodeActivity {
        created: 100 * SECOND,
        first_report: None,
        ..node(&[], |_| 0)
    };
    let found = changes(&never, &ONE_TERM, &[]);
    assert!(within(&found, 160, 166), "{found:?}");
    let joins = NodeActivity {
        created: 100 * SECOND,
        first_report: Some(120 * SECOND),
        ..node(&every_ten(110, 400), |_| 0)
    };
    assert_eq!(changes(&joins, &ONE_TERM, &[]), []);
}

#[test]
fn a_node_that_is_deleted_is_not_looked_at() {
    let deleted = NodeActivity {
        deleted: 130 * SECOND,
        ..node(&every_ten(-100, 100), |_| 0)
    };
    assert_eq!(changes(&deleted, &ONE_TERM, &[]), []);
}

/// A changed condition is a heartbeat of its own.
#[test]
fn a_heartbeat_counts_like_a_renewal() {
    let mut reports = node(&every_ten(-100, 100), |_| 0);
    reports.condition_changes = vec![125 * SECOND];
    reports.kubelet.reports.push(126 * SECOND);
    let found = changes(&reports, &ONE_TERM, &[]);
    assert!(within(&found, 166, 181), "{found:?}");
}
