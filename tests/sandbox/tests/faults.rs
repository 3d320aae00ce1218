//! Faults on command.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod support;

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use support::{client, eventually_async, server};
use watchdog_sandbox::{Fault, FaultAction};

/// Long enough for a loopback answer, short enough for a test of silence.
const SILENCE: Duration = Duration::from_millis(300);

fn configmap(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
}

#[tokio::test]
async fn answers_that_are_errors() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let list = async || maps.list(&ListParams::default()).await;

    api.inject(
        Fault::always(FaultAction::TooManyRequests { retry_after: 3 })
            .verb("list")
            .times(1),
    );
    let Err(kube::Error::Api(status)) = list().await else {
        panic!("no 429")
    };
    assert_eq!(
        (status.code, status.details.clone().unwrap().retry_after_seconds),
        (429, 3)
    );
    list().await.unwrap();

    let id = api.inject(Fault::always(FaultAction::InternalError).path("/api/v1/namespaces/default"));
    let Err(kube::Error::Api(status)) = list().await else {
        panic!("no 500")
    };
    assert_eq!(status.code, 500);
    assert!(api.clear_fault(id));
    list().await.unwrap();

    api.inject(Fault::always(FaultAction::Garbage).user("admin").times(1));
    assert!(list().await.is_err());
    api.inject(Fault::always(FaultAction::Garbage).user("somebody"));
    list().await.unwrap();

    api.inject(Fault::always(FaultAction::Delay { millis: 200 }).times(1));
    let start = Instant::now();
    list().await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn silence() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let list = async || tokio::time::timeout(SILENCE, maps.list(&ListParams::default())).await;
    list().await.unwrap().unwrap();

    api.inject(Fault::always(FaultAction::Hang).times(1));
    assert!(list().await.is_err(), "a hanging server does not answer");

    api.freeze();
    assert!(list().await.is_err(), "a black hole does not answer");
    api.thaw();
    eventually_async("the network is back", async || matches!(list().await, Ok(Ok(_)))).await;
}

#[tokio::test]
async fn a_write_that_nobody_confirms() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    api.inject(Fault::always(FaultAction::ApplyAndHang).verb("create").times(1));
    let post = PostParams::default();
    let map = configmap("a");
    let create = maps.create(&post, &map);
    assert!(tokio::time::timeout(SILENCE, create).await.is_err());
    maps.get("a").await.unwrap();
    let entry = api
        .audit()
        .into_iter()
        .find(|entry| entry.verb == "create")
        .unwrap();
    assert_eq!(entry.code, 0);
    assert!(entry.is_write());
}

#[tokio::test]
async fn stop_cut_and_resume() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    maps.create(&PostParams::default(), &configmap("a"))
        .await
        .unwrap();
    let address = api.address();
    api.stop().await.unwrap();
    assert!(!api.is_reachable());
    let refused = tokio::net::TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(maps.get("a").await.is_err());
    api.resume().await.unwrap();
    assert_eq!(api.address(), address);
    maps.get("a").await.unwrap();

    let before = api.counters();
    api.cut_connections();
    eventually_async("a new connection serves", async || maps.get("a").await.is_ok()).await;
    assert!(api.counters().connections > before.connections);

    api.inject(Fault::always(FaultAction::Cut).times(1));
    assert!(maps.get("a").await.is_err(), "cut without an answer");
    maps.get("a").await.unwrap();
}
