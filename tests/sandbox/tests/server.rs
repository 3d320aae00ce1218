//! Features of the API server that the recorded answers do not show: bookmarks, credentials, the end of a server.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod support;

use std::{pin::pin, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
    client::Body,
};
use serde_json::json;
use support::{PATIENCE, client, client_of, eventually, server};
use watchdog_sandbox::{ApiOptions, ApiServer};

async fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> T {
    tokio::time::timeout(PATIENCE, stream.next())
        .await
        .unwrap()
        .unwrap()
}

/// Short name of a watch event, for comparisons.
fn brief(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(object) => format!("+{}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".into(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watch_without_version_starts_with_the_current_objects() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let params = WatchParams::default().timeout(1);
    let events: Vec<_> = maps
        .watch(&params, "0")
        .await
        .unwrap()
        .map_ok(|event| brief(&event))
        .try_collect()
        .await
        .unwrap();
    assert_eq!(
        events,
        ["+a", "bookmark"],
        "and a timeout ends it after a bookmark"
    );
}

#[tokio::test]
async fn bookmarks_carry_a_version_that_resumes() {
    let options = ApiOptions {
        bookmark_interval: Duration::from_millis(50),
        ..ApiOptions::default()
    };
    let api = ApiServer::start(options).await.unwrap();
    let client = client(&api, "admin").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut events = pin!(maps.watch(&WatchParams::default(), "0").await.unwrap());
    // A write to another kind moves the bookmark on.
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    let secret: Secret = serde_json::from_value(json!({ "metadata": { "name": "s" } })).unwrap();
    let newest = secrets
        .create(&PostParams::default(), &secret)
        .await
        .unwrap()
        .resource_version()
        .unwrap();
    loop {
        let WatchEvent::Bookmark(bookmark) = next(&mut events).await.unwrap() else {
            panic!("no bookmark")
        };
        if bookmark.metadata.resource_version == newest {
            break;
        }
    }
    let mut resumed = pin!(maps.watch(&WatchParams::default(), &newest).await.unwrap());
    assert_eq!(brief(&next(&mut resumed).await.unwrap()), "bookmark");
}

#[tokio::test]
async fn tokens_and_certificates() {
    let api = server().await;
    let with_certificate = client_of(&api.kubeconfig_with_certificate("carol").unwrap()).await;
    let maps: Api<ConfigMap> = Api::namespaced(with_certificate, "default");
    maps.list(&ListParams::default()).await.unwrap();
    assert_eq!(api.audit().last().unwrap().user, "carol");

    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "dave").await, "default");
    maps.list(&ListParams::default()).await.unwrap();
    api.revoke("dave");
    let Err(kube::Error::Api(status)) = maps.list(&ListParams::default()).await else {
        panic!("a revoked token was accepted")
    };
    assert_eq!((status.code, status.reason.as_str()), (401, "Unauthorized"));
    let entry = api.audit().pop().unwrap();
    assert_eq!(
        (entry.verb, entry.path.as_str()),
        ("list", "/api/v1/namespaces/default/configmaps")
    );
    assert_eq!((entry.user.as_str(), entry.code), ("", 401));
    assert_eq!(api.counters().requests, 3);
}

#[tokio::test]
async fn a_server_that_stops_breaks_its_watches() {
    let api = server().await;
    let watch = http::Request::get("/api/v1/namespaces/default/configmaps?watch=true");
    let client = client(&api, "admin").await;
    let response = client.send(watch.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(api.counters().open_watches, 1);
    api.stop().await.unwrap();
    let end = tokio::time::timeout(PATIENCE, response.into_body().collect()).await;
    assert!(end.unwrap().is_err(), "it does not end as at its timeout");
    eventually("no watch is left", || api.counters().open_watches == 0).await;
}
