//! Objects with trimmed metadata: what all kinds have in common.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use watchdog_api::keep;
use watchdog_api::lenient::{Keep, Lenient, Subset};
use watchdog_api::names::LAST_CHANGE_ANNOTATION;

use super::malformed;

/// The metadata that the weeder needs; of managedFields, which are often half of the object, only the times.
#[derive(Default, Deserialize)]
#[serde(transparent)]
struct Meta(ObjectMeta);

impl Subset for Meta {
    const KEEP: Keep = keep! {
        "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels",
        "ownerReferences", "annotations" => { LAST_CHANGE_ANNOTATION }, "managedFields" => { "time" },
    };
}

/// Reads metadata. Other than for `watchdog_api`, an object with broken metadata has no name: the weeder deletes by
/// labels and owners, and must not act on what it only half understands.
pub(super) fn meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    Ok(match Lenient::<Meta>::deserialize(deserializer)? {
        Lenient::Ok(Meta(meta)) => meta,
        Lenient::Malformed(reason) => {
            malformed("metadata", "", "", &reason);
            ObjectMeta::default()
        }
    })
}
