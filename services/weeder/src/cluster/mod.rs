//! Kubernetes I/O: watches of the seed, deletions, and the permissions for them.

use k8s_openapi::api::core::v1::ObjectReference;

use crate::metrics::{MALFORMED, ObjectKind};

pub(crate) mod deletion;
pub(crate) mod discovery;
mod objects;
pub(crate) mod pace;
pub(crate) mod permissions;
mod trimmed;
pub(crate) mod watches;

pub(crate) use self::objects::{EndpointsObject, PodObject, SliceObject};

/// Says that an object cannot be read.
fn malformed(kind: &'static str, namespace: &str, name: &str, reason: &str) {
    MALFORMED.inc(ObjectKind(kind));
    tracing::warn!(kind, namespace, name, error = reason, "object cannot be read");
}

/// An object, as an Event names it.
pub(crate) fn reference(
    api_version: &str,
    kind: &str,
    namespace: &str,
    name: &str,
    uid: Option<&str>,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}
