//! The same requests to the sandbox and to a real kube-apiserver: the answers must be the same.
//!
//! `real.txt` holds what a kube-apiserver v1.20.2 answered, object by object cut down to what a step shows and
//! with versions, UIDs and times made comparable. The test compares the sandbox with it. Where
//! `SANDBOX_CONFORMANCE_KUBECONFIG` names the kubeconfig of an empty real cluster (an administrator's), that
//! cluster is compared too, so the file stays true; with `SANDBOX_CONFORMANCE_RECORD` set as well, the file is
//! written anew.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed test may panic"
)]

#[path = "../support/mod.rs"]
mod support;

mod scenario;
mod transcript;

use std::path::PathBuf;

use kube::{Api, Client, api::PostParams};
use serde_json::json;
use support::{client, client_of, eventually_async, server};
use transcript::play;
use watchdog_sandbox::resource::{ResourceType, ScalePaths};

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/real.txt")
}

/// Compares step by step, so that a failure names the step.
fn assert_same(what: &str, transcript: &str) {
    let expected = std::fs::read_to_string(golden()).unwrap();
    let steps = |text: &str| text.split("\n\n").map(str::to_owned).collect::<Vec<_>>();
    let (expected, found) = (steps(&expected), steps(transcript));
    let differing: Vec<String> = expected
        .iter()
        .zip(&found)
        .filter(|(expected, found)| expected != found)
        .map(|(expected, found)| format!("--- expected\n{expected}\n--- {what}\n{found}\n"))
        .collect();
    assert!(
        differing.is_empty(),
        "{} steps differ:\n{}",
        differing.len(),
        differing.join("\n")
    );
    assert_eq!(expected.len(), found.len());
}

#[tokio::test]
async fn the_sandbox_answers_like_a_real_api_server() {
    let api = server().await;
    api.register(ResourceType::custom(
        "druid.gardener.cloud",
        "v1alpha1",
        "Etcd",
        "etcds",
        Some(ScalePaths::CUSTOM),
    ));
    // Someone without any right: on the real server nobody has granted bob any.
    api.restrict("bob", Vec::new());
    let transcript = play(&client(&api, "admin").await, &scenario::steps()).await;
    assert_same("the sandbox", &transcript);
}

#[tokio::test]
async fn a_real_api_server_still_answers_like_that() {
    // Nothing to compare with: the other test holds the sandbox to what was recorded.
    let Ok(path) = std::env::var("SANDBOX_CONFORMANCE_KUBECONFIG") else {
        return;
    };
    let client = client_of(&std::fs::read_to_string(path).unwrap()).await;
    define_etcds(&client).await;
    let transcript = play(&client, &scenario::steps()).await;
    if std::env::var_os("SANDBOX_CONFORMANCE_RECORD").is_some() {
        std::fs::write(golden(), transcript).unwrap();
    } else {
        assert_same("the real server", &transcript);
    }
}

/// The custom resource that the scenario scales.
async fn define_etcds(client: &Client) {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": { "name": "etcds.druid.gardener.cloud" },
        "spec": {
            "group": "druid.gardener.cloud",
            "scope": "Namespaced",
            "names": { "kind": "Etcd", "plural": "etcds", "singular": "etcd" },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                } },
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.labelSelector",
                    },
                },
            }],
        },
    }))
    .unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
    eventually_async("the custom resource is served", async || {
        let request = http::Request::get("/apis/druid.gardener.cloud/v1alpha1/etcds")
            .body(vec![])
            .unwrap();
        client.request_text(request).await.is_ok()
    })
    .await;
}
