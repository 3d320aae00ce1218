//! The rights that Gardener grants the watchdog.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::create_unless_there;

fn binding(name: &str, role_kind: &str, subject_kind: &str, subject: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": subject_kind, "name": subject}],
    })
}

/// Grants a user what Gardener grants the probe in a shoot: get and list of nodes and node leases, no more.
pub async fn grant_probe(shoot: &Client, user: &str) -> anyhow::Result<()> {
    let read = json!(["get", "list"]);
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "probe"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": read},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": read},
        ],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(binding("probe", "ClusterRole", "User", user))?;
    create_unless_there(&Api::all(shoot.clone()), &role).await?;
    create_unless_there(&Api::all(shoot.clone()), &binding).await
}

/// Grants a group what gardenlet grants the `role` (prober or weeder) on a seed, as
/// pkg/component/nodemanagement/dependencywatchdog/bootstrap.go of Gardener 1.150 has it.
pub async fn grant_as_gardenlet(seed: &Client, role: &str, group: &str) -> anyhow::Result<()> {
    let name = format!("gardener.cloud:dependency-watchdog-{role}");
    let role_with = |rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    let bound_to = |kind: &str| binding(&name, kind, "Group", group);
    let cluster_role: ClusterRole = serde_json::from_value(role_with(cluster_rules(role)))?;
    let cluster_binding: ClusterRoleBinding = serde_json::from_value(bound_to("ClusterRole"))?;
    let in_garden: Role = serde_json::from_value(role_with(garden_rules(role)))?;
    let garden_binding: RoleBinding = serde_json::from_value(bound_to("Role"))?;
    create_unless_there(&Api::all(seed.clone()), &cluster_role).await?;
    create_unless_there(&Api::all(seed.clone()), &cluster_binding).await?;
    create_unless_there(&Api::namespaced(seed.clone(), "garden"), &in_garden).await?;
    create_unless_there(&Api::namespaced(seed.clone(), "garden"), &garden_binding).await
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
