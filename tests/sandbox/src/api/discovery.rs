//! The version, and which resources a group has: paths that are about the server, not about objects.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::reply::{self, Body};
use crate::{resource::ResourceType, status::ApiError, store::Store};

/// True for the path that needs no credentials, as system:public-info-viewer grants it.
pub(super) fn is_public(path: &str) -> bool {
    path == "/version"
}

/// Answers a path that names no resource.
pub(super) fn answer(store: &Store, path: &str) -> Result<Response<Body>, ApiError> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let value = match parts.as_slice() {
        ["version"] => Some(version()),
        ["api", version] => resource_list(&store.resources(), "", version),
        ["apis", group, version] => resource_list(&store.resources(), group, version),
        _ => None,
    };
    let value = value.ok_or_else(ApiError::no_such_path)?;
    Ok(reply::value(200, &value))
}

/// True if a group is known: decides between the two kinds of 404. The built-in groups are, whatever the options
/// say: an old server without discovery.k8s.io/v1 has the group at v1beta1.
pub(super) fn knows(store: &Store, group: &str) -> bool {
    group.ends_with(".k8s.io") || store.resources().iter().any(|res| res.group == group)
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

fn resource_list(resources: &[Arc<ResourceType>], group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    let mut group_version = None;
    for res in resources
        .iter()
        .filter(|res| res.group == group && res.version == version)
    {
        group_version = Some(res.api_version());
        let entry = |name: String, kind: &str, verbs: &[&str]| {
            json!({
                "name": name,
                "singularName": res.kind.to_lowercase(),
                "namespaced": res.namespaced,
                "kind": kind,
                "verbs": verbs,
            })
        };
        let all = ["create", "delete", "get", "list", "patch", "update", "watch"];
        let verbs = if res.review { &["create"][..] } else { &all[..] };
        list.push(entry(res.plural.to_string(), &res.kind, verbs));
        let of_object = ["get", "patch", "update"];
        if res.status {
            list.push(entry(format!("{}/status", res.plural), &res.kind, &of_object));
        }
        if res.scale.is_some() {
            let mut scale = entry(format!("{}/scale", res.plural), "Scale", &of_object);
            scale["group"] = "autoscaling".into();
            scale["version"] = "v1".into();
            list.push(scale);
        }
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version?,
        "resources": list,
    }))
}
