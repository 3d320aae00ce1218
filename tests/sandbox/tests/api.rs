//! The API server as kube's client sees it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod support;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use support::{client, deployment, server};

fn configmap(name: &str, labels: serde_json::Value) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels }, "data": { "k": "v" } }))
        .unwrap()
}

#[tokio::test]
async fn create_read_update_delete() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let created = maps
        .create(&PostParams::default(), &configmap("a", json!({})))
        .await
        .unwrap();
    assert!(created.metadata.uid.is_some());
    assert!(created.metadata.creation_timestamp.is_some());

    let again = maps
        .create(&PostParams::default(), &configmap("a", json!({})))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = again else {
        panic!("{again}")
    };
    assert_eq!((status.code, status.reason.as_str()), (409, "AlreadyExists"));
    assert_eq!(status.message, "configmaps \"a\" already exists");

    let mut changed = created.clone();
    changed
        .data
        .get_or_insert_default()
        .insert("k".into(), "w".into());
    let updated = maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(
        updated.metadata.resource_version,
        created.metadata.resource_version
    );
    let stale = maps
        .replace("a", &PostParams::default(), &changed)
        .await
        .unwrap_err();
    let kube::Error::Api(status) = stale else {
        panic!("{stale}")
    };
    assert!(
        status.is_conflict() && status.message.contains("the object has been modified"),
        "{status}"
    );

    let unchanged = maps.replace("a", &PostParams::default(), &updated).await.unwrap();
    assert_eq!(
        unchanged.metadata.resource_version, updated.metadata.resource_version,
        "a no-op is no write"
    );

    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn generate_name_namespaces_and_names() {
    let api = server().await;
    let client = client(&api, "admin").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut generated = configmap("", json!({}));
    generated.metadata.name = None;
    generated.metadata.generate_name = Some("x-".into());
    let name = maps
        .create(&PostParams::default(), &generated)
        .await
        .unwrap()
        .metadata
        .name
        .unwrap();
    assert!(name.starts_with("x-") && name.len() == 7, "{name}");

    let nowhere: Api<ConfigMap> = Api::namespaced(client, "nowhere");
    let error = nowhere
        .create(&PostParams::default(), &configmap("a", json!({})))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("namespaces \"nowhere\" not found"),
        "{error}"
    );

    let bad = maps
        .create(&PostParams::default(), &configmap("Not_a_name", json!({})))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = bad else {
        panic!("{bad}")
    };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
}

#[tokio::test]
async fn selectors_and_consistent_pages() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    for index in 0..7 {
        let labels =
            json!({ "parity": if index % 2 == 0 { "even" } else { "odd" }, "index": index.to_string() });
        maps.create(&PostParams::default(), &configmap(&format!("m{index}"), labels))
            .await
            .unwrap();
    }
    let count = async |params: ListParams| maps.list(&params).await.unwrap().items.len();
    assert_eq!(count(ListParams::default().labels("parity=even")).await, 4);
    assert_eq!(
        count(ListParams::default().labels("index in (1,2,3),parity!=odd")).await,
        1
    );
    assert_eq!(count(ListParams::default().fields("metadata.name=m3")).await, 1);
    assert_eq!(count(ListParams::default().fields("metadata.name!=m3")).await, 6);
    let error = maps
        .list(&ListParams::default().fields("data.k=v"))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("is not a known field selector"),
        "{error}"
    );

    let first = maps.list(&ListParams::default().limit(3)).await.unwrap();
    assert_eq!(first.items.len(), 3);
    assert_eq!(first.metadata.remaining_item_count, Some(4));
    // What happens between two pages is not seen on the second.
    maps.delete("m4", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &configmap("m9", json!({})))
        .await
        .unwrap();
    let token = first.metadata.continue_.clone().unwrap();
    let second = maps
        .list(&ListParams::default().limit(9).continue_token(&token))
        .await
        .unwrap();
    let names: Vec<_> = second
        .items
        .iter()
        .map(|map| map.metadata.name.clone().unwrap())
        .collect();
    assert_eq!(names, ["m3", "m4", "m5", "m6"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);

    api.compact();
    let error = maps
        .list(&ListParams::default().continue_token(&token))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error}")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn delete_preconditions() {
    let api = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&api, "admin").await, "default");
    let created = maps
        .create(&PostParams::default(), &configmap("a", json!({})))
        .await
        .unwrap();
    let with = |uid: Option<String>, resource_version: Option<String>| DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version,
        }),
        ..DeleteParams::default()
    };
    for wrong in [with(Some("other".into()), None), with(None, Some("1".into()))] {
        let error = maps.delete("a", &wrong).await.unwrap_err();
        let kube::Error::Api(status) = error else {
            panic!("{error}")
        };
        assert!(
            status.is_conflict() && status.message.contains("in the precondition"),
            "{status}"
        );
    }
    let right = with(created.metadata.uid, created.metadata.resource_version);
    let status = maps.delete("a", &right).await.unwrap().right().unwrap();
    assert!(status.is_success());
}

#[tokio::test]
async fn status_is_a_part_of_its_own_and_spec_grows_the_generation() {
    let api = server().await;
    let deployments: Api<Deployment> = Api::namespaced(client(&api, "admin").await, "default");
    let mut wanted = deployment("d", 2);
    wanted.status.get_or_insert_default().ready_replicas = Some(9);
    let created = deployments.create(&PostParams::default(), &wanted).await.unwrap();
    assert_eq!(
        created.status.clone().unwrap_or_default().ready_replicas,
        None,
        "creation drops the status"
    );
    assert_eq!(created.metadata.generation, Some(1));

    let status = json!({ "spec": { "replicas": 5 }, "status": { "readyReplicas": 1 } });
    let params = PatchParams::default();
    let patched = deployments
        .patch_status("d", &params, &Patch::Merge(&status))
        .await
        .unwrap();
    assert_eq!(patched.spec.as_ref().unwrap().replicas, Some(2));
    assert_eq!(patched.status.as_ref().unwrap().ready_replicas, Some(1));
    assert_eq!(patched.metadata.generation, Some(1));

    let spec = json!({ "spec": { "replicas": 5 }, "status": { "readyReplicas": 4 } });
    let patched = deployments
        .patch("d", &params, &Patch::Merge(&spec))
        .await
        .unwrap();
    assert_eq!(patched.spec.unwrap().replicas, Some(5));
    assert_eq!(patched.status.unwrap().ready_replicas, Some(1));
    assert_eq!(patched.metadata.generation, Some(2));
}
