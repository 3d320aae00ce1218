//! POST, PUT, PATCH and DELETE.

use std::sync::Arc;

use http::{HeaderMap, Response, header};
use serde_json::{Value, json};

use super::{
    Call,
    patch::Patch,
    reply::{self, Body, Representation},
    review, scale,
};
use crate::{
    resource::ResourceType,
    status::ApiError,
    store::{
        ApplyOptions, Deleted, Part, Preconditions, WriteOptions,
        fields::Manager,
        object::{Object, StoreKey},
    },
};

/// POST on a collection.
pub(super) fn create(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let target = call.target;
    let value = decode(call.headers, body)?;
    expect_type(&value, res)?;
    if res.review {
        return Ok(reply::value(201, &review::answer(call, &value)?));
    }
    let options = options(call, res);
    let object = call
        .state
        .store
        .create(&target.resource, &target.namespace, value, &options)?;
    Ok(reply::json(201, call.view.object(&object, res)?))
}

/// PUT on an object or a sub-resource.
pub(super) fn update(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let target = call.target;
    let body = decode(call.headers, body)?;
    if target.subresource == "scale" {
        return change_scale(call, res, |scale| {
            *scale = body;
            Ok(())
        });
    }
    expect_type(&body, res)?;
    let version = body
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if version.is_empty() && !res.unconditional_update {
        return Err(ApiError::version_required(res, &target.name));
    }
    modify(call, res, |value| {
        *value = body;
        Ok(())
    })
}

/// PATCH on an object or a sub-resource.
pub(super) fn patch(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let target = call.target;
    let patch = Patch::decode(res, call.headers, body)?;
    if target.subresource == "scale" {
        return change_scale(call, res, |scale| {
            patch.change(scale)?;
            scale::replicas(scale)
                .map(drop)
                .map_err(|_| ApiError::unprocessable_patch())
        });
    }
    let Patch::Apply(config) = &patch else {
        return modify(call, res, |value| {
            patch.change(value)?;
            // A bad result is the patch's fault; a bad object in a PUT is a bad request.
            match res.normalise {
                Some(normalise) => normalise(value.clone())
                    .map(drop)
                    .map_err(|_| ApiError::unprocessable_patch()),
                None => Ok(()),
            }
        });
    };
    expect_type(config, res)?;
    if call.query.get("fieldManager").is_empty() {
        return Err(ApiError::new(
            422,
            "Invalid",
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ));
    }
    let how = ApplyOptions {
        part: part(call)?,
        manager: manager(call, res),
        force: call.query.flag("force"),
        dry_run: call.query.dry_run(),
    };
    let key = StoreKey::new(&target.namespace, &target.name);
    let (object, created) = call.state.store.apply(&target.resource, &key, config, &how)?;
    Ok(reply::json(
        if created { 201 } else { 200 },
        call.view.object(&object, res)?,
    ))
}

/// DELETE on an object.
pub(super) fn delete(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let target = call.target;
    if !target.subresource.is_empty() {
        return Err(ApiError::method_not_allowed());
    }
    let options = delete_options(call, body)?;
    let deleted = call.state.store.delete(
        &target.resource,
        &target.namespace,
        &target.name,
        &options.preconditions,
        options.dry_run,
    )?;
    match deleted {
        Deleted::Pending(object) => Ok(reply::json(200, call.view.object(&object, res)?)),
        Deleted::Gone(object) => {
            let mut details = json!({ "name": object.name(), "kind": res.plural, "uid": object.uid() });
            if !res.group.is_empty() {
                details["group"] = res.group.as_ref().into();
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
            });
            Ok(reply::value(200, &status))
        }
    }
}

/// GET of the scale sub-resource.
pub(super) fn get_scale(call: &Call<'_>, res: &ResourceType) -> Result<Response<Body>, ApiError> {
    let paths = res.scale.as_ref().ok_or_else(ApiError::no_such_resource)?;
    let target = call.target;
    let object = call
        .state
        .store
        .find(&target.resource, &target.namespace, &target.name)
        .ok_or_else(|| ApiError::not_found_as(&format!("{}/scale", res.plural), &res.group, &target.name))?;
    Ok(reply::value(200, &scale::view(&object, paths)))
}

fn change_scale(
    call: &Call<'_>,
    res: &ResourceType,
    change: impl FnOnce(&mut Value) -> Result<(), ApiError>,
) -> Result<Response<Body>, ApiError> {
    let paths = res.scale.as_ref().ok_or_else(ApiError::no_such_resource)?;
    let target = call.target;
    let options = options(call, res);
    let object = call.state.store.modify(
        &target.resource,
        &target.namespace,
        &target.name,
        Part::Main,
        &options,
        |value| {
            let version = value.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            let version = version.and_then(|text| text.parse().ok()).unwrap_or_default();
            let key = StoreKey::new(&target.namespace, &target.name);
            let mut view = scale::view(&Object::new(key, version, value.clone()), paths);
            change(&mut view)?;
            scale::store(&target.name, paths, &view, value)
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
    let part = part(call)?;
    let options = options(call, res);
    let object: Arc<Object> = call.state.store.modify(
        &target.resource,
        &target.namespace,
        &target.name,
        part,
        &options,
        change,
    )?;
    Ok(reply::json(200, call.view.object(&object, res)?))
}

fn part(call: &Call<'_>) -> Result<Part, ApiError> {
    match call.target.subresource.as_str() {
        "" => Ok(Part::Main),
        "status" => Ok(Part::Status),
        _ => Err(ApiError::no_such_resource()),
    }
}

fn options(call: &Call<'_>, res: &ResourceType) -> WriteOptions {
    WriteOptions {
        dry_run: call.query.dry_run(),
        manager: Some(manager(call, res)),
    }
}

/// `fieldManager`, else the user agent up to its first slash.
fn manager(call: &Call<'_>, res: &ResourceType) -> Manager {
    let name = match call.query.get("fieldManager") {
        "" => call
            .headers
            .get(header::USER_AGENT)
            .and_then(|value| value.to_str().ok())
            .and_then(|agent| agent.split('/').next())
            .filter(|name| !name.is_empty())
            .unwrap_or("unknown"),
        name => name,
    };
    let subresource = match call.target.subresource.as_str() {
        "status" => "status",
        "scale" => "scale",
        _ => "",
    };
    Manager {
        name: name.to_owned(),
        subresource,
        api_version: res.api_version(),
    }
}

fn decode(headers: &HeaderMap, body: &[u8]) -> Result<Value, ApiError> {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if ["yaml", "protobuf"]
        .iter()
        .any(|other| content_type.contains(other))
    {
        return Err(ApiError::unsupported_patch(&["application/json"]));
    }
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

/// apiVersion and kind of a body must be those of the path, where they are given.
fn expect_type(value: &Value, res: &ResourceType) -> Result<(), ApiError> {
    let given = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (given("apiVersion"), given("kind"));
    if !version.is_empty() && version != res.api_version() {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({})",
            res.api_version()
        )));
    }
    if !kind.is_empty() && kind != res.kind {
        return Err(ApiError::bad_request(format!(
            "the kind in the data ({kind}) does not match the expected kind ({})",
            res.kind
        )));
    }
    Ok(())
}

struct DeleteOptions {
    preconditions: Preconditions,
    dry_run: bool,
}

fn delete_options(call: &Call<'_>, body: &[u8]) -> Result<DeleteOptions, ApiError> {
    let value = if body.is_empty() {
        json!({})
    } else {
        decode(call.headers, body)?
    };
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let dry_run = value
        .get("dryRun")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty());
    Ok(DeleteOptions {
        preconditions: Preconditions {
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
        },
        dry_run: dry_run || call.query.dry_run(),
    })
}

/// How the objects of a write's answer are shown; a list view makes no sense there.
pub(super) fn write_view(view: Representation) -> Representation {
    if view == Representation::PartialList {
        Representation::Partial
    } else {
        view
    }
}
