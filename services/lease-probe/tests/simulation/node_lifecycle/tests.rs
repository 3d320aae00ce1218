use crate::node_lifecycle::{GracePeriods, NodeActivity, NodeLifecycleModel};
use crate::node_lifecycle_input::{KubeletHistory, LeaseWrite, TimeSpan};
use crate::random::SECOND;
use crate::timeline::FOREVER;

const GRACE: GracePeriods = GracePeriods {
    monitor: 40 * SECOND,
    startup: 60 * SECOND,
};

const ONE_TERM: [TimeSpan; 1] = [TimeSpan::new(0, FOREVER)];

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

fn changes(node: &NodeActivity, terms: &[TimeSpan], watch_gaps: &[TimeSpan]) -> Vec<(i64, bool)> {
    let model = NodeLifecycleModel {
        grace: GRACE,
        monitor_changes: &[],
        terms,
        watch_gaps,
        seed: 1,
        until: 400 * SECOND,
    };
    let changes = model.ready_changes(node).into_iter();
    changes
        .map(|change| (change.at / SECOND, change.unknown))
        .collect()
}

/// The changes of a node under one leader that sees everything.
fn changes_of(node: &NodeActivity) -> Vec<(i64, bool)> {
    changes(node, &ONE_TERM, &[])
}

/// Renews until second 100.
fn silent_node() -> NodeActivity {
    node(&every_ten(-100, 100), |_| 0)
}

fn within(changes: &[(i64, bool)], from: i64, to: i64) -> bool {
    matches!(changes, [(at, true), ..] if (from..=to).contains(at))
}

#[test]
fn a_node_that_renews_stays_ready() {
    assert_eq!(changes_of(&node(&every_ten(-100, 400), |_| 0)), []);
}

#[test]
fn a_silent_node_turns_unknown_after_the_grace_period_and_up_to_one_look() {
    let found = changes_of(&silent_node());
    assert!(found.len() == 1 && within(&found, 140, 145), "{found:?}");
}

#[test]
fn a_node_that_is_back_reports_and_is_no_longer_unknown() {
    let renewals = [every_ten(-100, 100), every_ten(170, 400)].concat();
    let mut node = node(&renewals, |_| 0);
    let away = 101 * SECOND..172 * SECOND;
    node.kubelet.reports.retain(|at| !away.contains(at));
    let found = changes_of(&node);
    assert!(within(&found, 140, 150), "{found:?}");
    assert_eq!(found[1..], [(180, false)]);
}

/// A look that does not see the report yet sends the version before it, and the API server refuses that.
#[test]
fn a_report_right_before_a_look_is_not_overwritten() {
    let mut node = silent_node();
    let found = changes_of(&node);
    assert_eq!(found.len(), 1, "{found:?}");
    let looks: Vec<_> = (150 * SECOND..160 * SECOND).step_by(2_000).collect();
    for at in looks {
        node.kubelet.reports.retain(|report| *report <= 100 * SECOND);
        node.kubelet.reports.push(at);
        let found = changes_of(&node);
        let again = found.get(2).map_or(i64::MAX, |(at, _)| *at);
        assert!(found[1] == (at / SECOND, false) && again > 180, "{at}: {found:?}");
    }
}

/// Its renewals are no news until they are later than the one that was known.
#[test]
fn a_clock_that_is_set_back_makes_a_living_node_unknown() {
    let set_by = |step| changes_of(&node(&every_ten(-100, 400), |at| if at > 100 { step } else { 0 }));
    let found = set_by(-90);
    assert!(within(&found, 140, 150), "{found:?}");
    assert_eq!(set_by(90), [], "setting it forward costs nothing");
    assert_eq!(set_by(-20), [], "that is made good within the grace period");
}

#[test]
fn a_process_that_starts_knows_nothing() {
    let terms = [
        TimeSpan::new(0, 120 * SECOND),
        TimeSpan::new(130 * SECOND, FOREVER),
    ];
    let found = changes(&silent_node(), &terms, &[]);
    assert!(within(&found, 170, 177), "{found:?}");
}

/// It cannot write while it is cut off, and sees the renewals first when it is back.
#[test]
fn what_a_watch_does_not_bring_is_not_known() {
    for to in [135, 150] {
        let gap = TimeSpan::new(101 * SECOND, to * SECOND);
        let renews = node(&every_ten(-100, 400), |_| 0);
        assert_eq!(changes(&renews, &ONE_TERM, &[gap]), []);
    }
}

#[test]
fn a_node_that_never_reported_has_the_startup_grace_period() {
    let never = NodeActivity {
        created: 100 * SECOND,
        first_report: None,
        ..node(&[], |_| 0)
    };
    let found = changes_of(&never);
    assert!(within(&found, 160, 166), "{found:?}");
    let joins = NodeActivity {
        created: 100 * SECOND,
        first_report: Some(120 * SECOND),
        ..node(&every_ten(110, 400), |_| 0)
    };
    assert_eq!(changes_of(&joins), []);
}

#[test]
fn a_node_that_is_deleted_is_not_looked_at() {
    let deleted = NodeActivity {
        deleted: 130 * SECOND,
        ..silent_node()
    };
    assert_eq!(changes_of(&deleted), []);
}

/// A changed condition is a heartbeat of its own.
#[test]
fn a_heartbeat_counts_like_a_renewal() {
    let mut reports = silent_node();
    reports.condition_changes = vec![125 * SECOND];
    reports.kubelet.reports.push(126 * SECOND);
    let found = changes_of(&reports);
    assert!(within(&found, 166, 181), "{found:?}");
}
