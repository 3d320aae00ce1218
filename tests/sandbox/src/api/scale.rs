//! The scale sub-resource: autoscaling/v1 Scale as a view of an object.

use std::collections::BTreeMap;

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

/// A selector in its string form: already a string in custom resources, a LabelSelector elsewhere.
fn selector(value: Option<&Value>) -> String {
    let Some(value) = value else { return String::new() };
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    let labels: BTreeMap<_, _> = string_map(value.get("matchLabels"));
    let mut terms: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    for expression in value
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let text = |key: &str| expression.get(key).and_then(Value::as_str).unwrap_or_default();
        let values: Vec<&str> = expression
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let (key, values) = (text("key"), values.join(","));
        terms.push(match text("operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    terms.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::object::StoreKey;

    #[test]
    fn zero_replicas_are_left_out_as_go_does() {
        let object = Object::new(
            StoreKey::new("n", "d"),
            7,
            json!({
                "metadata": { "name": "d", "namespace": "n", "uid": "u" },
                "spec": { "replicas": 0, "selector": { "matchLabels": { "b": "2", "a": "1" } } },
                "status": { "replicas": 3 },
            }),
        );
        let scale = view(&object, &ScalePaths::WORKLOAD);
        assert_eq!(scale["spec"], json!({}));
        assert_eq!(scale["status"], json!({ "replicas": 3, "selector": "a=1,b=2" }));
        assert_eq!(scale["metadata"]["resourceVersion"], "7");
    }
}
