//! The custom resources of a seed that the watchdog reads.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};

use super::{bounded, create_unless_there};
use crate::wait::{self, BOUND};

/// Gardener's Cluster (`extensions.gardener.cloud/v1alpha1`, cluster-scoped).
pub fn cluster_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "extensions.gardener.cloud",
        "v1alpha1",
        "Cluster",
    ))
}

/// machine-controller-manager's Machine (`machine.sapcloud.io/v1alpha1`, namespaced).
pub fn machine_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "machine.sapcloud.io",
        "v1alpha1",
        "Machine",
    ))
}

/// Installs Clusters and Machines and waits until the API server serves them.
pub async fn install_seed_crds(client: &Client) -> anyhow::Result<()> {
    install(client, include_str!("seed_crds.json")).await
}

/// The same with EndpointSlices of the version that the server lacks.
pub(super) async fn install_endpoint_slices(client: &Client) -> anyhow::Result<()> {
    install(client, include_str!("endpoint_slices_crd.json")).await
}

async fn install(client: &Client, definitions: &str) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definitions: Vec<CustomResourceDefinition> = serde_json::from_str(definitions)?;
    for definition in definitions {
        let name = definition.name_any();
        create_unless_there(&api, &definition).await?;
        wait::until_true(&format!("{name} is established"), BOUND, || async {
            let found = bounded("get the definition", api.get(&name)).await?;
            let conditions = found.status.unwrap_or_default().conditions;
            let mut conditions = conditions.iter().flatten();
            Ok(conditions.any(|c| c.type_ == "Established" && c.status == "True"))
        })
        .await?;
    }
    Ok(())
}
