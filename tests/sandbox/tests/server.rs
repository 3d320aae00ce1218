//! The API server, where the tests of the programs do not show it: first events of a watch, bookmarks, status, scale.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::{pin::pin, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    config::Kubeconfig,
};
use serde_json::json;
use watchdog_sandbox::{ApiOptions, ApiServer};

/// Bound of every wait: generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

async fn client(api: &ApiServer) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&api.kubeconfig("admin")).unwrap();
    let options = Default::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.unwrap()).unwrap()
}

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
    let api = ApiServer::start(ApiOptions::default()).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client(&api).await, "default");
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
    let client = client(&api).await;
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
async fn status_and_scale_are_written_apart() {
    let api = ApiServer::start(ApiOptions::default()).await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client(&api).await, "default");
    let kcm = json!({ "metadata": { "name": "kcm" }, "spec": { "selector": {}, "template": {} } });
    let kcm: Deployment = serde_json::from_value(kcm).unwrap();
    deployments.create(&PostParams::default(), &kcm).await.unwrap();
    let counts = |of: &Deployment| {
        let ready = of.status.as_ref().and_then(|status| status.ready_replicas);
        (of.spec.as_ref().and_then(|spec| spec.replicas), ready)
    };
    let params = PatchParams::default();
    let status = Patch::Merge(json!({ "spec": { "replicas": 5 }, "status": { "readyReplicas": 2 } }));
    let with_status = deployments.patch_status("kcm", &params, &status).await.unwrap();
    assert_eq!(counts(&with_status), (Some(1), Some(2)), "one is the default");
    let main = Patch::Merge(json!({ "status": { "readyReplicas": 7 } }));
    let unchanged = deployments.patch("kcm", &params, &main).await.unwrap();
    assert_eq!(counts(&unchanged), (Some(1), Some(2)));

    let mut scale = deployments.get_scale("kcm").await.unwrap();
    scale.spec.get_or_insert_default().replicas = Some(3);
    let post = PostParams::default();
    deployments.replace_scale("kcm", &post, &scale).await.unwrap();
    assert_eq!(counts(&deployments.get("kcm").await.unwrap()).0, Some(3));
    let stale = deployments.replace_scale("kcm", &post, &scale).await;
    assert!(
        matches!(&stale, Err(kube::Error::Api(status)) if status.code == 409),
        "{stale:?}"
    );
}
