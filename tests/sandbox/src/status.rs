//! Errors as the Kubernetes API reports them: `Status` objects with the reasons, codes and messages that
//! k8s.io/apimachinery/pkg/api/errors produces, so that clients tell them apart as they do in production.

use serde_json::{Value, json};

use crate::resource::ResourceType;

/// A failed API request, rendered as a `Status` object.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message} ({reason}, HTTP {code})")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, for instance `NotFound`; empty is Kubernetes' "unknown".
    pub reason: &'static str,
    /// Sentence for people, worded as the real API server does.
    pub message: String,
    /// `Status.details`, if the reason has any.
    pub details: Option<Box<Value>>,
    /// Seconds for the `Retry-After` header and `details.retryAfterSeconds`.
    pub retry_after: Option<u64>,
    /// Answer with the bare message as `text/plain`: what the server does for paths that no handler knows.
    pub plain: bool,
}

impl ApiError {
    /// An error without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            retry_after: None,
            plain: false,
        }
    }

    fn about(mut self, res: &ResourceType, name: &str) -> Self {
        self.details = Some(Box::new(details(&res.plural, &res.group, name)));
        self
    }

    fn with_causes(mut self, causes: Value) -> Self {
        self.details.get_or_insert_default()["causes"] = causes;
        self
    }

    /// 404 for an object.
    pub fn not_found(res: &ResourceType, name: &str) -> Self {
        Self::not_found_as(&res.plural, &res.group, name)
    }

    /// 404 for an object of a resource named by hand, for instance `deployments/scale`.
    pub fn not_found_as(plural: &str, group: &str, name: &str) -> Self {
        let qualified = qualified(plural, group);
        let mut error = Self::new(404, "NotFound", format!("{qualified} \"{name}\" not found"));
        error.details = Some(Box::new(details(plural, group, name)));
        error
    }

    /// 404 for a resource or sub-resource that is not served under a known group and version.
    pub fn no_such_resource() -> Self {
        let mut error = Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
        error.details = Some(Box::new(json!({})));
        error
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
        Self::new(
            409,
            "AlreadyExists",
            format!("{} \"{name}\" already exists", res.qualified()),
        )
        .about(res, name)
    }

    /// 409 because of a precondition; `why` completes the server's sentence.
    pub fn conflict(res: &ResourceType, name: &str, why: &str) -> Self {
        Self::new(
            409,
            "Conflict",
            format!(
                "Operation cannot be fulfilled on {} \"{name}\": {why}",
                res.qualified()
            ),
        )
        .about(res, name)
    }

    /// 409 because the resourceVersion sent is not the stored one.
    pub fn modified(res: &ResourceType, name: &str) -> Self {
        Self::conflict(
            res,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 422 with one cause. `detail` is the text after the field, for instance `Required value`.
    pub fn invalid(res: &ResourceType, name: &str, field: &str, detail: &str) -> Self {
        Self::invalid_kind(
            &res.kind,
            &res.group,
            name,
            &[(field.to_owned(), detail.to_owned())],
        )
    }

    /// 422 with the kind (here the details carry the kind, not the plural), its group and (field, detail) pairs.
    pub fn invalid_kind(kind: &str, group: &str, name: &str, faults: &[(String, String)]) -> Self {
        let qualified = qualified(kind, group);
        let texts: Vec<String> = faults
            .iter()
            .map(|(field, detail)| format!("{field}: {detail}"))
            .collect();
        let text = texts.join(", ");
        let text = if texts.len() == 1 {
            text
        } else {
            format!("[{text}]")
        };
        let causes: Vec<Value> = faults
            .iter()
            .map(|(field, detail)| {
                let reason = if detail.starts_with("Required value") {
                    "FieldValueRequired"
                } else if detail.starts_with("Forbidden") {
                    "FieldValueForbidden"
                } else {
                    "FieldValueInvalid"
                };
                json!({ "reason": reason, "message": detail, "field": field })
            })
            .collect();
        let mut error = Self::new(
            422,
            "Invalid",
            format!("{qualified} \"{name}\" is invalid: {text}"),
        );
        error.details = Some(Box::new(details(kind, group, name)));
        error.with_causes(Value::Array(causes))
    }

    /// 422 of an update without a resourceVersion; here the real server names the plural as the kind.
    pub fn version_required(res: &ResourceType, name: &str) -> Self {
        let fault = (
            "metadata.resourceVersion".into(),
            "Invalid value: 0x0: must be specified for an update".into(),
        );
        Self::invalid_kind(&res.plural, &res.group, name, &[fault])
    }

    /// 422 of a patch that cannot be applied, or whose result cannot be decoded.
    pub fn unprocessable_patch() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self {
            details: Some(Box::new(json!({}))),
            ..Self::new(422, "Invalid", message)
        }
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self {
            details: Some(Box::new(json!({}))),
            ..Self::new(405, "MethodNotAllowed", message)
        }
    }

    /// 410 of a list whose continue token or exact resourceVersion is older than the history kept.
    pub fn expired_continue() -> Self {
        Self::new(
            410,
            "Expired",
            "The provided continue parameter is too old to display a consistent list result. You can start a \
             new list without the continue parameter.",
        )
    }

    /// 410 of a watch that starts before the history kept.
    pub fn expired_watch(asked: u64, oldest: u64) -> Self {
        Self::new(
            410,
            "Expired",
            format!("too old resource version: {asked} ({oldest})"),
        )
    }

    /// 415 of a patch; `accepted` is the type that is taken.
    pub fn unsupported_patch(accepted: &str) -> Self {
        let message = "the body of the request was in an unknown format - accepted media types include";
        Self::new(415, "UnsupportedMediaType", format!("{message}: {accepted}"))
    }

    /// 429 with a `Retry-After` in seconds.
    pub fn too_many_requests(retry_after: u64) -> Self {
        let mut error = Self::new(
            429,
            "TooManyRequests",
            "The server has received too many requests and has asked us to try again later",
        );
        error.retry_after = Some(retry_after);
        error
    }

    /// 500.
    pub fn internal(message: &str) -> Self {
        Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
        .with_causes(json!([{ "message": message }]))
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            value["reason"] = self.reason.into();
        }
        if let Some(details) = self.details.as_deref() {
            value["details"] = details.clone();
        }
        if let Some(seconds) = self.retry_after {
            value["details"]["retryAfterSeconds"] = seconds.into();
        }
        value
    }
}

/// `kind.group`, or the kind alone in the core group; so for plurals.
pub(crate) fn qualified(kind: &str, group: &str) -> String {
    match group {
        "" => kind.to_owned(),
        group => format!("{kind}.{group}"),
    }
}

/// `Status.details`, empty parts left out.
pub(crate) fn details(kind: &str, group: &str, name: &str) -> Value {
    let parts = [("kind", kind), ("group", group), ("name", name)];
    parts
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key.to_owned(), Value::from(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
