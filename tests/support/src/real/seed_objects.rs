//! Objects that Gardener puts into a seed for a shoot.

use anyhow::Context;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DynamicObject, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{bounded, cluster_resource, create_unless_there};
use crate::fixtures;

/// Makes a namespace unless it is there.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    create_unless_there(&namespaces, &namespace).await
}

/// Makes the Cluster object of a shoot. `shoot` is the Shoot as in `spec.shoot`; the shoot's namespace in the seed is
/// the Cluster's name.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn create_cluster(seed: &Client, namespace: &str, shoot: Value) -> anyhow::Result<()> {
    let resource = cluster_resource();
    let clusters: Api<DynamicObject> = Api::all_with(seed.clone(), &resource);
    let spec = json!({"spec": {"cloudProfile": {}, "seed": {}, "shoot": shoot}});
    let cluster = DynamicObject::new(namespace, &resource).data(spec);
    bounded(
        "create a Cluster",
        clusters.create(&PostParams::default(), &cluster),
    )
    .await?;
    Ok(())
}

/// Makes a Secret with a kubeconfig under the key that Gardener uses.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn create_kubeconfig_secret(
    seed: &Client,
    namespace: &str,
    name: &str,
    kubeconfig: &str,
) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(seed.clone(), namespace);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([("kubeconfig".to_owned(), ByteString(kubeconfig.into()))].into()),
        ..Secret::default()
    };
    bounded("create a Secret", secrets.create(&PostParams::default(), &secret)).await?;
    Ok(())
}

/// Makes a Deployment; a [`crate::workload_controller::WorkloadController`] plays its pods.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn create_deployment(
    seed: &Client,
    namespace: &str,
    name: &str,
    replicas: i32,
) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(seed.clone(), namespace);
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": name, "image": "simulated"}]},
            },
        },
    });
    let deployment: Deployment = serde_json::from_value(deployment)?;
    bounded(
        "create a Deployment",
        deployments.create(&PostParams::default(), &deployment),
    )
    .await?;
    Ok(())
}

/// Makes the namespace of a shoot with these Deployments, and its Cluster.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn create_shoot(seed: &Client, shoot: &str, dependants: &[(&str, i32)]) -> anyhow::Result<()> {
    create_namespace(seed, shoot).await?;
    for (name, replicas) in dependants {
        create_deployment(seed, shoot, name, *replicas).await?;
    }
    create_cluster(seed, shoot, fixtures::shoot("40s")).await
}

/// The wanted and the ready replicas of a Deployment.
///
/// # Errors
/// When it is not there or the API server does not answer.
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
