//! Somebody or something interferes with the Leases.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use watchdog_kube::membership::lease::{SERVICE_LABEL, SESSION_ANNOTATION};
use watchdog_sandbox::{Fault, FaultAction};

use crate::cluster::Cluster;

fn session(lease: &Lease) -> String {
    lease.metadata.annotations.as_ref().unwrap()[SESSION_ANNOTATION].clone()
}

#[tokio::test]
async fn a_lease_deleted_by_hand_is_written_anew_with_a_new_session() {
    let mut cluster = Cluster::new().await;
    cluster.start_all(&["a", "b"]).await;
    let (leases, name) = (cluster.leases().await, cluster.lease_name("a"));
    let before = leases.get(&name).await.unwrap();
    leases.delete(&name, &DeleteParams::default()).await.unwrap();
    let key = cluster.key_of("b");
    cluster
        .until("both share again", |c| c.shared_by(&["a", "b"]))
        .await;
    cluster.watch_for(Duration::from_millis(500)).await;
    let took = cluster
        .until("both share again", |c| c.shared_by(&["a", "b"]))
        .await;
    assert!(took < cluster.timing.peer_ttl / 2, "{took:?}");
    assert_eq!(cluster.key_of("b"), key);
    assert_ne!(session(&leases.get(&name).await.unwrap()), session(&before));
}

#[tokio::test]
async fn a_lost_answer_to_a_renewal_does_no_harm() {
    let mut cluster = Cluster::new().await;
    cluster.start_all(&["a", "b"]).await;
    let (leases, name) = (cluster.leases().await, cluster.lease_name("a"));
    let before = session(&leases.get(&name).await.unwrap());
    for action in [
        FaultAction::ApplyAndHang,
        FaultAction::Cut,
        FaultAction::InternalError,
    ] {
        let fault = cluster
            .api
            .inject(Fault::always(action).verb("update").user("a").times(1));
        let hit = |c: &Cluster| {
            !c.api
                .faults()
                .iter()
                .any(|(id, f)| *id == fault && f.times != Some(0))
        };
        cluster.until("a renewal was hit", hit).await;
        let audit = cluster.api.audit().last().unwrap().id;
        let renewed = |c: &Cluster| {
            let audit = c.api.audit_since(audit);
            audit
                .iter()
                .any(|e| e.verb == "update" && e.user == "a" && e.code == 200)
        };
        cluster
            .until("a has renewed", |c| renewed(c) && c.shared_by(&["a", "b"]))
            .await;
    }
    assert_eq!(session(&leases.get(&name).await.unwrap()), before);
}

#[tokio::test]
async fn watches_that_break_are_only_slower() {
    let mut cluster = Cluster::new().await;
    cluster.api.inject(Fault::always(FaultAction::Hang).verb("watch"));
    cluster.start_all(&["a", "b"]).await;
    cluster.drain("b").await.unwrap();
    cluster.until("a has all", |c| c.shared_by(&["a"])).await;
}

#[tokio::test]
async fn a_lease_that_makes_no_sense_has_no_owner() {
    let mut cluster = Cluster::new().await;
    let leases = cluster.leases().await;
    let bad = json!({
        "metadata": {
            "name": "dependency-watchdog-scaling-coordinator-bad",
            "labels": { SERVICE_LABEL: "scaling-coordinator" },
            "annotations": { SESSION_ANNOTATION: "not a number" },
        },
        "spec": { "holderIdentity": "bad" },
    });
    let bad: Lease = serde_json::from_value(bad).unwrap();
    leases.create(&PostParams::default(), &bad).await.unwrap();
    cluster.start_all(&["a", "b"]).await;

    // The own lease spoiled by hand: back after the time in which it may be somebody else's.
    let name = cluster.lease_name("a");
    let key = cluster.key_of("a");
    let spoil = json!({ "metadata": { "annotations": { SESSION_ANNOTATION: "spoiled" } } });
    leases
        .patch(&name, &PatchParams::default(), &Patch::Merge(&spoil))
        .await
        .unwrap();
    let a = cluster.replicas[0].membership.clone();
    cluster.until("a has noticed", |_| !a.may_act(&key)).await;
    cluster
        .until("both share again", |c| c.shared_by(&["a", "b"]))
        .await;
}

#[tokio::test]
async fn two_processes_with_one_identity_do_not_both_act() {
    let mut cluster = Cluster::new().await;
    cluster.start_all(&["a"]).await;
    let twin = cluster.start("a").await;
    cluster.watch_for(cluster.timing.peer_ttl * 2).await;
    assert!(!twin.has_joined());
    // The first one ends: the second inherits at once, because the lease is released.
    cluster.drain("a").await.unwrap();
    cluster.until("the twin acts", |c| c.shared_by(&["a"])).await;
}

#[tokio::test]
async fn old_leases_are_deleted_in_the_end() {
    let mut cluster = Cluster::new().await;
    cluster.timing.gc_after = Duration::from_secs(3);
    cluster.start_all(&["a", "b", "c"]).await;
    cluster.drain("b").await.unwrap();
    cluster.kill("c");
    cluster.forget("c");
    let leases = cluster.leases().await;
    let names = [cluster.lease_name("b"), cluster.lease_name("c")];
    assert_eq!(
        leases.get_opt(&names[0]).await.unwrap().map(|l| l.metadata.name),
        Some(Some(names[0].clone()))
    );
    for name in names {
        loop {
            cluster.watch_for(Duration::from_millis(100)).await;
            if leases.get_opt(&name).await.unwrap().is_none() {
                break;
            }
        }
    }
    assert!(leases.get_opt(&cluster.lease_name("a")).await.unwrap().is_some());
}
