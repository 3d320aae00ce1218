//! Nodes that report late or leave, and controllers that start again or are cut off. All others play for the real
//! controller too: `tests/e2e/tests/kubernetes/scripted_nodes.rs`.

use crate::node_lifecycle::{GracePeriods, NodeActivity, NodeLifecycleModel};
use crate::node_lifecycle_input::{KubeletHistory, LeaseWrite, TimeSpan};
use crate::random::SECOND;
use crate::timeline::FOREVER;

const GRACE: GracePeriods = GracePeriods {
    monitor: 40 * SECOND,
    startup: 60 * SECOND,
};

const ONE_TERM: [TimeSpan; 1] = [TimeSpan::new(0, FOREVER)];

fn node(renewals: &[i64]) -> NodeActivity {
    let write = |at: &i64| LeaseWrite {
        at: at * SECOND,
        renew_time: at * SECOND,
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
    node(&every_ten(-100, 100))
}

fn within(changes: &[(i64, bool)], from: i64, to: i64) -> bool {
    matches!(changes, [(at, true), ..] if (from..=to).contains(at))
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
        let renews = node(&every_ten(-100, 400));
        assert_eq!(changes(&renews, &ONE_TERM, &[gap]), []);
    }
}

#[test]
fn a_node_that_never_reported_has_the_startup_grace_period() {
    let never = NodeActivity {
        created: 100 * SECOND,
        first_report: None,
        ..node(&[])
    };
    let found = changes_of(&never);
    assert!(within(&found, 160, 166), "{found:?}");
    let joins = NodeActivity {
        created: 100 * SECOND,
        first_report: Some(120 * SECOND),
        ..node(&every_ten(110, 400))
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
