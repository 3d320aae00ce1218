//! Creates, updates and deletes with the rules that the real server's storage strategies enforce.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Store, StoreState, fields,
    object::{Object, StoreKey, metadata_mut, with_type},
    strategy::{
        check, check_name, default, has_finalizers, keep_server_fields, normalise, place, random_suffix,
        random_uid, remove_key, string, validate, without_status,
    },
};
use crate::{
    resource::{Generation, ResourceKey, ResourceType, keys},
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
    /// The field manager of a request, whose object is checked against the kind's Go type; simulators have none.
    pub manager: Option<String>,
}

/// The preconditions of a delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    /// Its resourceVersion.
    pub resource_version: Option<String>,
}

/// The outcome of a delete.
#[derive(Debug, Clone)]
pub enum Deleted {
    Gone(Arc<Object>),
    /// Marked for deletion; finalizers keep it.
    Pending(Arc<Object>),
}

impl Store {
    /// Creates an object in `namespace` (empty for cluster scope).
    ///
    /// # Errors
    /// 400 for a wrong type or namespace, 404 for an unknown namespace, 409 if it exists, 422 for a bad name.
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
    /// Those of `change`; 404 if it is absent; 409 for a failed precondition; 400 and 422 for a bad result.
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

    /// Changes an object as the simulators do: neither checked nor owned by a field manager.
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

    /// Deletes an object, or marks it when finalizers keep it.
    ///
    /// # Errors
    /// 404 if it is absent; 409 for a failed precondition.
    pub fn delete(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
    ) -> Result<Deleted, ApiError> {
        let mut inner = self.inner.lock();
        let (res, old) = inner.existing(resource, namespace, name)?;
        check(&res, &old, preconditions)?;
        if has_finalizers(old.value()) {
            if !old.text("/metadata/deletionTimestamp").is_empty() {
                return Ok(Deleted::Pending(old));
            }
            let mut new = old.value().clone();
            let metadata = metadata_mut(&mut new);
            metadata.insert("deletionTimestamp".into(), time::seconds(Timestamp::now()).into());
            metadata.insert("deletionGracePeriodSeconds".into(), 0.into());
            if res.generation != Generation::None {
                metadata.insert(
                    "generation".into(),
                    (old.number("/metadata/generation") + 1).into(),
                );
            }
            return inner.put(resource, old.key().clone(), new).map(Deleted::Pending);
        }
        inner
            .delete_now(resource, old.key())
            .map(Deleted::Gone)
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
    if options.manager.is_some() {
        let taken = std::mem::take(value);
        *value = normalise(res, taken)?;
        if res.status {
            remove_key(value, "status");
        }
    }
    let metadata = metadata_mut(value);
    if metadata
        .get("resourceVersion")
        .and_then(Value::as_str)
        .is_some_and(|rv| !rv.is_empty())
    {
        return Err(ApiError::new(
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ));
    }
    place(metadata, namespace)?;
    let mut name = string(metadata, "name");
    if name.is_empty() {
        let prefix = string(metadata, "generateName");
        if prefix.is_empty() {
            return Err(ApiError::invalid(
                res,
                "",
                "metadata.name",
                "Required value: name or generateName is required",
            ));
        }
        name = format!("{prefix}{}", random_suffix());
        metadata.insert("name".into(), name.clone().into());
    }
    check_name(res, &name)?;
    let namespace_exists = || {
        let key = StoreKey::new("", namespace);
        inner
            .tables
            .get(&keys::NAMESPACES)
            .is_some_and(|table| table.objects.contains_key(&key))
    };
    if res.namespaced && !namespace_exists() {
        let message = format!("namespaces \"{namespace}\" not found");
        let mut error = ApiError::new(404, "NotFound", message);
        error.details = Some(Box::new(json!({ "name": namespace, "kind": "namespaces" })));
        return Err(error);
    }
    metadata.insert("uid".into(), random_uid().into());
    metadata.insert("creationTimestamp".into(), time::seconds(Timestamp::now()).into());
    for server_set in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(server_set);
    }
    match res.generation {
        Generation::None => metadata.remove("generation"),
        _ => metadata.insert("generation".into(), 1.into()),
    };
    default(res, &name, value);
    if options.manager.is_some() {
        validate(res, None, value, &name)?;
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
    let version = string(metadata, "resourceVersion");
    if !version.is_empty() && version != old.resource_version().to_string() {
        return Err(ApiError::modified(res, &key.name));
    }
    let uid = string(metadata, "uid");
    if !uid.is_empty() && uid != old.uid() {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            old.uid()
        );
        return Err(ApiError::conflict(res, &key.name, &why));
    }
    let name = string(metadata, "name");
    if !name.is_empty() && name != key.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name
        )));
    }
    metadata.insert("name".into(), key.name.clone().into());
    place(metadata, &key.namespace)?;
    let checked = options.manager.is_some();
    if checked {
        new = normalise(res, new)?;
        validate(res, Some(old.value()), &new, &key.name)?;
    }
    keep_server_fields(res, old.value(), &mut new, part, checked);
    remove_key(&mut new, "apiVersion");
    remove_key(&mut new, "kind");
    if *old.value() == new {
        return Ok(old.clone());
    }
    let grows = match res.generation {
        Generation::None => false,
        Generation::Spec => old.value().get("spec") != new.get("spec"),
        Generation::SpecAndAnnotations => {
            let annotations = |value: &Value| value.pointer("/metadata/annotations").cloned();
            old.value().get("spec") != new.get("spec") || annotations(old.value()) != annotations(&new)
        }
        Generation::AllButStatus => without_status(old.value()) != without_status(&new),
    };
    if grows {
        metadata_mut(&mut new).insert(
            "generation".into(),
            (old.number("/metadata/generation") + 1).into(),
        );
    }
    if let Some(manager) = manager(res, options) {
        fields::track(Some(old.value()), &mut new, manager, &res.api_version());
    }
    let resource = res.key();
    let leaving = new.pointer("/metadata/deletionTimestamp").is_some() && !has_finalizers(&new);
    if leaving {
        // The last finalizer is gone: so is the object, in one write. The answer still has the old version.
        inner.delete_now(&resource, &key);
        return Ok(Arc::new(Object::new(key, old.resource_version(), new)));
    }
    inner.put(&resource, key, new)
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
