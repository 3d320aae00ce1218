//! The scale sub-resource: autoscaling/v1 Scale as a view of an object.

use serde_json::{Value, json};

use crate::{resource::ScalePaths, status::ApiError, store::object::as_map};

/// The Scale of an object.
///
/// Go's types leave out a `spec.replicas` of 0, so clients must read an absent one as 0.
pub(super) fn view(object: &Value, paths: &ScalePaths) -> Value {
    let number = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    let mut spec = json!({});
    if number(&paths.spec_replicas) != 0 {
        spec["replicas"] = number(&paths.spec_replicas).into();
    }
    let mut metadata = json!({});
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata[key] = object["metadata"][key].clone();
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": spec,
        "status": { "replicas": number(&paths.status_replicas) },
    })
}

/// Takes a changed Scale back into its object: the count and the preconditions.
///
/// # Errors
/// 422 for a count that is none.
pub(super) fn store(paths: &ScalePaths, scale: &Value, object: &mut Value) -> Result<(), ApiError> {
    let replicas = match &scale["spec"]["replicas"] {
        Value::Null => Some(0),
        value => value.as_i64().filter(|count| *count >= 0),
    };
    let replicas = replicas.ok_or_else(|| ApiError::invalid("spec.replicas: must be 0 or more"))?;
    for field in ["resourceVersion", "uid"] {
        if let Some(wanted) = scale["metadata"].get(field) {
            object["metadata"][field] = wanted.clone();
        }
    }
    let mut node = object;
    for key in paths.spec_replicas.split('/').filter(|key| !key.is_empty()) {
        node = as_map(node).entry(key).or_insert(Value::Null);
    }
    *node = replicas.into();
    Ok(())
}
