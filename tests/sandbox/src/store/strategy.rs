//! The rules of the real server's storage strategies: what a client may set, what the server sets, what is
//! valid.

use rand::{Rng, seq::IndexedRandom};
use serde_json::{Map, Value, json};

use super::{
    Part, Preconditions,
    object::{Object, child_mut, metadata_mut, with_type},
};
use crate::{resource::ResourceType, status::ApiError};

/// Defaults that clients of the real server rely on.
pub(super) fn default(res: &ResourceType, name: &str, value: &mut Value) {
    if !res.custom && res.scale.is_some() {
        child_mut(value, "spec")
            .entry("replicas")
            .or_insert_with(|| 1.into());
    }
    if !res.custom && res.status {
        child_mut(value, "status");
    }
    match (res.group.as_ref(), res.plural.as_ref()) {
        ("", "namespaces") => {
            child_mut(value, "status").insert("phase".into(), "Active".into());
            let labels = metadata_mut(value).entry("labels").or_insert_with(|| json!({}));
            if let Some(labels) = labels.as_object_mut() {
                labels.insert("kubernetes.io/metadata.name".into(), name.into());
            }
        }
        ("", "pods") => {
            child_mut(value, "status")
                .entry("phase")
                .or_insert_with(|| "Pending".into());
        }
        _ => {}
    }
}

/// Restores what a writer of this part may not change.
pub(super) fn keep_server_fields(
    res: &ResourceType,
    old: &Value,
    new: &mut Value,
    part: Part,
    checked: bool,
) {
    match part {
        Part::All => {}
        Part::Main => {
            if res.status {
                copy_key(old, new, "status");
            }
        }
        Part::Status => {
            let status = new.get("status").cloned();
            *new = old.clone();
            remove_key(new, "status");
            if let (Some(status), Some(map)) = (status, new.as_object_mut()) {
                map.insert("status".into(), status);
            }
        }
    }
    let old_metadata = old.get("metadata").cloned().unwrap_or_default();
    let metadata = metadata_mut(new);
    let mut kept = vec![
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ];
    if checked {
        kept.push("managedFields");
    }
    for key in kept {
        match old_metadata.get(key) {
            Some(value) => metadata.insert(key.into(), value.clone()),
            None => metadata.remove(key),
        };
    }
}

/// The change that decoding into the Go type and encoding again makes to an object.
pub(super) fn normalise(res: &ResourceType, value: Value) -> Result<Value, ApiError> {
    let mut value = match res.normalise {
        None => value,
        Some(normalise) => normalise(with_type(value, res)).map_err(|error| {
            ApiError::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: {error}",
                res.kind, res.version, res.kind
            ))
        })?,
    };
    // Go leaves out empty maps and lists; of a custom resource only the metadata has a Go type.
    let filled = |_: &String, value: &mut Value| {
        !value.as_object().is_some_and(Map::is_empty) && !value.as_array().is_some_and(Vec::is_empty)
    };
    metadata_mut(&mut value).retain(filled);
    if !res.custom
        && let Some(map) = value.as_object_mut()
    {
        map.retain(|key, value| {
            matches!(key.as_str(), "metadata" | "spec" | "status" | "endpoints") || filled(key, value)
        });
    }
    Ok(value)
}

/// Checks an object by the rules of its kind.
///
/// # Errors
/// 422 naming every field at fault.
pub(super) fn validate(
    res: &ResourceType,
    old: Option<&Value>,
    new: &Value,
    name: &str,
) -> Result<(), ApiError> {
    let faults = res
        .validate
        .map(|validate| validate(old, new))
        .unwrap_or_default();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid_kind(&res.kind, "", name, &faults))
    }
}

/// The namespace of the object must be that of the request.
pub(super) fn place(metadata: &mut Map<String, Value>, namespace: &str) -> Result<(), ApiError> {
    let given = string(metadata, "namespace");
    if !given.is_empty() && given != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".into(), namespace.into());
    }
    Ok(())
}

pub(super) fn check(res: &ResourceType, old: &Object, preconditions: &Preconditions) -> Result<(), ApiError> {
    if let Some(uid) = &preconditions.uid
        && uid != old.uid()
    {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have \
             been deleted and then recreated",
            old.uid()
        );
        return Err(ApiError::conflict(res, old.name(), &why));
    }
    if let Some(version) = &preconditions.resource_version
        && *version != old.resource_version().to_string()
    {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record \
             ({}). The object might have been modified",
            old.resource_version()
        );
        return Err(ApiError::conflict(res, old.name(), &why));
    }
    Ok(())
}

/// RFC 1123 subdomain, which suits every kind here.
pub(super) fn check_name(res: &ResourceType, name: &str) -> Result<(), ApiError> {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if name.len() <= 253 && name.split('.').all(label) {
        return Ok(());
    }
    let detail = format!(
        "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
         characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', \
         regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    );
    Err(ApiError::invalid(res, name, "metadata.name", &detail))
}

pub(super) fn has_finalizers(value: &Value) -> bool {
    value
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
}

pub(super) fn without_status(value: &Value) -> Map<String, Value> {
    let mut map = value.as_object().cloned().unwrap_or_default();
    map.remove("status");
    map.remove("metadata");
    map
}

pub(super) fn string(map: &Map<String, Value>, key: &str) -> String {
    map.get(key)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

pub(super) fn remove_key(value: &mut Value, key: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(key);
    }
}

pub(super) fn copy_key(from: &Value, to: &mut Value, key: &str) {
    let Some(map) = to.as_object_mut() else { return };
    match from.get(key) {
        Some(value) => map.insert(key.into(), value.clone()),
        None => map.remove(key),
    };
}

/// Five characters of the alphabet that the real server uses: no vowels, so no words.
pub(crate) fn random_suffix() -> String {
    let mut rng = rand::rng();
    (0..5)
        .filter_map(|_| {
            b"bcdfghjklmnpqrstvwxz2456789"
                .choose(&mut rng)
                .map(|b| char::from(*b))
        })
        .collect()
}

/// A random (version 4) UUID.
pub(crate) fn random_uid() -> String {
    let bits: u128 = rand::rng().random();
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
