//! POST, PUT, PATCH and DELETE.

use http::header;
use serde_json::{Value, json};

use super::{ApiAnswer, Call, reply, scale};
use crate::{
    resource::ResourceType,
    status::ApiError,
    store::{Part, Preconditions, object::Object},
};

/// The only kind of patch that is taken.
const MERGE_PATCH: &str = "application/merge-patch+json";

type Edit<'a> = Box<dyn FnOnce(&mut Value) + 'a>;

/// POST on a collection.
pub(super) fn create(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> ApiAnswer {
    let target = call.target;
    let value = decode(body)?;
    let object = call
        .state
        .store
        .create(&target.resource, &target.namespace, value, &call.options)?;
    Ok(reply::json(201, call.view.object(&object, res)))
}

/// PUT on an object or a sub-resource.
pub(super) fn update(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> ApiAnswer {
    let new = decode(body)?;
    modify(call, res, Box::new(|value| *value = new))
}

/// PATCH on an object or a sub-resource.
pub(super) fn patch(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> ApiAnswer {
    let content_type = call.headers.get(header::CONTENT_TYPE);
    if content_type.is_none_or(|value| value != MERGE_PATCH) {
        return Err(ApiError::unsupported_patch(MERGE_PATCH));
    }
    let patch = decode(body)?;
    modify(call, res, Box::new(move |value| json_patch::merge(value, &patch)))
}

/// DELETE on an object.
pub(super) fn delete(call: &Call<'_>, res: &ResourceType, body: &[u8]) -> ApiAnswer {
    let target = call.target;
    let options = if body.is_empty() { json!({}) } else { decode(body)? };
    let given = |field: &str| options["preconditions"][field].as_str().map(str::to_owned);
    let preconditions = Preconditions {
        uid: given("uid"),
        resource_version: given("resourceVersion"),
    };
    let gone = call
        .state
        .store
        .delete(&target.resource, &target.namespace, &target.name, &preconditions)?;
    let details = json!({ "name": gone.name(), "kind": res.key.plural, "uid": gone.uid() });
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    Ok(reply::value(200, &status))
}

/// GET of the scale sub-resource.
pub(super) fn get_scale(call: &Call<'_>, res: &ResourceType) -> ApiAnswer {
    let target = call.target;
    let object = call
        .state
        .store
        .get(&target.resource, &target.namespace, &target.name)?;
    show(call, res, &object)
}

/// Changes an object, its status, or its Scale.
fn modify(call: &Call<'_>, res: &ResourceType, change: Edit<'_>) -> ApiAnswer {
    let target = call.target;
    let (part, scale) = match target.subresource.as_str() {
        "status" => (Part::Status, None),
        "scale" => (Part::Main, res.scale.as_ref()),
        _ => (Part::Main, None),
    };
    let object = call.state.store.modify(
        &target.resource,
        &target.namespace,
        &target.name,
        part,
        &call.options,
        |value| {
            let Some(paths) = scale else {
                change(value);
                return Ok(());
            };
            let mut view = scale::view(value, paths);
            change(&mut view);
            scale::store(paths, &view, value)
        },
    )?;
    show(call, res, &object)
}

fn show(call: &Call<'_>, res: &ResourceType, object: &Object) -> ApiAnswer {
    Ok(match &res.scale {
        Some(paths) if call.target.subresource == "scale" => {
            reply::value(200, &scale::view(object.value(), paths))
        }
        _ => reply::json(200, call.view.object(object, res)),
    })
}

pub(super) fn decode(body: &[u8]) -> Result<Value, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(Value::Object(map)),
        Ok(_) => Err(ApiError::bad_request("the object provided is no object")),
        Err(error) => Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type): {error}"
        ))),
    }
}
