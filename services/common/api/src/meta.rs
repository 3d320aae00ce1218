//! Object metadata. Most of managedFields, which are often half of an object, is never kept.

use crate::subset::Subset;
use crate::text::{self, printable_name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta, Time};
use serde_json::Value;
use std::collections::BTreeMap;

impl Subset {
    /// The kept fields of the metadata. One of the wrong type counts as absent: an object must be known by its name
    /// whatever else is wrong with it. A deletionTimestamp that is no time still marks the object as deleting, as of
    /// the epoch.
    pub(crate) fn metadata(&self) -> ObjectMeta {
        let value = self.0.get("metadata").unwrap_or(&Value::Null);
        ObjectMeta {
            name: name(value, "name"),
            namespace: name(value, "namespace"),
            uid: text(value, "uid"),
            resource_version: text(value, "resourceVersion"),
            generation: value.get("generation").and_then(Value::as_i64),
            deletion_timestamp: value.get("deletionTimestamp").map(deletion),
            labels: texts(value, "labels"),
            annotations: texts(value, "annotations"),
            managed_fields: managed_fields(value),
            ..ObjectMeta::default()
        }
    }
}

/// The entries that own at least one of the kept fields.
fn managed_fields(meta: &Value) -> Option<Vec<ManagedFieldsEntry>> {
    let entries = meta.get("managedFields")?.as_array()?;
    let entry = |entry: &Value| {
        let fields = entry.get("fieldsV1")?.as_object()?;
        let owns = |of: &Value| of.as_object().is_none_or(|of| !of.is_empty());
        fields.values().any(owns).then(|| ManagedFieldsEntry {
            manager: text(entry, "manager").map(|manager| printable_name(&manager)),
            time: text(entry, "time").and_then(|text| text.parse().ok()).map(Time),
            fields_v1: Some(FieldsV1(fields.clone().into())),
            ..ManagedFieldsEntry::default()
        })
    };
    let entries: Vec<_> = entries.iter().filter_map(entry).collect();
    (!entries.is_empty()).then_some(entries)
}

/// A name that no API server would take counts as absent: it would be in every message about the object.
fn name(meta: &Value, field: &str) -> Option<String> {
    text(meta, field).filter(|text| text::name(text).is_ok())
}

fn text(meta: &Value, field: &str) -> Option<String> {
    meta.get(field)?.as_str().map(str::to_owned)
}

fn texts(meta: &Value, field: &str) -> Option<BTreeMap<String, String>> {
    let entries = meta.get(field)?.as_object()?;
    let texts: BTreeMap<_, _> = entries
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    (!texts.is_empty()).then_some(texts)
}

fn deletion(value: &Value) -> Time {
    let time = value.as_str().and_then(|text| text.parse().ok());
    Time(time.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// Makes a type an object of the API: the same as one of Kubernetes, reduced to what is read of it, or the one that it
/// says to be as [`k8s_openapi::Resource`].
#[macro_export]
macro_rules! trimmed {
    ($type:ident, $of:ty) => {
        impl ::k8s_openapi::Resource for $type {
            const API_VERSION: &'static str = <$of as ::k8s_openapi::Resource>::API_VERSION;
            const GROUP: &'static str = <$of as ::k8s_openapi::Resource>::GROUP;
            const KIND: &'static str = <$of as ::k8s_openapi::Resource>::KIND;
            const VERSION: &'static str = <$of as ::k8s_openapi::Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str = <$of as ::k8s_openapi::Resource>::URL_PATH_SEGMENT;
            type Scope = <$of as ::k8s_openapi::Resource>::Scope;
        }

        $crate::trimmed!($type);
    };
    ($type:ident) => {
        impl ::k8s_openapi::Metadata for $type {
            type Ty = ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}
