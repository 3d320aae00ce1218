//! The four kinds of patch.

use http::{HeaderMap, header};
use serde_json::{Map, Value};

use crate::{resource::ResourceType, status::ApiError};

/// A decoded patch body.
#[derive(Debug)]
pub(super) enum Patch {
    /// RFC 6902.
    Json(json_patch::Patch),
    /// RFC 7386.
    Merge(Value),
    /// Like merge, but well-known lists merge by key.
    Strategic(Value),
    /// Server-side apply.
    Apply(Value),
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

impl Patch {
    /// Decodes the body by its content type.
    ///
    /// # Errors
    /// 415 for a type that the resource does not take; 400 for a malformed body.
    pub(super) fn decode(res: &ResourceType, headers: &HeaderMap, body: &[u8]) -> Result<Self, ApiError> {
        let content_type = headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split(';').next())
            .unwrap_or_default()
            .trim();
        let malformed =
            |error: &dyn std::fmt::Display| ApiError::bad_request(format!("error decoding patch: {error}"));
        let value = || serde_json::from_slice::<Value>(body).map_err(|error| malformed(&error));
        match content_type {
            JSON => serde_json::from_slice(body)
                .map(Self::Json)
                .map_err(|error| malformed(&error)),
            MERGE => value().map(Self::Merge),
            STRATEGIC if !res.custom => value().map(Self::Strategic),
            APPLY => match value() {
                Ok(value) => Ok(Self::Apply(value)),
                Err(_) => serde_saphyr::from_slice(body)
                    .map(Self::Apply)
                    .map_err(|error| malformed(&error)),
            },
            _ if res.custom => Err(ApiError::unsupported_patch(&[JSON, MERGE, APPLY])),
            _ => Err(ApiError::unsupported_patch(&[JSON, MERGE, STRATEGIC, APPLY])),
        }
    }

    /// Changes `value`. Applies are merged here; the store tracks their ownership.
    pub(super) fn change(&self, value: &mut Value) -> Result<(), ApiError> {
        match self {
            Self::Json(patch) => json_patch::patch(value, patch).map_err(|_| ApiError::unprocessable_patch()),
            Self::Merge(patch) | Self::Apply(patch) => {
                json_patch::merge(value, patch);
                Ok(())
            }
            Self::Strategic(patch) => {
                strategic(value, patch, "");
                Ok(())
            }
        }
    }
}

/// The merge keys of lists in the built-in types (`patchMergeKey`); other lists are replaced.
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" | "addresses" => Some("type"),
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets" => Some("name"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}

fn strategic(value: &mut Value, patch: &Value, field: &str) {
    match (value, patch) {
        (value, Value::Object(patch)) => {
            if !value.is_object() || directive(patch) == Some("replace") {
                *value = Value::Object(Map::new());
            }
            let Value::Object(map) = value else { return };
            for (key, wanted) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
                if wanted.is_null() {
                    map.remove(key);
                } else {
                    strategic(map.entry(key.clone()).or_insert(Value::Null), wanted, key);
                }
            }
        }
        (Value::Array(items), Value::Array(patches)) if merge_key(field).is_some() => {
            let Some(key) = merge_key(field) else { return };
            for patch in patches {
                let Some(id) = patch.get(key) else { continue };
                let position = items.iter().position(|item| item.get(key) == Some(id));
                let delete = patch.as_object().and_then(directive) == Some("delete");
                match position.and_then(|index| items.get_mut(index)) {
                    Some(_) if delete => items.retain(|item| item.get(key) != Some(id)),
                    Some(item) => strategic(item, patch, ""),
                    None if delete => {}
                    None => {
                        let mut item = Value::Null;
                        strategic(&mut item, patch, "");
                        items.push(item);
                    }
                }
            }
        }
        (Value::Array(items), Value::Array(patches)) if field == "finalizers" => {
            for patch in patches {
                if !items.contains(patch) {
                    items.push(patch.clone());
                }
            }
        }
        (value, patch) => *value = patch.clone(),
    }
}

fn directive(patch: &Map<String, Value>) -> Option<&str> {
    patch.get("$patch")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn strategic_merges_conditions_by_type() {
        let mut node = json!({ "status": { "conditions": [
            { "type": "Ready", "status": "True" }, { "type": "DiskPressure", "status": "False" },
        ] }, "spec": { "taints": [{ "key": "a" }] } });
        let patch = json!({ "status": { "conditions": [
            { "type": "Ready", "status": "Unknown" }, { "type": "New", "status": "True" },
            { "type": "DiskPressure", "$patch": "delete" },
        ] }, "spec": { "taints": [{ "key": "b" }] } });
        Patch::Strategic(patch).change(&mut node).unwrap();
        assert_eq!(
            node["status"]["conditions"],
            json!([{ "type": "Ready", "status": "Unknown" }, { "type": "New", "status": "True" }])
        );
        assert_eq!(node["spec"]["taints"], json!([{ "key": "b" }]));
    }

    #[test]
    fn custom_resources_take_no_strategic_patch() {
        let res = ResourceType::custom("g", "v1", "K", "ks", None);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, STRATEGIC.parse().unwrap());
        assert_eq!(Patch::decode(&res, &headers, b"{}").unwrap_err().code, 415);
    }

    #[test]
    fn apply_may_be_yaml() {
        let res = ResourceType::custom("g", "v1", "K", "ks", None);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, APPLY.parse().unwrap());
        let Patch::Apply(value) = Patch::decode(&res, &headers, b"spec:\n  replicas: 2\n").unwrap() else {
            panic!("not an apply patch")
        };
        assert_eq!(value, json!({ "spec": { "replicas": 2 } }));
    }
}
