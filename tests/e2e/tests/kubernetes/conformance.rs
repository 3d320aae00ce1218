//! The sandbox is held to recorded answers of a real API server; here a real one is held to them too, so that they stay
//! true. `WATCHDOG_RECORD_CONFORMANCE` writes them anew.

use std::time::Duration;

use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use watchdog_test_support::real::RealControlPlane;
use watchdog_test_support::sandboxed;
use watchdog_test_support::wait::until_true;

#[path = "../../../sandbox/tests/conformance/scenario.rs"]
mod scenario;
#[path = "../../../sandbox/tests/conformance/transcript.rs"]
mod transcript;

#[tokio::test(flavor = "multi_thread")]
async fn a_real_api_server_answers_as_the_sandbox_does() {
    let plane = RealControlPlane::start("conformance").await.unwrap();
    let server = plane.api_server("seed").await.unwrap();
    let client = sandboxed::client(&server.kubeconfig_for("admin").unwrap())
        .await
        .unwrap();
    define_etcds(&client).await;
    let transcript = transcript::play(&client, &scenario::steps()).await;
    if std::env::var_os("WATCHDOG_RECORD_CONFORMANCE").is_some() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../sandbox/tests/conformance/real.txt"
        );
        std::fs::write(file, transcript).unwrap();
    } else {
        transcript::assert_same("the real server", &transcript);
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
    until_true(
        "the custom resource is served",
        Duration::from_secs(30),
        || async {
            let request = http::Request::get("/apis/druid.gardener.cloud/v1alpha1/etcds")
                .body(vec![])
                .unwrap();
            Ok(client.request_text(request).await.is_ok())
        },
    )
    .await
    .unwrap();
}
