//! When a service counts as ready: endpoints of every kind. docs/configuration.md has a row for each.

mod support;

use serde_json::{Value, json};
use support::{Seed, Weeder};
use watchdog_proto::weeder::v1 as pb;
use watchdog_sandbox::resource::keys;

const SHOOT: &str = "shoot";

/// A seed with a namespace in which a pod that needs etcd is in a crash loop.
async fn seed() -> Seed {
    with_dependant(Seed::new().await)
}

async fn with_endpoints_only() -> Seed {
    with_dependant(Seed::with_endpoints_only().await)
}

fn with_dependant(seed: Seed) -> Seed {
    seed.namespace(SHOOT);
    seed.crashing(SHOOT, "kube-apiserver", "apiserver");
    seed
}

/// A slice of etcd with one endpoint that no pod is behind.
fn slice(conditions: Value) -> Value {
    json!({
        "metadata": {"name": "etcd-1", "labels": {"kubernetes.io/service-name": "etcd"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions}],
    })
}

fn put_slice(seed: &Seed, conditions: Value) {
    seed.put(&keys::ENDPOINT_SLICES, SHOOT, "etcd-1", slice(conditions));
}

/// Nothing is ready yet: no weeder lives.
async fn nothing_lives(seed: &Seed) -> Weeder {
    let mut weeder = seed.ready().await;
    assert_eq!(weeder.list().await, []);
    weeder
}

async fn weeded(seed: &Seed, mut weeder: Weeder) {
    seed.gone(SHOOT, "kube-apiserver").await;
    let shown = weeder
        .wait(SHOOT, "etcd", "it deleted the pod", |w| w.deleted == 1)
        .await;
    assert!(!shown.first_sight, "{shown:#?}");
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_only_published_while_it_is_not_ready_does_not_count() {
    let seed = seed().await;
    // publishNotReadyAddresses: every endpoint is ready, and only serving tells.
    put_slice(&seed, json!({"ready": true, "serving": false}));
    let weeder = nothing_lives(&seed).await;
    put_slice(&seed, json!({"ready": true, "serving": true}));
    weeded(&seed, weeder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_endpoints_a_published_address_counts_as_ready() {
    let seed = with_endpoints_only().await;
    // Without publishNotReadyAddresses this address stands in notReadyAddresses; with it, among the ready ones.
    seed.endpoints(SHOOT, "etcd", 0, 1);
    let weeder = nothing_lives(&seed).await;
    seed.endpoints(SHOOT, "etcd", 1, 0);
    weeded(&seed, weeder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_whose_readiness_is_null_counts_as_ready() {
    for unset in [json!({"ready": null}), json!({}), json!(null)] {
        let seed = seed().await;
        put_slice(&seed, json!({"ready": false}));
        let weeder = nothing_lives(&seed).await;
        put_slice(&seed, unset);
        weeded(&seed, weeder).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_headless_service_is_weeded_as_any_other() {
    for endpoints_only in [false, true] {
        let seed = match endpoints_only {
            false => seed().await,
            true => with_endpoints_only().await,
        };
        let service = json!({
            "metadata": {"name": "etcd"},
            "spec": {"clusterIP": "None", "clusterIPs": ["None"], "selector": {"role": "main"}},
        });
        seed.put(&keys::SERVICES, SHOOT, "etcd", service);
        // The endpoint controller marks the endpoints of a headless Service.
        let mark = |ready: bool| {
            if endpoints_only {
                seed.endpoints(SHOOT, "etcd", usize::from(ready), usize::from(!ready));
                seed.label(
                    &keys::ENDPOINTS,
                    SHOOT,
                    "etcd",
                    "service.kubernetes.io/headless",
                    "",
                );
            } else {
                seed.service(SHOOT, "etcd", ready);
                seed.label(
                    &keys::ENDPOINT_SLICES,
                    SHOOT,
                    "etcd-1",
                    "service.kubernetes.io/headless",
                    "",
                );
            }
        };
        mark(false);
        let weeder = nothing_lives(&seed).await;
        mark(true);
        weeded(&seed, weeder).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_a_selector_is_as_ready_as_its_handwritten_endpoints() {
    let seed = seed().await;
    seed.put(
        &keys::SERVICES,
        SHOOT,
        "etcd",
        json!({"metadata": {"name": "etcd"}, "spec": {}}),
    );
    put_slice(&seed, json!({"ready": false}));
    let weeder = nothing_lives(&seed).await;
    put_slice(&seed, json!({"ready": true}));
    weeded(&seed, weeder).await;
    // Its endpoints name no pod, so they do not say since when they are ready: at first sight nothing is deleted.
    seed.crashing(SHOOT, "kube-apiserver", "apiserver");
    let mut weeder = seed.ready().await;
    let silent = |w: &pb::Weeder| w.message.contains("do not say since when");
    let shown = weeder.wait(SHOOT, "etcd", "it says so", silent).await;
    assert_eq!((shown.first_sight, shown.deleted), (true, 0));
    assert!(seed.exists(SHOOT, "kube-apiserver"));
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_slice_without_a_ready_endpoint_hides_no_recovery() {
    let seed = seed().await;
    seed.slice(SHOOT, "old", "etcd", &[Some(false)]);
    let weeder = nothing_lives(&seed).await;
    seed.slice(SHOOT, "new", "etcd", &[Some(true)]);
    weeded(&seed, weeder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_slice_with_a_ready_endpoint_keeps_its_service_ready() {
    let seed = seed().await;
    seed.slice(SHOOT, "old", "etcd", &[Some(false)]);
    let mut weeder = nothing_lives(&seed).await;
    seed.slice(SHOOT, "old", "etcd", &[Some(true)]);
    seed.gone(SHOOT, "kube-apiserver").await;
    let first = weeder.find(SHOOT, "etcd").await.unwrap();
    // Neither what the other slice does nor the end of the stale one is a recovery.
    seed.slice(SHOOT, "new", "etcd", &[Some(false)]);
    seed.slice(SHOOT, "new", "etcd", &[Some(true)]);
    seed.delete(&keys::ENDPOINT_SLICES, SHOOT, "old");
    seed.crashing(SHOOT, "marker", "apiserver");
    seed.gone(SHOOT, "marker").await;
    let last = weeder.find(SHOOT, "etcd").await.unwrap();
    assert_eq!(last.started_at, first.started_at);
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_moves_leaves_one_service_and_makes_the_other_ready() {
    let seed = seed().await;
    seed.slice(SHOOT, "slice", "kube-apiserver", &[Some(true)]);
    seed.slice(SHOOT, "rest", "kube-apiserver", &[Some(false)]);
    let mut weeder = seed.ready().await;
    assert!(weeder.find(SHOOT, "etcd").await.is_none());
    seed.slice(SHOOT, "slice", "etcd", &[Some(true)]);
    seed.gone(SHOOT, "kube-apiserver").await;
    // The service that it has left is no longer ready.
    let paused = |w: &pb::Weeder| w.message.contains("is not ready: nothing is deleted");
    weeder.wait(SHOOT, "kube-apiserver", "it pauses", paused).await;
    weeder.stop().await;
}
