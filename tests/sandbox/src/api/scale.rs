//! The scale sub-resource: autoscaling/v1 Scale as a view of an object.

use serde_json::{Value, json};

use crate::{
    resource::ScalePaths,
    status::ApiError,
    store::object::{Object, as_map},
};

/// The Scale of an object.
///
/// Go's types leave out a `spec.replicas` of 0, so clients must read an absent one as 0.
pub(super) fn view(object: &Object, paths: &ScalePaths) -> Value {
    let value = object.value();
    let replicas = object.number(&paths.spec_replicas);
    let metadata = |key: &str| {
        value
            .pointer(&format!("/metadata/{key}"))
            .cloned()
            .unwrap_or_default()
    };
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": object.name(),
            "namespace": object.namespace(),
            "uid": metadata("uid"),
            "resourceVersion": metadata("resourceVersion"),
            "creationTimestamp": metadata("creationTimestamp"),
        },
        "spec": if replicas == 0 { json!({}) } else { json!({ "replicas": replicas }) },
        "status": {
            "replicas": object.number(&paths.status_replicas),
        },
    })
}

/// Takes a changed Scale back into its object: the count and the preconditions.
///
/// # Errors
/// 422 for a count that is none.
pub(super) fn store(paths: &ScalePaths, scale: &Value, object: &mut Value) -> Result<(), ApiError> {
    let replicas = match scale.pointer("/spec/replicas") {
        None | Some(Value::Null) => Some(0),
        Some(value) => value.as_i64().filter(|count| *count >= 0),
    };
    let replicas = replicas.ok_or_else(|| ApiError::invalid("spec.replicas: must be 0 or more"))?;
    for pointer in ["/metadata/resourceVersion", "/metadata/uid"] {
        if let (Some(wanted), Some(slot)) = (scale.pointer(pointer), object.pointer_mut(pointer)) {
            slot.clone_from(wanted);
        }
    }
    let mut node = object;
    for key in paths.spec_replicas.split('/').filter(|key| !key.is_empty()) {
        node = as_map(node).entry(key).or_insert(Value::Null);
    }
    *node = replicas.into();
    Ok(())
}
