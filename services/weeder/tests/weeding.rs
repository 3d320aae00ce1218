//! Tests which pods are weeded, and when: the whole weeder against an API server in memory.

mod support;

use serde_json::json;
use support::{CONFIG, Seed, eventually};
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::weeder::v1 as pb;
use watchdog_sandbox::resource::keys;
use watchdog_test_support::in_process::eventually_async;

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
    assert_eq!(weeding.owner, "weeder-0");
    assert_eq!(weeding.selectors.len(), 2);
    let (started, ends) = (weeding.started_at.unwrap(), weeding.ends_at.unwrap());
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
        init.message.contains("service kube-apiserver is ready again"),
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
    eventually("an Event tells of each", || seed.events().len() == 3).await;
    let events = seed.events();
    let event = events
        .iter()
        .find(|event| event.text("/regarding/name").starts_with("kcm-rs"))
        .unwrap();
    assert_eq!(event.text("/regarding/kind"), "ReplicaSet");
    assert_eq!(event.text("/reason"), "WeededCrashLoopingPod");
    assert!(
        event.text("/note").contains("Deleted pod kcm"),
        "{}",
        event.text("/note")
    );
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chain_from_etcd_to_the_control_plane() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    seed.service("shoot", "kube-apiserver", false);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    seed.crashing("shoot", "kcm", "controller-manager");
    let weeder = seed.ready().await;
    seed.service("shoot", "etcd", true);
    seed.gone("shoot", "kube-apiserver").await;
    assert!(seed.exists("shoot", "kcm"), "its service is not ready yet");
    seed.pod("shoot", "kube-apiserver", "apiserver");
    seed.service("shoot", "kube-apiserver", true);
    seed.gone("shoot", "kcm").await;
    assert!(seed.exists("shoot", "kube-apiserver"));
    weeder.wait_deleted("shoot", "kube-apiserver", 1).await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_ends_takes_its_weeder_along() {
    let seed = Seed::new().await;
    let terminating = json!({"metadata": {"name": "terminating", "finalizers": ["test/keep"]}});
    seed.api.create(&keys::NAMESPACES, "", terminating).unwrap();
    seed.namespace("gone");
    for namespace in ["terminating", "gone"] {
        seed.service(namespace, "etcd", true);
        seed.pod(namespace, "kube-apiserver", "apiserver");
    }
    let weeder = seed.ready().await;
    for namespace in ["terminating", "gone"] {
        weeder.wait_following(&seed, namespace, "etcd", 1).await;
        seed.delete(&keys::NAMESPACES, "", namespace);
        let ended = |w: &pb::Weeder| w.state() == pb::WeederState::Cancelled;
        let weeding = weeder.wait(namespace, "etcd", "it is cancelled", ended).await;
        assert_eq!(weeding.message, "The namespace is terminating or gone.");
    }
    seed.crash("terminating", "kube-apiserver");
    seed.service("terminating", "etcd", false);
    seed.service("terminating", "etcd", true);
    seed.namespace("after");
    seed.service("after", "etcd", true);
    seed.crashing("after", "kube-apiserver", "apiserver");
    seed.gone("after", "kube-apiserver").await;
    assert!(seed.exists("terminating", "kube-apiserver"));
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
    seed.delete(&keys::ENDPOINTS, "shoot", "etcd");
    seed.endpoints("shoot", "etcd", 1, 0);
    weeder.wait("shoot", "etcd", "it is there", |_| true).await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_takes_effect_without_a_restart() {
    let seed = Seed::new().await;
    seed.configure("servicesAndDependantSelectors: {etcd: {podSelectors: [{matchLabels: {role: nobody}}]}}");
    seed.service("shoot", "etcd", true);
    seed.service("shoot", "kube-apiserver", true);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    seed.crashing("shoot", "kcm", "controller-manager");
    let weeder = seed.ready().await;
    weeder.wait("shoot", "etcd", "it started", |_| true).await;
    assert_eq!(weeder.list().await.len(), 1);
    seed.configure("servicesAndDependantSelectors: [broken");
    seed.configure(CONFIG);
    seed.gone("shoot", "kube-apiserver").await;
    seed.gone("shoot", "kcm").await;
    weeder.wait_deleted("shoot", "kube-apiserver", 1).await;
    seed.configure(
        "servicesAndDependantSelectors: {kube-apiserver: {podSelectors: [{matchLabels: {a: b}}]}}",
    );
    let cancelled = |w: &pb::Weeder| w.state() == pb::WeederState::Cancelled;
    let etcd = weeder.wait("shoot", "etcd", "it is cancelled", cancelled).await;
    assert_eq!(etcd.message, "The configuration no longer names the service.");
    weeder
        .wait("shoot", "kube-apiserver", "it has other dependants", |w| {
            w.selectors == ["a in (b)"]
        })
        .await;
    weeder.wait_ready().await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_middle_loses_nothing() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", true);
    seed.crashing("shoot", "kube-apiserver-1", "apiserver");
    let weeder = seed.ready().await;
    seed.gone("shoot", "kube-apiserver-1").await;
    weeder.kill();
    seed.crashing("shoot", "kube-apiserver-2", "apiserver");
    let weeder = seed.ready().await;
    seed.gone("shoot", "kube-apiserver-2").await;
    weeder.wait_deleted("shoot", "etcd", 1).await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_namespaces() {
    let seed = Seed::new().await;
    let namespaces: Vec<String> = (0..20).map(|i| format!("shoot--{i}")).collect();
    for namespace in &namespaces {
        seed.namespace(namespace);
        seed.service(namespace, "etcd", true);
    }
    let first = seed.start("weeder-0").await;
    first.wait_ready().await;
    let second = seed.start("weeder-1").await;
    second.wait_ready().await;
    let live = |weeders: Vec<pb::Weeder>| {
        let live = weeders
            .into_iter()
            .filter(|w| w.state() != pb::WeederState::Cancelled);
        live.map(|w| w.key.unwrap().namespace).collect::<Vec<_>>()
    };
    eventually_async(
        "each namespace has one owner, and each replica answers for both",
        async || {
            let (a, b) = (
                live(first.list_in(Scope::Local).await),
                live(second.list_in(Scope::Local).await),
            );
            let mut both = [a.clone(), b.clone()].concat();
            both.sort_by_key(|name| name.trim_start_matches("shoot--").parse::<u32>().unwrap());
            let seen_by_each = [live(first.list().await).len(), live(second.list().await).len()];
            let is_shared = !a.is_empty() && !b.is_empty() && both == namespaces;
            is_shared && seen_by_each == [namespaces.len(); 2]
        },
    )
    .await;
    for namespace in &namespaces {
        seed.crashing(namespace, "late", "apiserver");
        seed.gone(namespace, "late").await;
    }
    second.stop().await;
    eventually_async("the share of the other comes back", async || {
        live(first.list_in(Scope::Local).await).len() == namespaces.len()
    })
    .await;
    first.stop().await;
}
