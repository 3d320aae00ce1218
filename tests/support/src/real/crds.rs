//! The custom resources of a seed that the watchdog reads.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::{bounded, create_unless_there};
use crate::wait::{self, BOUND};

/// Gardener's Cluster (`extensions.gardener.cloud/v1alpha1`, cluster-scoped).
#[must_use]
pub fn cluster_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "extensions.gardener.cloud",
        "v1alpha1",
        "Cluster",
    ))
}

/// machine-controller-manager's Machine (`machine.sapcloud.io/v1alpha1`, namespaced).
#[must_use]
pub fn machine_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "machine.sapcloud.io",
        "v1alpha1",
        "Machine",
    ))
}

/// Installs Clusters and Machines and waits until the API server serves them.
///
/// # Errors
/// When the API server refuses them or does not serve them in time.
pub async fn install_seed_crds(client: &Client) -> anyhow::Result<()> {
    install(client, vec![cluster_definition()?, machine_definition()?]).await
}

/// The same with EndpointSlices of the version that the server lacks.
pub(super) async fn install_endpoint_slices(client: &Client) -> anyhow::Result<()> {
    let any = || json!({"x-kubernetes-preserve-unknown-fields": true});
    let properties = json!({"addressType": any(), "endpoints": any(), "ports": any()});
    let resource = ApiResource::erase::<EndpointSlice>(&());
    let mut definition = definition(&resource, "Namespaced", properties, json!({}))?;
    let approval = ("api-approved.kubernetes.io", "unapproved, for tests");
    let annotations = definition.annotations_mut();
    annotations.insert(approval.0.to_owned(), approval.1.to_owned());
    install(client, vec![definition]).await
}

async fn install(client: &Client, definitions: Vec<CustomResourceDefinition>) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in definitions {
        let name = definition.name_any();
        create_unless_there(&api, &definition).await?;
        wait::until_true(&format!("{name} is established"), BOUND, || async {
            let conditions = bounded("get the definition", api.get(&name))
                .await?
                .status
                .unwrap_or_default()
                .conditions;
            Ok(conditions
                .iter()
                .flatten()
                .any(|c| c.type_ == "Established" && c.status == "True"))
        })
        .await?;
    }
    Ok(())
}

fn cluster_definition() -> anyhow::Result<CustomResourceDefinition> {
    definition(
        &cluster_resource(),
        "Cluster",
        json!({"spec": free_form()}),
        json!({}),
    )
}

fn machine_definition() -> anyhow::Result<CustomResourceDefinition> {
    let properties = json!({"spec": free_form(), "status": free_form()});
    definition(
        &machine_resource(),
        "Namespaced",
        properties,
        json!({"status": {}}),
    )
}

fn free_form() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn definition(
    resource: &ApiResource,
    scope: &str,
    properties: Value,
    subresources: Value,
) -> anyhow::Result<CustomResourceDefinition> {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", resource.plural, resource.group)},
        "spec": {
            "group": resource.group,
            "scope": scope,
            "names": {
                "kind": resource.kind,
                "listKind": format!("{}List", resource.kind),
                "plural": resource.plural,
                "singular": resource.kind.to_lowercase(),
            },
            "versions": [{
                "name": resource.version,
                "served": true,
                "storage": true,
                "subresources": subresources,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
            }],
        },
    });
    Ok(serde_json::from_value(definition)?)
}
