//! Watches, as kube's client and its watcher use them.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod support;

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use support::{PATIENCE, client, server};
use watchdog_sandbox::{ApiOptions, ApiServer};

fn configmap(name: &str, labels: serde_json::Value) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap()
}

async fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> T {
    tokio::time::timeout(PATIENCE, stream.next())
        .await
        .unwrap()
        .unwrap()
}

/// Short name of a watch event, for comparisons.
fn brief<K: ResourceExt>(event: &WatchEvent<K>) -> String {
    match event {
        WatchEvent::Added(object) => format!("+{}", object.name_any()),
        WatchEvent::Modified(object) => format!("~{}", object.name_any()),
        WatchEvent::Deleted(object) => format!("-{}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".into(),
        WatchEvent::Error(status) => format!("error {}", status.code),
    }
}

#[tokio::test]
async fn selector_transitions_add_and_delete() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let post = PostParams::default();
    let created = maps
        .create(&post, &configmap("a", json!({ "on": "no" })))
        .await
        .unwrap();
    let from = created.resource_version().unwrap();
    let params = WatchParams {
        bookmarks: false,
        ..WatchParams::default().labels("on=yes")
    };
    let mut events = pin!(maps.watch(&params, &from).await.unwrap());
    let set = async |value: &str, data: &str| {
        let patch = json!({ "metadata": { "labels": { "on": value } }, "data": { "d": data } });
        maps.patch("a", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap()
    };
    set("no", "1").await;
    set("yes", "2").await;
    set("yes", "3").await;
    let left = set("no", "4").await;
    set("yes", "5").await;
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..5 {
        let event = next(&mut events).await.unwrap();
        if let (WatchEvent::Deleted(object), 2) = (&event, seen.len()) {
            // The last matching state, at the revision of the change that ended the match.
            assert_eq!(object.data.as_ref().unwrap()["d"], "3");
            assert_eq!(object.resource_version(), left.resource_version());
        }
        seen.push(brief(&event));
    }
    assert_eq!(seen, ["+a", "~a", "-a", "+a", "-a"]);
}

#[tokio::test]
async fn a_watch_without_version_starts_with_the_current_objects() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    maps.create(&PostParams::default(), &configmap("a", json!({})))
        .await
        .unwrap();
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
async fn forgotten_versions_are_gone() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let created = maps
        .create(&PostParams::default(), &configmap("a", json!({})))
        .await
        .unwrap();
    let from = created.resource_version().unwrap();
    api.compact();
    let mut events = pin!(maps.watch(&WatchParams::default(), &from).await.unwrap());
    let WatchEvent::Error(status) = next(&mut events).await.unwrap() else {
        panic!("no error event")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert!(
        status.message.starts_with("too old resource version: "),
        "{status}"
    );

    api.set_gone_as_status(true);
    let Err(kube::Error::Api(status)) = maps.watch(&WatchParams::default(), &from).await.map(|_| ()) else {
        panic!("no HTTP 410")
    };
    assert_eq!(status.code, 410);
}

/// Applies watcher events to a map, as a reflector does.
#[derive(Default)]
struct Mirror {
    live: BTreeMap<String, String>,
    buffer: BTreeMap<String, String>,
    inits: usize,
}

impl Mirror {
    fn take<K: ResourceExt>(&mut self, event: watcher::Event<K>) {
        let entry = |object: &K| (object.name_any(), object.resource_version().unwrap());
        match event {
            watcher::Event::Init => self.buffer.clear(),
            watcher::Event::InitApply(object) => self.buffer.extend([entry(&object)]),
            watcher::Event::InitDone => {
                self.inits += 1;
                self.live = std::mem::take(&mut self.buffer);
            }
            watcher::Event::Apply(object) => self.live.extend([entry(&object)]),
            watcher::Event::Delete(object) => {
                self.live.remove(&object.name_any());
            }
        }
    }

    /// Follows `events` until the mirror holds what the server holds.
    async fn catch_up<K: ResourceExt>(
        &mut self,
        events: &mut (impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin),
        maps: &Api<ConfigMap>,
    ) {
        let list = maps.list(&Default::default()).await.unwrap();
        let wanted: BTreeMap<_, _> = list
            .items
            .iter()
            .map(|map| (map.name_any(), map.resource_version().unwrap()))
            .collect();
        while self.live != wanted {
            // Errors are what the watcher recovers from.
            if let Ok(event) = next(events).await {
                self.take(event);
            }
        }
    }
}

async fn watcher_survives(config: watcher::Config) {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let post = PostParams::default();
    for index in 0..5 {
        maps.create(&post, &configmap(&format!("m{index}"), json!({})))
            .await
            .unwrap();
    }
    let mut events = pin!(watcher(maps.clone(), config).default_backoff());
    let mut mirror = Mirror::default();
    mirror.catch_up(&mut events, &maps).await;
    assert_eq!(mirror.inits, 1);

    maps.delete("m0", &DeleteParams::default()).await.unwrap();
    maps.create(&post, &configmap("m5", json!({}))).await.unwrap();
    mirror.catch_up(&mut events, &maps).await;

    // A dropped watch resumes where it was.
    api.drop_watches();
    maps.delete("m1", &DeleteParams::default()).await.unwrap();
    mirror.catch_up(&mut events, &maps).await;
    assert_eq!(mirror.inits, 1, "a resumed watch needs no list");

    // One that falls behind the history starts over.
    api.drop_watches();
    maps.delete("m2", &DeleteParams::default()).await.unwrap();
    api.compact();
    maps.create(&post, &configmap("m6", json!({}))).await.unwrap();
    mirror.catch_up(&mut events, &maps).await;
    assert_eq!(mirror.inits, 2);

    // A stopped server comes back with its objects.
    api.stop().await.unwrap();
    assert!(maps.list(&Default::default()).await.is_err());
    api.resume().await.unwrap();
    maps.delete("m3", &DeleteParams::default()).await.unwrap();
    mirror.catch_up(&mut events, &maps).await;
}

#[tokio::test]
async fn list_watch_survives_everything() {
    watcher_survives(watcher::Config::default().page_size(2)).await;
}

#[tokio::test]
async fn streaming_list_survives_everything() {
    watcher_survives(watcher::Config::default().streaming_lists()).await;
}

#[tokio::test]
async fn metadata_only() {
    let api = server().await;
    let client = client(&api, "admin").await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let secret: Secret =
        serde_json::from_value(json!({ "metadata": { "name": "s" }, "stringData": { "k": "secret" } }))
            .unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let partial: Api<PartialObjectMeta<Secret>> = Api::namespaced(client, "default");
    let got = partial.get("s").await.unwrap();
    assert_eq!(got.types.unwrap().kind, "PartialObjectMetadata");
    let listed = partial.list(&Default::default()).await.unwrap();
    assert_eq!(listed.items[0].name_any(), "s");
    let mut events = pin!(watcher(partial, watcher::Config::default()));
    let mut mirror = Mirror::default();
    while mirror.live.is_empty() {
        mirror.take(next(&mut events).await.unwrap());
    }
    secrets.delete("s", &DeleteParams::default()).await.unwrap();
    while !mirror.live.is_empty() {
        mirror.take(next(&mut events).await.unwrap());
    }
    // "secret" in base64 went out only in the answer to the create.
    assert_eq!(
        api.audit().iter().filter(|entry| entry.verb == "watch").count(),
        1
    );
}
