//! Faults: refusals, lost answers, lost watches, missing permissions, broken objects.

use std::time::Duration;

use tokio::time::Instant;
use watchdog_proto::weeder::v1 as pb;
use watchdog_sandbox::{Fault, FaultAction, Rule};
use watchdog_test_support::in_process::{eventually, rule};

use crate::seed::{Seed, Weeder, pod_watches};

/// A seed with a namespace in which etcd has recovered after these pods were created, which run, and its weeder.
pub async fn following(pods: &[&str]) -> (Seed, Weeder) {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    for pod in pods {
        seed.pod("shoot", pod, "apiserver");
    }
    let weeder = seed.ready().await;
    seed.next_second().await;
    seed.service("shoot", "etcd", true);
    let active = |w: &pb::Weeder| w.state() == pb::WeederState::Active;
    weeder.wait("shoot", "etcd", "it is active", active).await;
    (seed, weeder)
}

fn results(weeding: &pb::Weeder) -> Vec<pb::DeletionResult> {
    weeding.deletions.iter().map(pb::PodDeletion::result).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_deletion_waits_as_long_as_it_is_asked_to() {
    let (seed, weeder) = following(&["kube-apiserver"]).await;
    let throttled = FaultAction::TooManyRequests { retry_after: 2 };
    seed.api.inject(Fault::always(throttled).verb("delete").times(1));
    let begun = Instant::now();
    seed.crash("shoot", "kube-apiserver");
    let refused = |w: &pb::Weeder| results(w) == [pb::DeletionResult::Refused];
    let weeding = weeder.wait("shoot", "etcd", "it is refused", refused).await;
    let message = &weeding.deletions[0].message;
    assert!(
        message.contains("throttles (429) and asks to wait for 2s"),
        "{message}"
    );
    seed.gone("shoot", "kube-apiserver").await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    let deleted = |w: &pb::Weeder| {
        results(w) == [pb::DeletionResult::Refused, pb::DeletionResult::Deleted] && w.deleted == 1
    };
    weeder.wait("shoot", "etcd", "it is deleted", deleted).await;
    assert_eq!(seed.deletions().len(), 2);
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_are_dropped_or_compacted_are_opened_again() {
    for gone_as_status in [false, true] {
        let (seed, weeder) = following(&["first", "second"]).await;
        seed.service("shoot", "kube-apiserver", false);
        weeder.wait_service("shoot", "kube-apiserver", false).await;
        seed.api.set_gone_as_status(gone_as_status);
        let watches = pod_watches(&seed);
        seed.api.drop_watches();
        eventually("the pods are watched again", || pod_watches(&seed) > watches).await;
        seed.crash("shoot", "first");
        seed.gone("shoot", "first").await;
        // What happens while the server is away is forgotten before the watches come back: etcd, too, is as ready as it
        // was when they broke.
        seed.crashing("shoot", "successor", "apiserver");
        let left = |w: &pb::Weeder| !w.left_alone.is_empty();
        weeder
            .wait("shoot", "etcd", "a successor is left alone", left)
            .await;
        seed.api.stop().await.unwrap();
        seed.next_second().await;
        seed.service("shoot", "etcd", false);
        seed.recover("shoot", "etcd");
        seed.crash("shoot", "second");
        seed.crashing("shoot", "kcm", "controller-manager");
        seed.service("shoot", "kube-apiserver", true);
        seed.api.compact();
        seed.api.resume().await.unwrap();
        seed.gone("shoot", "kcm").await;
        seed.gone("shoot", "second").await;
        seed.gone("shoot", "successor").await;
        weeder.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permissions_are_named_and_their_grant_is_noticed() {
    let seed = Seed::new().await;
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    seed.recover("shoot", "etcd");
    seed.api.restrict("weeder-0", vec![]);
    let weeder = seed.start("weeder-0").await;
    let needed = [
        "list endpointslices.discovery.k8s.io in all namespaces",
        "watch endpointslices.discovery.k8s.io in all namespaces",
        "list pods in all namespaces",
        "watch pods in all namespaces",
        "delete pods in all namespaces",
        "create events.events.k8s.io in all namespaces",
        "patch events.events.k8s.io in all namespaces",
        "create leases.coordination.k8s.io in namespace garden",
    ];
    eventually("all missing permissions are named", || {
        let why = weeder.blocker("permissions").unwrap_or_default();
        needed.iter().all(|permission| why.contains(permission)) && !why.contains("endpoints in")
    })
    .await;
    assert!(weeder.blocker("endpointslices").is_some() && weeder.blocker("leader-election").is_some());
    assert!(seed.exists("shoot", "kube-apiserver"));
    // Exactly what is named is enough.
    let rule = |verbs: &[&str], group: &str, resource: &str| Rule {
        groups: vec![group.to_owned()],
        ..rule(verbs, &[resource])
    };
    let mut leases = rule(
        &["get", "list", "watch", "create", "update", "delete"],
        "coordination.k8s.io",
        "leases",
    );
    leases.namespaces = vec!["garden".to_owned()];
    let rules = vec![
        rule(&["list", "watch"], "discovery.k8s.io", "endpointslices"),
        rule(&["list", "watch", "delete"], "", "pods"),
        rule(&["create", "patch"], "events.k8s.io", "events"),
        rule(&["create"], "authorization.k8s.io", "selfsubjectaccessreviews"),
        leases,
    ];
    seed.api.restrict("weeder-0", rules);
    seed.gone("shoot", "kube-apiserver").await;
    eventually("an Event tells of it", || !seed.events().is_empty()).await;
    weeder.wait_ready().await;
    let audit = seed.api.audit_since(0);
    let last = audit.len().saturating_sub(20);
    assert!(
        audit[last..].iter().all(|entry| entry.code != 403),
        "{:#?}",
        &audit[last..]
    );
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_is_waited_for() {
    let seed = Seed::new().await;
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    seed.recover("shoot", "etcd");
    seed.api.stop().await.unwrap();
    let weeder = seed.start("weeder-0").await;
    eventually("it says what it waits for", || {
        weeder
            .blocker("discovery")
            .is_some_and(|why| why.contains("cannot discover the APIs of the seed"))
    })
    .await;
    seed.api.resume().await.unwrap();
    seed.gone("shoot", "kube-apiserver").await;
    weeder.wait_ready().await;
    weeder.stop().await;
}
