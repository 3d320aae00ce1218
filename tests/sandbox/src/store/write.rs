//! Creates, updates and deletes.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    Store, StoreState, fields,
    object::{Object, StoreKey, child_mut, metadata_mut, with_type},
    random_suffix, random_uid,
};
use crate::{
    resource::{ResourceKey, ResourceType, keys},
    status::ApiError,
    time,
};

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status, where there is a status sub-resource.
    Main,
    /// The status only.
    Status,
    /// Everything: what the simulators use.
    All,
}

/// How to write.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// The field manager of a request; simulators have none.
    pub manager: Option<String>,
}

/// The preconditions of a delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    /// Its resourceVersion.
    pub resource_version: Option<String>,
}

impl Store {
    /// Creates an object in `namespace` (empty for cluster scope).
    ///
    /// # Errors
    /// 404 for an unknown namespace, 409 if it exists, 422 without a name.
    pub fn create(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        mut value: Value,
        options: &WriteOptions,
    ) -> Result<Arc<Object>, ApiError> {
        let mut inner = self.inner.lock();
        let res = inner.table(resource)?.res.clone();
        let name = prepare_create(&inner, &res, namespace, &mut value, options)?;
        let key = StoreKey::new(namespace, &name);
        if inner.table(resource)?.objects.contains_key(&key) {
            return Err(ApiError::already_exists(&res, &name));
        }
        if let Some(manager) = manager(&res, options) {
            fields::track(None, &mut value, manager, &res.api_version());
        }
        inner.put(resource, key, value)
    }

    /// Changes an object by `change`, which sees it with apiVersion and kind.
    ///
    /// A resourceVersion or UID that `change` puts in is a precondition. An unchanged object is not
    /// written, as on the real server.
    ///
    /// # Errors
    /// Those of `change`; 404 if it is absent; 409 for a failed precondition.
    pub fn modify(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        name: &str,
        part: Part,
        options: &WriteOptions,
        change: impl FnOnce(&mut Value) -> Result<(), ApiError>,
    ) -> Result<Arc<Object>, ApiError> {
        let mut inner = self.inner.lock();
        let (res, old) = inner.existing(resource, namespace, name)?;
        let mut new = with_type(old.value().clone(), &res);
        change(&mut new)?;
        settle(&mut inner, &res, &old, new, part, options)
    }

    /// Changes an object as the simulators do, who own no fields.
    ///
    /// # Errors
    /// 404 if it is absent.
    pub(crate) fn change(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Object>, ApiError> {
        let options = WriteOptions::default();
        self.modify(resource, namespace, name, Part::All, &options, |value| {
            change(value);
            Ok(())
        })
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// 404 if it is absent; 409 for a failed precondition.
    pub fn delete(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
    ) -> Result<Arc<Object>, ApiError> {
        let mut inner = self.inner.lock();
        let (res, old) = inner.existing(resource, namespace, name)?;
        check(&res, &old, preconditions)?;
        inner
            .delete_now(resource, old.key())
            .ok_or_else(|| ApiError::not_found(&res, name))
    }

    /// Deletes an object if it is there.
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete), except 404.
    pub(crate) fn discard(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        match self.delete(resource, namespace, name, &Preconditions::default()) {
            Err(error) if error.code == 404 => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

impl StoreState {
    /// Removes an object; a namespace takes everything in it along.
    fn delete_now(&mut self, resource: &ResourceKey, key: &StoreKey) -> Option<Arc<Object>> {
        if *resource == keys::NAMESPACES {
            let inside: Vec<_> = self
                .tables
                .iter()
                .flat_map(|(resource, table)| {
                    table
                        .objects
                        .keys()
                        .filter(|object| object.namespace == key.name)
                        .map(|object| (resource.clone(), object.clone()))
                })
                .collect();
            for (resource, object) in inside {
                self.remove(&resource, &object);
            }
        }
        self.remove(resource, key)
    }
}

/// Fills in what the server sets on creation and returns the name.
fn prepare_create(
    inner: &StoreState,
    res: &ResourceType,
    namespace: &str,
    value: &mut Value,
    options: &WriteOptions,
) -> Result<String, ApiError> {
    if options.manager.is_some() && res.status {
        remove_key(value, "status");
    }
    let metadata = metadata_mut(value);
    place(metadata, namespace);
    let mut name = string(metadata, "name");
    if name.is_empty() {
        let prefix = string(metadata, "generateName");
        if prefix.is_empty() {
            return Err(ApiError::invalid(
                "metadata.name: name or generateName is required",
            ));
        }
        name = format!("{prefix}{}", random_suffix());
        metadata.insert("name".into(), name.clone().into());
    }
    let namespace_exists = || {
        let key = StoreKey::new("", namespace);
        inner
            .tables
            .get(&keys::NAMESPACES)
            .is_some_and(|table| table.objects.contains_key(&key))
    };
    if res.namespaced && !namespace_exists() {
        let message = format!("namespaces \"{namespace}\" not found");
        return Err(ApiError::new(404, "NotFound", message));
    }
    metadata.insert("uid".into(), random_uid().into());
    metadata.insert("creationTimestamp".into(), time::seconds(Timestamp::now()).into());
    metadata.remove("deletionTimestamp");
    metadata.insert("generation".into(), 1.into());
    if !res.custom && res.scale.is_some() {
        child_mut(value, "spec")
            .entry("replicas")
            .or_insert_with(|| 1.into());
    }
    Ok(name)
}

/// Turns the result of a change into what is stored, and stores it.
fn settle(
    inner: &mut StoreState,
    res: &ResourceType,
    old: &Arc<Object>,
    mut new: Value,
    part: Part,
    options: &WriteOptions,
) -> Result<Arc<Object>, ApiError> {
    let key = old.key().clone();
    let metadata = metadata_mut(&mut new);
    let given = |field: &str| Some(string(metadata, field)).filter(|text| !text.is_empty());
    let preconditions = Preconditions {
        uid: given("uid"),
        resource_version: given("resourceVersion"),
    };
    check(res, old, &preconditions)?;
    metadata.insert("name".into(), key.name.clone().into());
    place(metadata, &key.namespace);
    keep_server_fields(res, old.value(), &mut new, part, options.manager.is_some());
    // Go leaves out empty maps and lists: a patch that brings one changes nothing.
    metadata_mut(&mut new).retain(|_, value| {
        !value.as_object().is_some_and(Map::is_empty) && !value.as_array().is_some_and(Vec::is_empty)
    });
    remove_key(&mut new, "apiVersion");
    remove_key(&mut new, "kind");
    if *old.value() == new {
        return Ok(old.clone());
    }
    if generation_content(res, old.value()) != generation_content(res, &new) {
        let generation = old.number("/metadata/generation") + 1;
        metadata_mut(&mut new).insert("generation".into(), generation.into());
    }
    if let Some(manager) = manager(res, options) {
        fields::track(Some(old.value()), &mut new, manager, &res.api_version());
    }
    inner.put(&res.key(), key, new)
}

/// The content whose changes make `metadata.generation` grow: everything but metadata and status, and the annotations
/// of a Deployment.
fn generation_content(res: &ResourceType, value: &Value) -> (Map<String, Value>, Option<Value>) {
    let mut map = value.as_object().cloned().unwrap_or_default();
    map.remove("status");
    map.remove("metadata");
    let annotations = (res.key() == keys::DEPLOYMENTS)
        .then(|| value.pointer("/metadata/annotations").cloned())
        .flatten();
    (map, annotations)
}

/// Restores what a writer of this part may not change.
fn keep_server_fields(res: &ResourceType, old: &Value, new: &mut Value, part: Part, is_request: bool) {
    match part {
        Part::All => {}
        Part::Main => {
            if res.status {
                copy_key(old, new, "status");
            }
        }
        Part::Status => {
            let status = std::mem::replace(new, old.clone());
            copy_key(&status, new, "status");
        }
    }
    let old_metadata = old.get("metadata").cloned().unwrap_or_default();
    let metadata = metadata_mut(new);
    let mut kept = vec![
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
    ];
    if is_request {
        kept.push("managedFields");
    }
    for key in kept {
        match old_metadata.get(key) {
            Some(value) => metadata.insert(key.into(), value.clone()),
            None => metadata.remove(key),
        };
    }
}

fn check(res: &ResourceType, old: &Object, preconditions: &Preconditions) -> Result<(), ApiError> {
    let version = old.resource_version().to_string();
    let fails = |wanted: &Option<String>, is: &str| wanted.as_deref().is_some_and(|wanted| wanted != is);
    if fails(&preconditions.uid, old.uid()) {
        return Err(ApiError::conflict(res, old.name(), "its UID is another one"));
    }
    if fails(&preconditions.resource_version, &version) {
        return Err(ApiError::conflict(
            res,
            old.name(),
            "the object has been modified",
        ));
    }
    Ok(())
}

/// Puts an object into the namespace of its request.
fn place(metadata: &mut Map<String, Value>, namespace: &str) {
    if namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".into(), namespace.into());
    }
}

fn string(map: &Map<String, Value>, key: &str) -> String {
    map.get(key)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn remove_key(value: &mut Value, key: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(key);
    }
}

fn copy_key(from: &Value, to: &mut Value, key: &str) {
    let Some(map) = to.as_object_mut() else { return };
    match from.get(key) {
        Some(value) => map.insert(key.into(), value.clone()),
        None => map.remove(key),
    };
}

/// The writer that managedFields names. A real API server names the writer of every object; of those that the
/// simulators write, only slices and Endpoints have one here, because the weeder reads when they were written.
fn manager<'a>(res: &ResourceType, options: &'a WriteOptions) -> Option<&'a str> {
    let resource = res.key();
    let is_dated = resource == keys::ENDPOINT_SLICES || resource == keys::ENDPOINTS;
    options
        .manager
        .as_deref()
        .or_else(|| is_dated.then_some("sandbox"))
}
