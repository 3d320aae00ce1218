//! POST, PUT, PATCH and DELETE.

use std::sync::Arc;

use http::{Response, header};
use serde_json::{Value, json};

use super::{
    Call,
    reply::{self, Body},
    review, scale,
};
use crate::{
    resource::ResourceType,
    status::ApiError,
    store::{
        Part, Preconditions, WriteOptions,
        object::{Object, StoreKey},
    },
};

/// The only kind of patch that is taken.
const MERGE_PATCH: &str = "application/merge-patch+json";

/// POST on a collection.
pub(super) fn create(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let target = call.target;
    let value = decode(body)?;
    if res.review {
        return Ok(reply::value(201, &review::answer(call, &value)));
    }
    let store = &call.state.store;
    let object = store.create(&target.resource, &target.namespace, value, &options(call))?;
    Ok(reply::json(201, call.view.object(&object, res)))
}

/// PUT on an object or a sub-resource.
pub(super) fn update(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let target = call.target;
    let body = decode(body)?;
    if target.subresource == "scale" {
        return change_scale(call, res, |scale| {
            *scale = body;
            Ok(())
        });
    }
    modify(call, res, |value| {
        *value = body;
        Ok(())
    })
}

/// PATCH on an object or a sub-resource.
pub(super) fn patch(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let content_type = call.headers.get(header::CONTENT_TYPE);
    if content_type.is_none_or(|value| value != MERGE_PATCH) {
        return Err(ApiError::unsupported_patch(MERGE_PATCH));
    }
    let patch: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    if call.target.subresource == "scale" {
        return change_scale(call, res, |scale| {
            json_patch::merge(scale, &patch);
            Ok(())
        });
    }
    modify(call, res, |value| {
        json_patch::merge(value, &patch);
        Ok(())
    })
}

/// DELETE on an object.
pub(super) fn delete(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let target = call.target;
    if !target.subresource.is_empty() {
        return Err(ApiError::method_not_allowed());
    }
    let preconditions = preconditions(body)?;
    let store = &call.state.store;
    let gone = store.delete(&target.resource, &target.namespace, &target.name, &preconditions)?;
    let details = json!({ "name": gone.name(), "kind": res.plural, "uid": gone.uid() });
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    Ok(reply::value(200, &status))
}

/// GET of the scale sub-resource.
pub(super) fn get_scale(call: &Call<'_>, res: &ResourceType) -> Result<Response<Body>, ApiError> {
    let paths = res.scale.as_ref().ok_or_else(ApiError::no_such_resource)?;
    let target = call.target;
    let object = call
        .state
        .store
        .find(&target.resource, &target.namespace, &target.name)
        .ok_or_else(|| ApiError::not_found(res, &target.name))?;
    Ok(reply::value(200, &scale::view(&object, paths)))
}

fn change_scale(
    call: &Call<'_>,
    res: &ResourceType,
    change: impl FnOnce(&mut Value) -> Result<(), ApiError>,
) -> Result<Response<Body>, ApiError> {
    let paths = res.scale.as_ref().ok_or_else(ApiError::no_such_resource)?;
    let target = call.target;
    let object = call.state.store.modify(
        &target.resource,
        &target.namespace,
        &target.name,
        Part::Main,
        &options(call),
        |value| {
            let version = value.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            let version = version.and_then(|text| text.parse().ok()).unwrap_or_default();
            let key = StoreKey::new(&target.namespace, &target.name);
            let mut view = scale::view(&Object::new(key, version, value.clone()), paths);
            change(&mut view)?;
            scale::store(paths, &view, value)
        },
    )?;
    Ok(reply::value(200, &scale::view(&object, paths)))
}

fn modify(
    call: &Call<'_>,
    res: &ResourceType,
    change: impl FnOnce(&mut Value) -> Result<(), ApiError>,
) -> Result<Response<Body>, ApiError> {
    let target = call.target;
    let part = match target.subresource.as_str() {
        "" => Part::Main,
        "status" => Part::Status,
        _ => return Err(ApiError::no_such_resource()),
    };
    let object: Arc<Object> = call.state.store.modify(
        &target.resource,
        &target.namespace,
        &target.name,
        part,
        &options(call),
        change,
    )?;
    Ok(reply::json(200, call.view.object(&object, res)))
}

/// The field manager is `fieldManager`, else the user agent up to its first slash.
fn options(call: &Call<'_>) -> WriteOptions {
    let manager = match call.query.get("fieldManager") {
        "" => call
            .headers
            .get(header::USER_AGENT)
            .and_then(|value| value.to_str().ok())
            .and_then(|agent| agent.split('/').next())
            .unwrap_or_default(),
        name => name,
    };
    WriteOptions {
        manager: Some(manager.to_owned()),
    }
}

fn decode(body: &[u8]) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type): {error}"
        ))
    })?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(ApiError::bad_request("the object provided is no object"))
    }
}

fn preconditions(body: &[u8]) -> Result<Preconditions, ApiError> {
    let options = if body.is_empty() { json!({}) } else { decode(body)? };
    let text = |pointer: &str| {
        options
            .pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    Ok(Preconditions {
        uid: text("/preconditions/uid"),
        resource_version: text("/preconditions/resourceVersion"),
    })
}
