//! A stored object: one immutable revision, with its JSON made at most once however many watchers read it.

use std::{collections::BTreeMap, sync::OnceLock};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::resource::ResourceType;

/// Namespace (empty for cluster scope) and name; sorts as etcd's keys do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreKey {
    pub namespace: String,
    pub name: String,
}

impl StoreKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// One revision of an object.
#[derive(Debug)]
pub struct Object {
    key: StoreKey,
    resource_version: u64,
    /// The object without `apiVersion` and `kind`, which the resource adds on the way out.
    value: Value,
    full: OnceLock<Bytes>,
    partial: OnceLock<Bytes>,
}

impl Object {
    /// Wraps `value`, writing `resource_version` into its metadata and dropping apiVersion and kind.
    pub(crate) fn new(key: StoreKey, resource_version: u64, mut value: Value) -> Self {
        drop_type(&mut value);
        metadata_mut(&mut value).insert("resourceVersion".into(), resource_version.to_string().into());
        Self {
            key,
            resource_version,
            value,
            full: OnceLock::new(),
            partial: OnceLock::new(),
        }
    }

    /// The same content at another revision: how deletions and lost selector matches are announced.
    pub(crate) fn at(&self, resource_version: u64) -> Self {
        Self::new(self.key.clone(), resource_version, self.value.clone())
    }

    pub fn key(&self) -> &StoreKey {
        &self.key
    }

    pub fn name(&self) -> &str {
        &self.key.name
    }

    /// Namespace; empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        &self.key.namespace
    }

    /// The revision of the last change.
    pub fn resource_version(&self) -> u64 {
        self.resource_version
    }

    /// The content without apiVersion and kind.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The string at a JSON pointer; empty when there is none.
    pub fn text(&self, pointer: &str) -> &str {
        let found = self.value.pointer(pointer);
        found.and_then(Value::as_str).unwrap_or_default()
    }

    /// The integer at a JSON pointer; 0 when there is none.
    pub fn number(&self, pointer: &str) -> i64 {
        let found = self.value.pointer(pointer);
        found.and_then(Value::as_i64).unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.text("/metadata/uid")
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.value["metadata"]["labels"].get(key)?.as_str()
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.value["metadata"]["annotations"].get(key)?.as_str()
    }

    /// JSON with apiVersion and kind, also as an item of a list, where the real server leaves them out for its own
    /// kinds.
    pub(crate) fn json(&self, res: &ResourceType) -> Bytes {
        self.full
            .get_or_init(|| encode(&with_type(self.value.clone(), res)))
            .clone()
    }

    /// JSON of the PartialObjectMetadata view.
    pub(crate) fn partial_json(&self) -> Bytes {
        let partial = || {
            encode(&json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": self.value["metadata"],
            }))
        };
        self.partial.get_or_init(partial).clone()
    }
}

/// Adds apiVersion and kind.
pub(crate) fn with_type(mut value: Value, res: &ResourceType) -> Value {
    value["apiVersion"] = res.api_version().into();
    value["kind"] = res.kind.as_ref().into();
    value
}

pub(crate) fn drop_type(value: &mut Value) {
    let map = as_map(value);
    map.remove("apiVersion");
    map.remove("kind");
}

/// JSON bytes; a `Value` always encodes.
pub(crate) fn encode(value: &Value) -> Bytes {
    serde_json::to_vec(value).map(Bytes::from).unwrap_or_default()
}

/// `metadata` as a map, made if it is absent or not a map.
pub(crate) fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    as_map(as_map(value).entry("metadata").or_insert(Value::Null))
}

/// `value` as a map; anything else is replaced by an empty one.
pub(crate) fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // The line above has just made it a map.
        _ => unreachable!("not a JSON object"),
    }
}

/// Labels as a sorted map of strings.
pub fn string_map(value: Option<&Value>) -> BTreeMap<String, String> {
    let fields = value.and_then(Value::as_object).into_iter().flatten();
    let strings = fields.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    strings.collect()
}
