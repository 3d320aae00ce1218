//! Kubernetes I/O: watches of the seed, requests, and the permissions for them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::Change;

use crate::domain::namespaced_name::NamespacedName;
use crate::metrics::{MALFORMED, ObjectKind};

pub(crate) mod annotations;
pub(crate) mod discovery;
mod endpoints;
mod namespaces;
mod objects;
pub(crate) mod pace;
pub(crate) mod permissions;
pub(crate) mod pod_requests;
mod pods;
mod trimmed;
pub(crate) mod watches;

pub(crate) use self::objects::{EndpointsObject, PodObject, SliceObject};

/// A change that a watch brings, in the terms of the rules.
#[derive(Debug)]
pub(crate) enum ObjectUpdate<T> {
    Applied(T),
    Removed(NamespacedName),
    /// These objects exist and no others.
    Synced(BTreeSet<NamespacedName>),
}

/// A change of a watch, in the terms of the rules; none if it has no object or one that cannot be read.
fn update<K: Resource, T>(change: Change<K>, read: impl FnOnce(K) -> Option<T>) -> Option<ObjectUpdate<T>> {
    match change {
        Change::ListBegins | Change::Failed | Change::Restored => None,
        Change::Applied(object) => read(object).map(ObjectUpdate::Applied),
        Change::Deleted(object) => Some(ObjectUpdate::Removed(name_of(ObjectKey::of(&object)))),
        Change::Synced(keys) => Some(ObjectUpdate::Synced(keys.into_iter().map(name_of).collect())),
    }
}

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

fn name_of(key: ObjectKey) -> NamespacedName {
    NamespacedName::new(key.namespace, key.name)
}
