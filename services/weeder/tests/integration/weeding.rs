//! Tests which pods are weeded, and when: the whole weeder against an API server in memory.

use serde_json::json;
use watchdog_proto::weeder::v1 as pb;
use watchdog_test_support::in_process::eventually;
use watchdog_test_support::wait::{self, BOUND};

use crate::seed::{CONFIG, Seed};

#[tokio::test(flavor = "multi_thread")]
async fn dependants_in_a_crash_loop_are_deleted_and_no_others() {
    let seed = Seed::new().await;
    for namespace in ["shoot--a", "shoot--b"] {
        seed.namespace(namespace);
        seed.service(namespace, "kube-apiserver", false);
        seed.crashing(namespace, "kcm", "controller-manager");
    }
    seed.pod("shoot--a", "scheduler", "scheduler");
    seed.crash_in_init("shoot--a", "scheduler");
    seed.pod("shoot--a", "running", "controller-manager");
    seed.crashing("shoot--a", "kube-apiserver", "apiserver");
    seed.pod_with("shoot--a", "extension", &json!({"extension": "x"}));
    seed.crash("shoot--a", "extension");
    seed.pod_with("shoot--a", "unrelated", &json!({"app": "x"}));
    seed.crash("shoot--a", "unrelated");
    let weeder = seed.ready().await;
    assert!(weeder.list().await.is_empty(), "nothing is ready");

    seed.service("shoot--a", "kube-apiserver", true);
    for pod in ["kcm", "scheduler", "extension"] {
        seed.gone("shoot--a", pod).await;
    }
    let weeding = weeder.wait_deleted("shoot--a", "kube-apiserver", 3).await;
    assert_eq!(weeding.state(), pb::WeederState::Active);
    assert_eq!(weeding.replica, "weeder-0");
    assert_eq!(weeding.selectors.len(), 2);
    let (started, ends) = (weeding.start_time.unwrap(), weeding.end_time.unwrap());
    assert_eq!(ends.seconds - started.seconds, 300, "watchDuration");
    assert!((1..=300).contains(&weeding.remaining.unwrap().seconds));
    let init = weeding
        .deletions
        .iter()
        .find(|deletion| deletion.pod == "scheduler")
        .unwrap();
    assert!(init.init_container && init.container == "setup" && init.restart_count == 5);
    assert_eq!(init.result(), pb::DeletionResult::Deleted);
    assert!(
        init.message.contains("its service has been ready again since"),
        "{}",
        init.message
    );
    for pod in ["running", "kube-apiserver", "unrelated"] {
        assert!(seed.exists("shoot--a", pod), "{pod}");
    }
    assert!(seed.exists("shoot--b", "kcm"), "another shoot");
    for deletion in seed.deletions() {
        let body: serde_json::Value = serde_json::from_slice(&deletion.body).unwrap();
        assert!(body["preconditions"]["uid"].is_string(), "{body}");
        assert!(body["preconditions"]["resourceVersion"].is_string(), "{body}");
    }
    eventually("an Event reports each", || seed.events().len() == 3).await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_where_there_are_no_slices() {
    let seed = Seed::with_slices(false).await;
    seed.endpoints("shoot", "etcd", 0, 3);
    seed.endpoints("shoot", "kube-apiserver", 0, 0);
    seed.endpoints("shoot", "other", 1, 0);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    seed.crashing("shoot", "kcm", "controller-manager");
    let weeder = seed.ready().await;
    assert!(weeder.list().await.is_empty());
    seed.endpoints("shoot", "etcd", 1, 2);
    seed.gone("shoot", "kube-apiserver").await;
    seed.endpoints("shoot", "kube-apiserver", 1, 0);
    seed.gone("shoot", "kcm").await;
    let audit = seed.api.audit();
    let lists: Vec<_> = audit
        .iter()
        .filter(|e| e.path == "/api/v1/endpoints" && e.verb == "list")
        .collect();
    assert!(!lists.is_empty());
    assert!(
        lists.iter().all(|e| e.query.contains("metadata.name%3D")),
        "only those that are configured"
    );
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_takes_effect_without_a_restart() {
    let seed = Seed::new().await;
    seed.configure("servicesAndDependantSelectors: {etcd: {podSelectors: [{matchLabels: {role: nobody}}]}}");
    seed.service("shoot", "etcd", false);
    seed.service("shoot", "kube-apiserver", false);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    seed.crashing("shoot", "kcm", "controller-manager");
    let weeder = seed.ready().await;
    seed.recover("shoot", "etcd");
    weeder.wait("shoot", "etcd", "it started", |_| true).await;
    assert_eq!(weeder.list().await.len(), 1);
    seed.configure("servicesAndDependantSelectors: [broken");
    // The recovery goes on with other dependants.
    seed.configure(CONFIG);
    seed.gone("shoot", "kube-apiserver").await;
    weeder.wait_service("shoot", "kube-apiserver", false).await;
    seed.service("shoot", "kube-apiserver", true);
    seed.gone("shoot", "kcm").await;
    weeder.wait_deleted("shoot", "kube-apiserver", 1).await;
    seed.configure("servicesAndDependantSelectors: {other: {podSelectors: [{matchLabels: {a: b}}]}}");
    wait::until_true("nothing of it is left", BOUND, || async {
        Ok(weeder.list().await.is_empty())
    })
    .await
    .unwrap();
    weeder.wait_ready().await;
    weeder.stop().await;
}
