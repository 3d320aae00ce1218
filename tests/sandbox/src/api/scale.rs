//! The scale sub-resource: autoscaling/v1 Scale as a view of an object.

use serde_json::{Value, json};

use crate::{
    resource::ScalePaths,
    status::ApiError,
    store::object::{Object, as_map, string_map},
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
            "selector": selector(value.pointer(&paths.selector)),
        },
    })
}

/// Takes a changed Scale back into its object: the count and the preconditions.
///
/// # Errors
/// 400 for something that is no Scale, 422 for a negative count.
pub(super) fn store(
    name: &str,
    paths: &ScalePaths,
    scale: &Value,
    object: &mut Value,
) -> Result<(), ApiError> {
    if let Some(kind) = scale.get("kind").and_then(Value::as_str)
        && kind != "Scale"
    {
        return Err(ApiError::bad_request(format!(
            "no kind \"{kind}\" is registered for the scale sub-resource"
        )));
    }
    let replicas = replicas(scale)?;
    if replicas < 0 {
        let detail = format!("Invalid value: {replicas}: must be greater than or equal to 0");
        let fault = ("spec.replicas".into(), detail);
        return Err(ApiError::invalid_kind("Scale", "autoscaling", name, &[fault]));
    }
    for key in ["resourceVersion", "uid"] {
        let pointer = format!("/metadata/{key}");
        if let Some(wanted) = scale.pointer(&pointer).and_then(Value::as_str)
            && !wanted.is_empty()
            && let Some(slot) = object.pointer_mut(&pointer)
        {
            *slot = wanted.into();
        }
    }
    let mut node = object;
    for key in paths.spec_replicas.split('/').filter(|key| !key.is_empty()) {
        node = as_map(node).entry(key).or_insert(Value::Null);
    }
    *node = replicas.into();
    Ok(())
}

/// The count that a Scale asks for.
///
/// # Errors
/// 400 for anything that is no 32-bit integer.
pub(super) fn replicas(scale: &Value) -> Result<i64, ApiError> {
    match scale.pointer("/spec/replicas") {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value.as_i64().filter(|count| i32::try_from(*count).is_ok()).ok_or_else(|| {
            ApiError::bad_request(format!(
                "Scale in version \"v1\" cannot be handled as a Scale: json: cannot unmarshal {value} into Go struct \
                 field ScaleSpec.spec.replicas of type int32"
            ))
        }),
    }
}

/// The labels of a selector in its string form: already a string in custom resources, a LabelSelector elsewhere.
fn selector(value: Option<&Value>) -> String {
    let Some(value) = value else { return String::new() };
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    let labels = string_map(value.get("matchLabels")).into_iter();
    let terms: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
    terms.join(",")
}
