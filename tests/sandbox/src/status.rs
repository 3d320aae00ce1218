//! Errors as the Kubernetes API reports them: `Status` objects with the codes and reasons by which clients tell them
//! apart.

use serde_json::{Value, json};

use crate::resource::ResourceType;

/// A failed API request, rendered as a `Status` object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({reason}, HTTP {code})")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, for instance `NotFound`.
    pub reason: &'static str,
    /// Sentence for people.
    pub message: String,
    /// `details.name`: the object that does not exist. A kind that is not served has none.
    pub name: Option<String>,
    /// Seconds for the `Retry-After` header and `details.retryAfterSeconds`.
    pub retry_after: Option<u64>,
    /// Answer with the bare message as `text/plain`: what the server does for paths that no handler knows.
    pub plain: bool,
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            name: None,
            retry_after: None,
            plain: false,
        }
    }

    /// 404 for an object.
    pub fn not_found(res: &ResourceType, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", res.qualified());
        Self {
            name: Some(name.to_owned()),
            ..Self::new(404, "NotFound", message)
        }
    }

    /// 404 for a resource or sub-resource that is not served under a known group and version.
    pub fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(404, "NotFound", message)
    }

    /// 404 for a path that no handler knows, an unknown group and version included.
    pub fn no_such_path() -> Self {
        Self {
            plain: true,
            ..Self::new(404, "NotFound", "404 page not found\n")
        }
    }

    /// 409 on create.
    pub fn already_exists(res: &ResourceType, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", res.qualified());
        Self::new(409, "AlreadyExists", message)
    }

    /// 409 because of a precondition; `why` completes the server's sentence.
    pub fn conflict(res: &ResourceType, name: &str, why: &str) -> Self {
        let of = res.qualified();
        let message = format!("Operation cannot be fulfilled on {of} \"{name}\": {why}");
        Self::new(409, "Conflict", message)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 422.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 410 of a list whose continue token is older than the history kept.
    pub fn expired_continue() -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result.";
        Self::new(410, "Expired", message)
    }

    /// 410 of a watch that starts before the history kept.
    pub fn expired_watch(asked: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {asked} ({oldest})");
        Self::new(410, "Expired", message)
    }

    /// 415 of a patch; `accepted` is the type that is taken.
    pub fn unsupported_patch(accepted: &str) -> Self {
        let message = format!("only {accepted} is accepted");
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json";
        Self::new(406, "NotAcceptable", message)
    }

    /// 429 with a `Retry-After` in seconds.
    pub fn too_many_requests(retry_after: u64) -> Self {
        let message = "The server has received too many requests and has asked us to try again later";
        Self {
            retry_after: Some(retry_after),
            ..Self::new(429, "TooManyRequests", message)
        }
    }

    pub fn internal(message: &str) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(500, "InternalError", message)
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some(name) = &self.name {
            value["details"]["name"] = json!(name);
        }
        if let Some(seconds) = self.retry_after {
            value["details"]["retryAfterSeconds"] = json!(seconds);
        }
        value
    }
}
