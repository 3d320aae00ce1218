//! The API server, as far as the programs rely on it: preconditions, bookmarks, credentials, the end of a server.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed test may panic"
)]

mod support;

use std::{pin::pin, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams},
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

fn code<T: std::fmt::Debug>(answer: Result<T, kube::Error>) -> u16 {
    match answer {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_write_rests_on_its_preconditions() {
    let api = server().await;
    let deployments: Api<Deployment> = Api::namespaced(client(&api, "admin").await, "default");
    let kcm = json!({ "metadata": { "name": "kcm" }, "spec": { "selector": {}, "template": {} } });
    let kcm: Deployment = serde_json::from_value(kcm).unwrap();
    let made = deployments.create(&PostParams::default(), &kcm).await.unwrap();
    assert_eq!(made.spec.as_ref().unwrap().replicas, Some(1), "the default");
    let exists = deployments.create(&PostParams::default(), &kcm).await;
    assert_eq!(code(exists), 409);

    let stale = made.resource_version().unwrap();
    let down = |version: &str| {
        let metadata = json!({ "resourceVersion": version, "annotations": { "a": "b" } });
        Patch::Merge(json!({ "metadata": metadata, "spec": { "replicas": 0 } }))
    };
    let params = PatchParams::apply("tester");
    let patched = deployments.patch("kcm", &params, &down(&stale)).await.unwrap();
    let version = patched.resource_version().unwrap();
    assert_ne!(version, stale);
    assert_eq!(code(deployments.patch("kcm", &params, &down(&stale)).await), 409);
    let again = deployments.patch("kcm", &params, &down(&version)).await.unwrap();
    assert_eq!(again.resource_version().unwrap(), version, "nothing changed");
    let writers = again.metadata.managed_fields.as_ref().unwrap();
    assert!(
        writers
            .iter()
            .any(|writer| writer.manager.as_deref() == Some("tester"))
    );

    let status = Patch::Merge(json!({ "spec": { "replicas": 5 }, "status": { "readyReplicas": 2 } }));
    let with_status = deployments.patch_status("kcm", &params, &status).await.unwrap();
    let counts = |of: &Deployment| {
        let ready = of.status.as_ref().and_then(|status| status.ready_replicas);
        (of.spec.as_ref().and_then(|spec| spec.replicas), ready)
    };
    assert_eq!(counts(&with_status), (Some(0), Some(2)));
    let main = Patch::Merge(json!({ "status": { "readyReplicas": 7 } }));
    let unchanged = deployments.patch("kcm", &params, &main).await.unwrap();
    assert_eq!(counts(&unchanged), (Some(0), Some(2)));

    let mut scale = deployments.get_scale("kcm").await.unwrap();
    scale.spec.get_or_insert_default().replicas = Some(3);
    let post = PostParams::default();
    deployments.replace_scale("kcm", &post, &scale).await.unwrap();
    assert_eq!(counts(&deployments.get("kcm").await.unwrap()).0, Some(3));
    assert_eq!(
        code(deployments.replace_scale("kcm", &post, &scale).await),
        409,
        "stale"
    );

    let delete = |preconditions: Preconditions| DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    let other = delete(Preconditions {
        uid: Some("other".into()),
        resource_version: None,
    });
    assert_eq!(code(deployments.delete("kcm", &other).await), 409);
    let old = delete(Preconditions {
        uid: made.uid(),
        resource_version: Some(version),
    });
    assert_eq!(code(deployments.delete("kcm", &old).await), 409);
    let same = delete(Preconditions {
        uid: made.uid(),
        resource_version: None,
    });
    deployments.delete("kcm", &same).await.unwrap();
    assert_eq!(code(deployments.get("kcm").await), 404);
}
