//! Only the leader deletes, and only while it leads.

use watchdog_proto::weeder::v1 as pb;
use watchdog_sandbox::{AuditEntry, Fault, FaultAction};
use watchdog_test_support::in_process::eventually;

use crate::faults::following;
use crate::seed::Seed;

fn is_renewal(entry: &AuditEntry) -> bool {
    entry.verb == "update" && entry.path.ends_with(weeder::app::LEASE)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_that_comes_while_nobody_leads_is_not_lost() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    let first = seed.start("weeder-0").await;
    let second = seed.start("weeder-1").await;
    first.wait_ready().await;
    second.wait_ready().await;
    eventually("one of them leads", || seed.leader().is_some()).await;
    let (leader, standby) = match seed.leader().is_some_and(|leader| leader.starts_with("weeder-0")) {
        true => (first, second),
        false => (second, first),
    };
    leader.kill();
    seed.service("shoot", "etcd", true);
    seed.gone("shoot", "kube-apiserver").await;
    standby.wait_deleted("shoot", "etcd", 1).await;
    standby.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_renew_its_lease_deletes_nothing_and_goes_on_with_what_it_knew() {
    let (seed, weeder) = following(&["kube-apiserver"]).await;
    let fault = Fault::always(FaultAction::InternalError).verb("update");
    let fault = seed
        .api
        .inject(fault.path("/apis/coordination.k8s.io/v1/namespaces/garden/leases/"));
    let failed = |least: usize| {
        let audit = seed.api.audit();
        let failed = audit
            .iter()
            .filter(|entry| is_renewal(entry) && entry.code == 500);
        failed.count() >= least
    };
    // Renewals begin at least 1 s apart, and the leader acts for 3 s from the last one.
    eventually("the Lease has lapsed", || failed(5)).await;
    seed.crash("shoot", "kube-apiserver");
    eventually("renewals still fail", || failed(8)).await;
    assert!(seed.exists("shoot", "kube-apiserver"));
    assert_eq!(seed.deletions().len(), 0);
    let active = |w: &pb::Weeder| w.state() == pb::WeederState::Active;
    weeder
        .wait("shoot", "etcd", "it leads and has all items", active)
        .await;
    assert!(seed.api.clear_fault(fault));
    seed.gone("shoot", "kube-apiserver").await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stops_keeps_its_lease_until_a_deletion_is_answered() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    let weeder = seed.ready().await;
    let delay = FaultAction::Delay { millis: 500 };
    seed.api.inject(Fault::always(delay).verb("delete").times(1));
    seed.service("shoot", "etcd", true);
    eventually("the deletion is under way", || seed.api.faults().is_empty()).await;
    weeder.stop().await;
    // In the order in which they were answered.
    let audit = seed.api.audit();
    let deleted = audit
        .iter()
        .position(|entry| entry.verb == "delete" && entry.path.contains("/pods/"));
    let released = audit.iter().position(|entry| {
        let body = String::from_utf8_lossy(&entry.body);
        is_renewal(entry) && body.contains(r#""holderIdentity":"""#)
    });
    assert!(
        deleted.is_some() && deleted < released,
        "{deleted:?} is not before {released:?}"
    );
}
