//! The rights on a seed that gardenlet grants its dependency-watchdog.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::bounded;

/// Grants a group what gardenlet grants the `role` (prober or weeder), as
/// pkg/component/nodemanagement/dependencywatchdog/bootstrap.go of Gardener 1.150 has it.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn grant_as_gardenlet(seed: &Client, role: &str, group: &str) -> anyhow::Result<()> {
    let name = format!("gardener.cloud:dependency-watchdog-{role}");
    let create = PostParams::default();
    let binding = |kind: &str| {
        json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
        })
    };
    let cluster_role: ClusterRole =
        serde_json::from_value(json!({"metadata": {"name": name}, "rules": cluster_rules(role)}))?;
    let in_garden: Role =
        serde_json::from_value(json!({"metadata": {"name": name}, "rules": garden_rules(role)}))?;
    let cluster_binding: ClusterRoleBinding = serde_json::from_value(binding("ClusterRole"))?;
    let garden_binding: RoleBinding = serde_json::from_value(binding("Role"))?;
    bounded("grant", Api::all(seed.clone()).create(&create, &cluster_role)).await?;
    bounded("grant", Api::all(seed.clone()).create(&create, &cluster_binding)).await?;
    let garden = seed.clone();
    bounded(
        "grant",
        Api::namespaced(garden.clone(), "garden").create(&create, &in_garden),
    )
    .await?;
    bounded(
        "grant",
        Api::namespaced(garden, "garden").create(&create, &garden_binding),
    )
    .await?;
    Ok(())
}

fn garden_rules(role: &str) -> Value {
    let lease = format!("dwd-{role}-leader-election");
    json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [lease],
            "verbs": ["get", "watch", "update"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "get", "update", "patch"]},
    ])
}

fn cluster_rules(role: &str) -> Value {
    let read = json!(["get", "list", "watch"]);
    if role == "weeder" {
        return json!([
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
        ]);
    }
    json!([
        {"apiGroups": ["extensions.gardener.cloud"], "resources": ["clusters"], "verbs": read},
        {"apiGroups": [""], "resources": ["namespaces", "secrets"], "verbs": read},
        {
            "apiGroups": ["apps"], "resources": ["deployments", "deployments/scale"],
            "verbs": ["get", "list", "watch", "update", "patch"],
        },
        {"apiGroups": ["machine.sapcloud.io"], "resources": ["machines"], "verbs": read},
    ])
}
