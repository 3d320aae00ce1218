//! Kubernetes I/O: watches of the seed, requests, and the permissions for them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use watchdog_kube::key::ObjectKey;
use watchdog_kube::watch::Change;

use crate::domain::namespaced_name::NamespacedName;

pub(crate) mod annotations;
pub(crate) mod discovery;
pub(crate) mod endpoints;
pub(crate) mod namespaces;
mod objects;
pub(crate) mod pace;
pub(crate) mod permissions;
pub(crate) mod pod_requests;
pub(crate) mod pods;
mod trimmed;

pub(crate) use self::objects::{EndpointsObject, PodObject, SliceObject};

/// A change that a watch brings, in the terms of the rules.
#[derive(Debug)]
pub(crate) enum ObjectUpdate<T> {
    Applied(T),
    Removed(NamespacedName),
    /// These objects exist and no others.
    Synced(BTreeSet<NamespacedName>),
}

/// Reads the objects of a watch; those that cannot be read are left out.
fn updates<K: Resource, T>(
    read: impl Fn(K) -> Option<T>,
    mut on_update: impl FnMut(ObjectUpdate<T>),
) -> impl FnMut(Change<K>) {
    move |change| match change {
        Change::ListBegins | Change::Failed | Change::Restored => {}
        Change::Applied(object) => read(object)
            .into_iter()
            .for_each(|object| on_update(ObjectUpdate::Applied(object))),
        Change::Deleted(object) => on_update(ObjectUpdate::Removed(name_of(ObjectKey::of(&object)))),
        Change::Synced(keys) => on_update(ObjectUpdate::Synced(keys.into_iter().map(name_of).collect())),
    }
}

/// The Service, as an Event names it.
pub(crate) fn service_reference(service: &NamespacedName, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(service.namespace.to_string()),
        name: Some(service.name.to_string()),
        uid,
        ..ObjectReference::default()
    }
}

fn name_of(key: ObjectKey) -> NamespacedName {
    NamespacedName::new(key.namespace, key.name)
}
