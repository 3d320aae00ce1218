//! Objects with trimmed metadata: what all kinds have in common.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use watchdog_api::keep;
use watchdog_api::lenient::{Keep, Lenient, Subset};
use watchdog_api::names::LAST_CHANGE_ANNOTATION;

use super::malformed;

/// The metadata that the weeder needs; of managedFields, which are often half of the object, only the times.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<IgnoredAny>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<ManagedField>>,
    owner_references: Option<Vec<OwnerReference>>,
}

/// One entry of managedFields.
#[derive(Deserialize)]
struct ManagedField {
    time: Option<String>,
}

impl Subset for Meta {
    const KEEP: Keep = keep! {
        "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels",
        "ownerReferences", "annotations" => { LAST_CHANGE_ANNOTATION }, "managedFields" => { "time" },
    };
}

/// Reads metadata. Other than for `watchdog_api`, an object with broken metadata has no name: the weeder deletes by
/// labels and owners, and must not act on what it only half understands.
pub(super) fn meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = match Lenient::<Meta>::deserialize(deserializer)? {
        Lenient::Ok(meta) => meta,
        Lenient::Malformed(reason) => {
            malformed("metadata", "", "", &reason);
            Meta::default()
        }
    };
    let time = |text: String| text.parse().ok().map(Time);
    let written = meta.managed_fields.into_iter().flatten();
    let written = written.map(|field| ManagedFieldsEntry {
        time: field.time.and_then(time),
        ..ManagedFieldsEntry::default()
    });
    Ok(ObjectMeta {
        managed_fields: Some(written.collect()),
        annotations: meta.annotations,
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        creation_timestamp: meta.creation_timestamp.and_then(time),
        // That it is set is all that counts.
        deletion_timestamp: meta.deletion_timestamp.map(|_| Time(jiff::Timestamp::UNIX_EPOCH)),
        labels: meta.labels,
        owner_references: meta.owner_references,
        ..ObjectMeta::default()
    })
}
