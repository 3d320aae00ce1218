//! SelfSubjectAccessReviews: what may I do?

use serde_json::json;

use super::{ApiAnswer, ApiState, path::with_subresource, reply, write};
use crate::auth::Attributes;

/// The only resource that is asked and not stored.
pub(super) const PLURAL: &str = "selfsubjectaccessreviews";

/// Answers by the rules that requests are held to.
pub(super) fn answer(state: &ApiState, user: &str, body: &[u8]) -> ApiAnswer {
    let review = write::decode(body)?;
    let asked = &review["spec"]["resourceAttributes"];
    let attribute = |key: &str| asked[key].as_str().unwrap_or_default().to_owned();
    let asked = Attributes {
        user: user.to_owned(),
        verb: attribute("verb"),
        group: attribute("group"),
        resource: with_subresource(&attribute("resource"), &attribute("subresource")),
        namespace: attribute("namespace"),
        name: attribute("name"),
    };
    let allowed = state.policy.allows(&asked);
    let reason = if allowed { "allowed by the sandbox" } else { "" };
    let answer = json!({
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": { "creationTimestamp": null },
        "spec": review["spec"],
        "status": { "allowed": allowed, "reason": reason },
    });
    Ok(reply::value(201, &answer))
}
