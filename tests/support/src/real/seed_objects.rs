//! Objects that Gardener puts into a seed for a shoot.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{bounded, cluster_resource, create, create_unless_there};
use crate::fixtures;

/// Makes a namespace unless it is there.
pub async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    create_unless_there(&Api::all(client.clone()), &namespace).await
}

/// Makes the Lease of a leader that has stopped; where there is none, a replica waits for 4 s before it leads.
pub async fn create_released_lease(seed: &Client, name: &str) -> anyhow::Result<()> {
    let released = json!({"holderIdentity": "", "leaseDurationSeconds": 1});
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": name}, "spec": released}))?;
    create(&Api::namespaced(seed.clone(), "garden"), &lease).await
}

/// Makes the Cluster object of a shoot. `shoot` is the Shoot as in `spec.shoot`; the shoot's namespace in the seed is
/// the Cluster's name.
pub async fn create_cluster(seed: &Client, namespace: &str, shoot: Value) -> anyhow::Result<()> {
    let resource = cluster_resource();
    let spec = json!({"spec": {"cloudProfile": {}, "seed": {}, "shoot": shoot}});
    let cluster = DynamicObject::new(namespace, &resource).data(spec);
    create(&Api::all_with(seed.clone(), &resource), &cluster).await
}

/// Makes a Secret with a kubeconfig under the key that Gardener uses.
pub async fn create_kubeconfig_secret(
    seed: &Client,
    namespace: &str,
    name: &str,
    kubeconfig: &str,
) -> anyhow::Result<()> {
    let secret = json!({"metadata": {"name": name}, "data": {"kubeconfig": STANDARD.encode(kubeconfig)}});
    let secret: Secret = serde_json::from_value(secret)?;
    create(&Api::namespaced(seed.clone(), namespace), &secret).await
}

/// A Deployment whose pods are simulated.
pub fn deployment(name: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": name, "image": "simulated"}]},
            },
        },
    })
}

/// Makes a Deployment; a [`crate::workload_controller::WorkloadController`] plays its pods.
pub async fn create_deployment(
    seed: &Client,
    namespace: &str,
    name: &str,
    replicas: i32,
) -> anyhow::Result<()> {
    let deployment: Deployment = serde_json::from_value(deployment(name, replicas))?;
    create(&Api::namespaced(seed.clone(), namespace), &deployment).await
}

/// Makes the namespace of a shoot with these Deployments, and its Cluster.
pub async fn create_shoot(seed: &Client, shoot: &str, dependants: &[(&str, i32)]) -> anyhow::Result<()> {
    create_namespace(seed, shoot).await?;
    for (name, replicas) in dependants {
        create_deployment(seed, shoot, name, *replicas).await?;
    }
    create_cluster(seed, shoot, fixtures::shoot("40s")).await
}

/// The wanted and the ready replicas of a Deployment.
pub async fn scale_of(seed: &Client, namespace: &str, name: &str) -> anyhow::Result<(i32, i32)> {
    let deployments: Api<Deployment> = Api::namespaced(seed.clone(), namespace);
    let deployment = bounded("get a Deployment", deployments.get(name)).await?;
    let wanted = deployment
        .spec
        .and_then(|spec| spec.replicas)
        .context("a Deployment without replicas")?;
    let ready = deployment
        .status
        .and_then(|status| status.ready_replicas)
        .unwrap_or_default();
    Ok((wanted, ready))
}
