//! Faults: refusals, lost answers, lost watches, missing permissions, broken objects.

mod support;

use std::time::Duration;

use serde_json::json;
use support::{Seed, Weeder, eventually, pod_watches};
use tokio::time::Instant;
use watchdog_proto::weeder::v1 as pb;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{Fault, FaultAction, Rule};
use watchdog_test_support::in_process::rule;

/// A seed with a namespace in which etcd has recovered after these pods were created, which run, and its weeder.
async fn following(pods: &[&str]) -> (Seed, Weeder) {
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

fn on_deletions(action: FaultAction) -> Fault {
    Fault::always(action)
        .verb("delete")
        .path("/api/v1/namespaces/shoot/pods/")
}

fn results(weeding: &pb::Weeder) -> Vec<pb::DeletionResult> {
    weeding.deletions.iter().map(pb::PodDeletion::result).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_recovers_before_the_deletion_arrives_is_left_alone() {
    let (seed, weeder) = following(&["kube-apiserver"]).await;
    seed.api
        .inject(on_deletions(FaultAction::Delay { millis: 1_000 }).times(1));
    seed.crash("shoot", "kube-apiserver");
    eventually("the deletion is under way", || seed.api.faults().is_empty()).await;
    seed.run("shoot", "kube-apiserver");
    let obsolete = |w: &pb::Weeder| results(w).contains(&pb::DeletionResult::Obsolete);
    let weeding = weeder
        .wait("shoot", "etcd", "the deletion is obsolete", obsolete)
        .await;
    assert_eq!(
        weeding.deletions[0].message,
        "Left alone: the pod has changed or was replaced (409)."
    );
    // It is looked at again, and deleted once it crashes again.
    assert!(seed.exists("shoot", "kube-apiserver"));
    seed.crash("shoot", "kube-apiserver");
    seed.gone("shoot", "kube-apiserver").await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_the_same_name_is_another_pod() {
    let (seed, weeder) = following(&["etcd-0"]).await;
    seed.api
        .inject(on_deletions(FaultAction::Delay { millis: 1_000 }).times(1));
    seed.crash("shoot", "etcd-0");
    let old = seed
        .api
        .store()
        .find(&keys::PODS, "shoot", "etcd-0")
        .unwrap()
        .uid()
        .to_owned();
    eventually("the deletion is under way", || seed.api.faults().is_empty()).await;
    seed.delete(&keys::PODS, "shoot", "etcd-0");
    seed.pod("shoot", "etcd-0", "apiserver");
    let attempted = |w: &pb::Weeder| w.deletions.iter().any(|d| d.uid == old);
    let weeding = weeder
        .wait("shoot", "etcd", "the deletion was answered", attempted)
        .await;
    assert_eq!(results(&weeding), [pb::DeletionResult::Obsolete]);
    seed.crash("shoot", "etcd-0");
    let left = |w: &pb::Weeder| !w.left_alone.is_empty();
    weeder
        .wait("shoot", "etcd", "the new one is left alone", left)
        .await;
    assert!(seed.exists("shoot", "etcd-0"));
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_deletion_waits_as_long_as_it_is_asked_to() {
    let (seed, weeder) = following(&["kube-apiserver"]).await;
    seed.api
        .inject(on_deletions(FaultAction::TooManyRequests { retry_after: 2 }).times(1));
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
async fn a_forbidden_deletion_names_the_permission_and_is_tried_again() {
    let (seed, weeder) = following(&["kube-apiserver"]).await;
    seed.api.deny(rule(&["delete"], &["pods"]));
    seed.crash("shoot", "kube-apiserver");
    let refused = |w: &pb::Weeder| results(w) == [pb::DeletionResult::Refused];
    let weeding = weeder.wait("shoot", "etcd", "it is refused", refused).await;
    let message = &weeding.deletions[0].message;
    assert!(
        message.contains("(403): grant this service delete pods in namespace shoot"),
        "{message}"
    );
    seed.api.allow_all();
    seed.gone("shoot", "kube-apiserver").await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_are_tried_again_when_the_server_fails() {
    let (seed, weeder) = following(&["kube-apiserver-0", "kube-apiserver-1", "kube-apiserver-2"]).await;
    for (i, action) in [FaultAction::InternalError, FaultAction::Cut, FaultAction::Garbage]
        .into_iter()
        .enumerate()
    {
        let garbage = action == FaultAction::Garbage;
        seed.api.inject(on_deletions(action).times(1));
        let pod = format!("kube-apiserver-{i}");
        seed.crash("shoot", &pod);
        if garbage {
            // A success is a success, whatever its body says.
            eventually("it was attempted", || {
                seed.deletions().iter().any(|d| d.path.ends_with(&pod))
            })
            .await;
        } else {
            seed.gone("shoot", &pod).await;
        }
    }
    weeder
        .wait("shoot", "etcd", "two are deleted", |w| w.deleted >= 2)
        .await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_does_not_delete_twice() {
    let (seed, weeder) = following(&["kube-apiserver", "marker"]).await;
    seed.api.inject(on_deletions(FaultAction::ApplyAndHang).times(1));
    seed.crash("shoot", "kube-apiserver");
    seed.gone("shoot", "kube-apiserver").await;
    // The new pod has the same name and runs.
    seed.pod("shoot", "kube-apiserver", "apiserver");
    let refused = |w: &pb::Weeder| !w.deletions.is_empty();
    let weeding = weeder
        .wait("shoot", "etcd", "the deadline has passed", refused)
        .await;
    // 10 s, or less when the Lease was renewed too long ago.
    assert!(
        weeding.deletions[0].message.contains("no answer within "),
        "{weeding:#?}"
    );
    seed.crash("shoot", "marker");
    seed.gone("shoot", "marker").await;
    assert!(seed.exists("shoot", "kube-apiserver"));
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
        // What happens while the server is away is forgotten before the watches come back.
        seed.api.stop().await.unwrap();
        seed.crash("shoot", "second");
        seed.crashing("shoot", "kcm", "controller-manager");
        seed.service("shoot", "kube-apiserver", true);
        seed.api.compact();
        seed.api.resume().await.unwrap();
        seed.gone("shoot", "kcm").await;
        seed.gone("shoot", "second").await;
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

#[tokio::test(flavor = "multi_thread")]
async fn broken_objects_stop_nothing() {
    let (seed, weeder) = following(&["broken", "kube-apiserver"]).await;
    seed.pod_status("shoot", "broken", json!({"containerStatuses": "what?"}));
    let broken = json!({
        "metadata": {"name": "broken", "labels": {"kubernetes.io/service-name": "kube-apiserver"}},
        "addressType": "IPv4",
        "endpoints": {"no": "list"},
    });
    seed.api.create(&keys::ENDPOINT_SLICES, "shoot", broken).unwrap();
    seed.crash("shoot", "kube-apiserver");
    seed.gone("shoot", "kube-apiserver").await;
    seed.crashing("shoot", "kcm-2", "controller-manager");
    seed.service("shoot", "kube-apiserver", true);
    seed.gone("shoot", "kcm-2").await;
    assert!(seed.exists("shoot", "broken"));
    weeder.stop().await;
}
