//! The kinds of patch.

use http::{HeaderMap, header};
use serde_json::Value;

use crate::{resource::ResourceType, status::ApiError};

/// A decoded patch body.
#[derive(Debug)]
pub(super) enum Patch {
    /// RFC 6902.
    Json(json_patch::Patch),
    /// RFC 7386.
    Merge(Value),
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
            // Without lists it does what a merge patch does.
            STRATEGIC if !res.custom => match value()? {
                patch if has_list(&patch) => {
                    let message = "the sandbox merges no lists strategically: send a merge patch";
                    Err(ApiError::new(501, "NotImplemented", message))
                }
                patch => Ok(Self::Merge(patch)),
            },
            APPLY => value().map(Self::Apply),
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
        }
    }
}

fn has_list(value: &Value) -> bool {
    match value {
        Value::Array(_) => true,
        Value::Object(map) => map.values().any(has_list),
        _ => false,
    }
}
