//! Kubernetes I/O: watches of the seed, deletions, and the permissions for them.

use crate::metrics::{MALFORMED, ObjectKind};

pub(crate) mod deletion;
pub(crate) mod discovery;
mod objects;
pub(crate) mod pace;
pub(crate) mod permissions;
pub(crate) mod watches;

pub(crate) use self::objects::{EndpointsObject, PodObject, SliceObject};

/// Says that an object cannot be read.
fn malformed(kind: &'static str, namespace: &str, name: &str, reason: &str) {
    MALFORMED.inc(ObjectKind(kind));
    tracing::warn!(kind, namespace, name, error = reason, "object cannot be read");
}
