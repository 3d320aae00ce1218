//! SelfSubjectAccessReviews: what may I do?

use serde_json::{Value, json};

use super::Call;
use crate::auth::Attributes;

/// Answers a SelfSubjectAccessReview by the rules that requests are held to.
pub(super) fn answer(call: &Call<'_>, value: &Value) -> Value {
    let attribute = |key: &str| {
        let value = value
            .pointer("/spec/resourceAttributes")
            .and_then(|of| of.get(key));
        value.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (resource, subresource) = (attribute("resource"), attribute("subresource"));
    let asked = Attributes {
        user: call.user.to_owned(),
        verb: attribute("verb"),
        group: attribute("group"),
        resource: if subresource.is_empty() {
            resource
        } else {
            format!("{resource}/{subresource}")
        },
        namespace: attribute("namespace"),
        name: attribute("name"),
        path: String::new(),
    };
    let allowed = call.state.policy.allows(&asked);
    let reason = if allowed { "allowed by the sandbox" } else { "" };
    json!({
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": { "creationTimestamp": null },
        "spec": value.get("spec").cloned().unwrap_or_default(),
        "status": { "allowed": allowed, "reason": reason },
    })
}
