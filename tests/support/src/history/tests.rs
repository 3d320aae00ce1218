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

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/garden/leases";

/// A renewal by the process of this number.
fn lease(at: i64, author: &str, process: u32) -> Write {
    let body = json!({"spec": {"holderIdentity": format!("{author}_{process}"), "leaseDurationSeconds": 4}});
    let path = format!("{LEASES}/{LEADER_LEASE}");
    write(at, author, "update", &path, body)
}

/// Nobody holds the Lease afterwards.
fn emptied(at: i64, author: &str) -> Write {
    let body = json!({"spec": {"holderIdentity": ""}});
    let path = format!("{LEASES}/{LEADER_LEASE}");
    write(at, author, "update", &path, body)
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
    let mut created = lease(0, "a", 1);
    created.verb = "create".to_owned();
    created.path = LEASES.to_owned();
    created.body["metadata"]["name"] = json!(LEADER_LEASE);
    let report = checked(vec![
        created,
        record(1, "a", "mcm", "3"),
        scale(1, "a", "mcm", 0),
        // Dead from here on; b takes the Lease when it has seen no renewal for 4 s.
        lease(7, "b", 1),
        scale(8, "b", "kcm", 0),
        emptied(9, "b"),
        lease(10, "c", 1),
        scale(11, "c", "kcm", 2),
        scale(12, "c", "mcm", 3),
    ]);
    report.check().unwrap();
    assert_eq!(
        report.handovers,
        Handovers {
            released: 1,
            expired: 1
        }
    );
    assert_eq!(report.actions.values().sum::<usize>(), 5);
}

#[test]
fn one_that_leads_again_has_another_term() {
    let report = checked(vec![
        lease(0, "a", 1),
        scale(1, "a", "mcm", 0),
        emptied(2, "a"),
        lease(3, "b", 1),
        scale(4, "b", "mcm", 3),
        emptied(5, "b"),
        lease(6, "a", 1),
        scale(7, "a", "mcm", 0),
    ]);
    report.check().unwrap();
    assert_eq!(report.handovers.released, 2);
}

#[test]
fn leaders_by_different_leases_are_found() {
    let mut other = lease(0, "b", 1);
    other.path = other.path.replace("garden", "elsewhere");
    let report = checked(vec![
        lease(0, "a", 1),
        other,
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
fn a_lease_that_was_taken_too_early_is_no_handover() {
    for between in [None, Some(emptied(3, "stranger"))] {
        let mut writes = vec![lease(0, "a", 1), scale(1, "a", "mcm", 0), lease(2, "a", 1)];
        writes.extend(between);
        writes.extend([lease(5, "b", 1), scale(6, "b", "kcm", 0)]);
        let report = checked(writes);
        assert_eq!(rules(&report), [Invariant::NotHandedOver], "{report}");
    }
}

#[test]
fn acting_without_a_lease_is_found() {
    let mut membership = lease(0, "a", 1);
    membership.path = format!("{LEASES}/lease-probe-a");
    for writes in [
        vec![scale(1, "a", "mcm", 0)],
        vec![membership, scale(1, "a", "mcm", 0)],
        vec![lease(0, "a", 1), scale(6, "a", "mcm", 0)],
        vec![lease(0, "a", 1), emptied(1, "a"), scale(2, "a", "mcm", 0)],
        vec![lease(0, "a", 1), lease(6, "b", 1), scale(6, "a", "mcm", 0)],
    ] {
        let report = checked(writes);
        assert_eq!(rules(&report), [Invariant::NoLease], "{report}");
    }
    // A renewal that was refused is none.
    let mut refused = lease(4, "a", 1);
    refused.applied = false;
    let report = checked(vec![lease(0, "a", 1), refused, scale(7, "a", "mcm", 0)]);
    assert!(report.check().is_err());
}
