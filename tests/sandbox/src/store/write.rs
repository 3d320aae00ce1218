//! Creates, updates and deletes.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    Store, StoreState, fields,
    object::{Object, StoreKey, as_map, drop_type, metadata_mut, with_type},
    random_suffix, random_uid,
};
use crate::{
    resource::{ResourceKey, ResourceType, keys},
    status::ApiError,
};

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status, where there is a status sub-resource.
    Main,
    /// The status only.
    Status,
    /// Everything: what simulations and tests use.
    All,
}

/// How to write.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// The field manager of a request; simulations have none.
    pub manager: Option<String>,
}

/// The preconditions of a delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

/// Metadata that only the server sets.
const SERVER_METADATA: [&str; 6] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "managedFields",
];

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
    /// A resourceVersion or UID that `change` puts in is a precondition. An unchanged object is not written, as on the
    /// real server.
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

    /// Changes an object as simulations do, who own no fields.
    ///
    /// # Errors
    /// 404 if it is absent.
    pub fn change(
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

    /// Deletes an object; a namespace takes everything in it along.
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
        if *resource == keys::NAMESPACES {
            inner.empty(name);
        }
        let deleted = inner.remove(resource, old.key());
        deleted.ok_or_else(|| ApiError::not_found(&res, name))
    }
}

impl StoreState {
    fn empty(&mut self, namespace: &str) {
        let tables = self.tables.iter();
        let inside = tables.flat_map(|(resource, table)| {
            let keys = table.objects.keys().filter(|key| key.namespace == namespace);
            keys.map(|key| (resource.clone(), key.clone()))
        });
        for (resource, key) in inside.collect::<Vec<_>>() {
            self.remove(&resource, &key);
        }
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
        as_map(value).remove("status");
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
    if res.namespaced && inner.existing(&keys::NAMESPACES, "", namespace).is_err() {
        let message = format!("namespaces \"{namespace}\" not found");
        return Err(ApiError::new(404, "NotFound", message));
    }
    metadata.remove("deletionTimestamp");
    metadata.insert("uid".into(), random_uid().into());
    metadata.insert("creationTimestamp".into(), now().into());
    metadata.insert("generation".into(), 1.into());
    if !res.custom && res.scale.is_some() && value["spec"]["replicas"].is_null() {
        value["spec"]["replicas"] = 1.into();
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
    match part {
        Part::All => {}
        Part::Main if res.status => copy_key("status", old.value(), &mut new),
        Part::Main => {}
        Part::Status => {
            let status = std::mem::replace(&mut new, old.value().clone());
            copy_key("status", &status, &mut new);
        }
    }
    for key in SERVER_METADATA {
        if key != "managedFields" || options.manager.is_some() {
            copy_key(key, &old.value()["metadata"], &mut new["metadata"]);
        }
    }
    // Go leaves out empty maps and lists: a patch that brings one changes nothing.
    metadata_mut(&mut new).retain(|_, value| {
        !value.as_object().is_some_and(Map::is_empty) && !value.as_array().is_some_and(Vec::is_empty)
    });
    drop_type(&mut new);
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
    inner.put(&res.key, key, new)
}

/// The content whose changes make `metadata.generation` grow: everything but metadata and status, and the annotations
/// of a Deployment.
fn generation_content(res: &ResourceType, value: &Value) -> (Map<String, Value>, Option<Value>) {
    let mut map = value.as_object().cloned().unwrap_or_default();
    map.remove("status");
    map.remove("metadata");
    let is_deployment = res.key == keys::DEPLOYMENTS;
    let annotations = is_deployment.then(|| value["metadata"]["annotations"].clone());
    (map, annotations)
}

fn check(res: &ResourceType, old: &Object, preconditions: &Preconditions) -> Result<(), ApiError> {
    let version = old.resource_version().to_string();
    let fails = |wanted: &Option<String>, is: &str| wanted.as_deref().is_some_and(|wanted| wanted != is);
    let why = if fails(&preconditions.uid, old.uid()) {
        "its UID is another one"
    } else if fails(&preconditions.resource_version, &version) {
        "the object has been modified"
    } else {
        return Ok(());
    };
    Err(ApiError::conflict(res, old.name(), why))
}

/// Puts an object into the namespace of its request.
fn place(metadata: &mut Map<String, Value>, namespace: &str) {
    match namespace {
        "" => metadata.remove("namespace"),
        namespace => metadata.insert("namespace".into(), namespace.into()),
    };
}

fn string(map: &Map<String, Value>, key: &str) -> String {
    let found = map.get(key).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

fn copy_key(key: &str, from: &Value, to: &mut Value) {
    match from.get(key) {
        Some(value) => as_map(to).insert(key.into(), value.clone()),
        None => as_map(to).remove(key),
    };
}

/// The writer that managedFields names. A real API server names the writer of every object; of those that simulations
/// write, only slices and Endpoints have one here, because the weeder reads when they were written.
fn manager<'a>(res: &ResourceType, options: &'a WriteOptions) -> Option<&'a str> {
    let is_dated = [keys::ENDPOINT_SLICES, keys::ENDPOINTS].contains(&res.key);
    options
        .manager
        .as_deref()
        .or_else(|| is_dated.then_some("sandbox"))
}

/// As `metav1.Time`: whole seconds, UTC.
pub(super) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
