//! Histories that are as they should be, and one for each rule that is not.

use jiff::ToSpan;
use serde_json::json;

use super::*;

fn time(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + seconds.seconds()
}

fn write(at: i64, author: &str, verb: &str, path: &str, body: Value) -> Write {
    Write {
        at: time(at),
        done: time(at) + 100.milliseconds(),
        author: author.to_owned(),
        verb: verb.to_owned(),
        path: path.to_owned(),
        applied: true,
        body,
    }
}

/// A renewal. The view is `a=1 b=2`.
fn lease(at: i64, author: &str, session: &str, view: &str) -> Write {
    let view: BTreeMap<_, _> = view
        .split_whitespace()
        .filter_map(|entry| entry.split_once('='))
        .collect();
    let annotations = json!({
        "dependency-watchdog.gardener.cloud/session": session,
        "dependency-watchdog.gardener.cloud/view": json!(view).to_string(),
    });
    let body = json!({"metadata": {"annotations": annotations}, "spec": {"holderIdentity": author}});
    write(
        at,
        author,
        "update",
        "/apis/coordination.k8s.io/v1/namespaces/garden/leases/x",
        body,
    )
}

fn released(at: i64, author: &str, session: &str) -> Write {
    let mut write = lease(at, author, session, "");
    *write.body.pointer_mut("/spec/holderIdentity").unwrap() = json!("");
    write
}

fn scale(at: i64, author: &str, name: &str, to: u32) -> Write {
    let path = format!("/apis/apps/v1/namespaces/shoot/deployments/{name}/scale");
    write(at, author, "update", &path, json!({"spec": {"replicas": to}}))
}

fn record(at: i64, author: &str, name: &str, count: &str) -> Write {
    let path = format!("/apis/apps/v1/namespaces/shoot/deployments/{name}");
    let annotations = json!({"dependency-watchdog.gardener.cloud/replicas": count});
    write(
        at,
        author,
        "patch",
        &path,
        json!({"metadata": {"annotations": annotations}}),
    )
}

fn checked(writes: Vec<Write>) -> HistoryReport {
    History::new(writes).check()
}

fn rules(report: &HistoryReport) -> Vec<Invariant> {
    report
        .violations
        .iter()
        .map(|violation| violation.invariant)
        .collect()
}

#[test]
fn each_way_of_letting_go_is_told_apart() {
    let report = checked(vec![
        lease(0, "a", "1", "a=1"),
        record(1, "a", "mcm", "3"),
        scale(1, "a", "mcm", 0),
        lease(2, "b", "7", "a=1 b=7"),
        lease(3, "a", "1", "a=1 b=7"),
        record(4, "b", "kcm", "2"),
        // Dead from here on; a takes over when it has seen no renewal for 18 s.
        lease(18, "a", "1", "a=1 b=7"),
        lease(20, "a", "1", "a=1"),
        scale(21, "a", "kcm", 0),
        released(22, "a", "1"),
        lease(23, "c", "9", "c=9"),
        scale(24, "c", "kcm", 2),
        scale(25, "c", "mcm", 3),
    ]);
    report.check().unwrap();
    assert_eq!(
        report.handovers,
        Handovers {
            released: 1,
            acknowledged: 1,
            expired: 1
        }
    );
    assert_eq!(report.actions.values().sum::<usize>(), 6);
}

#[test]
fn acting_in_turns_is_found_even_if_each_has_a_lease() {
    let report = checked(vec![
        lease(0, "a", "1", "a=1"),
        lease(0, "b", "7", "b=7"),
        record(1, "a", "mcm", "3"),
        record(2, "b", "kcm", "2"),
        scale(3, "a", "mcm", 0),
    ]);
    let count = |rule| {
        report
            .violations
            .iter()
            .filter(|violation| violation.invariant == rule)
            .count()
    };
    assert_eq!(
        (count(Invariant::Overlap), count(Invariant::NotHandedOver)),
        (1, 2),
        "{report}"
    );
}

#[test]
fn acknowledging_each_other_is_no_handover() {
    let report = checked(vec![
        lease(0, "a", "1", "a=1 b=7"),
        lease(0, "b", "7", "a=1 b=7"),
        scale(1, "a", "mcm", 0),
        scale(2, "b", "kcm", 0),
    ]);
    assert_eq!(rules(&report), [Invariant::NotHandedOver], "{report}");
}

#[test]
fn a_stale_acknowledgement_is_none() {
    let writes = |session: &str| {
        vec![
            lease(0, "a", "1", "a=1"),
            scale(1, "a", "mcm", 0),
            lease(2, "b", session, "a=1 b=7"),
            lease(3, "a", "1", "a=1 b=7"),
            scale(4, "b", "kcm", 0),
        ]
    };
    checked(writes("7")).check().unwrap();
    let report = checked(writes("8"));
    assert_eq!(rules(&report), [Invariant::NotHandedOver], "{report}");
}

#[test]
fn acting_without_a_lease_is_found() {
    for writes in [
        vec![scale(1, "a", "mcm", 0)],
        vec![lease(0, "a", "1", "a=1"), scale(19, "a", "mcm", 0)],
        vec![
            lease(0, "a", "1", "a=1"),
            released(1, "a", "1"),
            scale(2, "a", "mcm", 0),
        ],
    ] {
        let report = checked(writes);
        assert_eq!(rules(&report), [Invariant::NoLease], "{report}");
    }
    // A renewal that was refused is none.
    let mut refused = lease(15, "a", "1", "a=1");
    refused.applied = false;
    let report = checked(vec![lease(0, "a", "1", "a=1"), refused, scale(19, "a", "mcm", 0)]);
    assert!(report.check().is_err());
}
