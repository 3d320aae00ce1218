//! Discovery, version and health: paths that are about the server, not about objects.

use std::{collections::BTreeMap, sync::Arc};

use http::Response;
use serde_json::{Value, json};

use super::reply::{self, Body};
use crate::{resource::ResourceType, status::ApiError, store::Store};

/// The Kubernetes version that the sandbox says it is.
const KUBERNETES_VERSION: &str = "v1.33.0";

/// The paths that the server lists at `/`, and for paths that it does not know.
const PATHS: [&str; 7] = [
    "/api", "/api/v1", "/apis", "/healthz", "/livez", "/readyz", "/version",
];

/// Paths that need no credentials, as system:public-info-viewer grants them.
pub(super) fn is_public(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/readyz" | "/version")
}

/// Answers a path that names no resource.
pub(super) fn answer(store: &Store, path: &str) -> Result<Response<Body>, ApiError> {
    let path = path.trim_end_matches('/');
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        return Ok(reply::text(200, "ok"));
    }
    let resources = store.resources();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let value = match parts.as_slice() {
        ["version"] => version(),
        [] => json!({ "paths": PATHS }),
        ["api"] => json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        ["api", "v1"] => resource_list(&resources, "", "v1").ok_or_else(ApiError::no_such_path)?,
        ["apis"] => {
            let groups = groups(&resources);
            let list: Vec<Value> = groups
                .iter()
                .map(|(name, versions)| group(name, versions))
                .collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": list })
        }
        ["apis", name] => {
            let groups = groups(&resources);
            let versions = groups.get(*name).ok_or_else(ApiError::no_such_path)?;
            let mut value = group(name, versions);
            value["kind"] = "APIGroup".into();
            value["apiVersion"] = "v1".into();
            value
        }
        ["apis", group, version] => {
            resource_list(&resources, group, version).ok_or_else(ApiError::no_such_path)?
        }
        ["api" | "apis", ..] => return Err(ApiError::no_such_path()),
        _ => return Ok(reply::value(404, &json!({ "paths": PATHS }))),
    };
    Ok(reply::value(200, &value))
}

/// True if a group is known: decides between the two kinds of 404. The built-in groups are, whatever the options
/// say: an old server without discovery.k8s.io/v1 has the group at v1beta1.
pub(super) fn knows(store: &Store, group: &str) -> bool {
    group.ends_with(".k8s.io") || store.resources().iter().any(|res| res.group == group)
}

fn version() -> Value {
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let mut number = || numbers.next().unwrap_or_default().to_owned();
    json!({
        "major": number(),
        "minor": number(),
        "gitVersion": KUBERNETES_VERSION,
        "gitCommit": "sandbox",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn groups(resources: &[Arc<ResourceType>]) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for res in resources.iter().filter(|res| !res.group.is_empty()) {
        let versions = groups.entry(res.group.to_string()).or_default();
        let version = res.version.to_string();
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    groups
}

fn group(name: &str, versions: &[String]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({ "groupVersion": format!("{name}/{version}"), "version": version }))
        .collect();
    json!({ "name": name, "versions": versions, "preferredVersion": versions.last() })
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
