//! The version, and which resources a group has: paths that are about the server, not about objects.

use serde_json::{Value, json};

use super::{ApiAnswer, reply};
use crate::{resource::ResourceType, status::ApiError, store::Store};

/// The path that needs no credentials, as system:public-info-viewer grants it.
pub(super) const PUBLIC: &str = "/version";

/// Answers a path that names no resource.
pub(super) fn answer(store: &Store, path: &str) -> ApiAnswer {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let value = match parts.as_slice() {
        ["version"] => Some(version()),
        ["api", version] => resource_list(store, version),
        ["apis", group, version] => resource_list(store, &format!("{group}/{version}")),
        _ => None,
    };
    let value = value.ok_or_else(ApiError::no_such_path)?;
    Ok(reply::value(200, &value))
}

/// True if a group is known: decides between the two kinds of 404. The built-in groups are, whatever the options say:
/// an old server without discovery.k8s.io/v1 has the group at v1beta1.
pub(super) fn knows(store: &Store, group: &str) -> bool {
    group.ends_with(".k8s.io") || store.resources().iter().any(|res| res.key.group == group)
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "33",
        "gitVersion": "v1.33.0",
        "gitCommit": "sandbox",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

fn resource_list(store: &Store, group_version: &str) -> Option<Value> {
    let served = store.resources().into_iter();
    let served: Vec<_> = served
        .filter(|res| res.api_version() == group_version)
        .flat_map(|res| entries(&res))
        .collect();
    (!served.is_empty()).then(|| {
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": served,
        })
    })
}

fn entries(res: &ResourceType) -> Vec<Value> {
    let entry = |name: String, verbs: &[&str]| {
        json!({
            "name": name,
            "singularName": res.kind.to_lowercase(),
            "namespaced": res.namespaced,
            "kind": res.kind,
            "verbs": verbs,
        })
    };
    let all = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let of_object = ["get", "patch", "update"];
    let mut entries = vec![entry(res.key.plural.to_string(), &all)];
    if res.status {
        entries.push(entry(format!("{}/status", res.key.plural), &of_object));
    }
    if res.scale.is_some() {
        let mut scale = entry(format!("{}/scale", res.key.plural), &of_object);
        scale["kind"] = "Scale".into();
        scale["group"] = "autoscaling".into();
        scale["version"] = "v1".into();
        entries.push(scale);
    }
    entries
}
