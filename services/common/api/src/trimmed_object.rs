//! Objects of the seed that are reduced to their metadata and one field.

use crate::subset::{Keep, Subset};
use crate::{keep, names::LAST_CHANGE_ANNOTATION, trimmed};
use k8s_openapi::api::core::v1::{self, EndpointSubset, PodStatus};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

/// An object of which only this field is kept beside the metadata. Reading one fails only on broken JSON.
#[derive(Debug, Clone)]
pub struct TrimmedObject<T> {
    /// The metadata; empty if something is wrong in them. Other than for the other objects of this crate, that hides
    /// the name: who deletes by labels and owners must not act on what is only half understood.
    pub metadata: ObjectMeta,
    /// The fault of the metadata, if they have one.
    pub metadata_fault: Option<String>,
    /// The field, or its fault.
    pub kept: Result<T, String>,
}

/// A `v1` Pod.
pub type PodObject = TrimmedObject<PodStatus>;

/// A `discovery.k8s.io/v1` `EndpointSlice`.
pub type SliceObject = TrimmedObject<Option<Vec<Endpoint>>>;

/// A `v1` Endpoints: all endpoints of the service of the same name.
pub type EndpointsObject = TrimmedObject<Option<Vec<EndpointSubset>>>;

trimmed!(PodObject, v1::Pod);
trimmed!(SliceObject, EndpointSlice);
trimmed!(EndpointsObject, v1::Endpoints);

/// The metadata that are kept; of managedFields, which are often half of the object, only the times.
const METADATA: Keep = keep! {
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels",
    "ownerReferences", "annotations" => { LAST_CHANGE_ANNOTATION }, "managedFields" => { "time" },
};

/// A field of an object.
pub trait KeptField: DeserializeOwned + Default {
    /// Its name.
    const NAME: &'static str;
    /// Its parts that are kept.
    const KEEP: Keep;
    /// All that is kept of the object.
    const OBJECT: Keep = Keep::Fields(&[("metadata", METADATA), (Self::NAME, Self::KEEP)]);
}

impl KeptField for PodStatus {
    const NAME: &'static str = "status";
    const KEEP: Keep = Keep::Fields(&[
        ("phase", Keep::All),
        ("initContainerStatuses", CONTAINER_STATUS),
        ("containerStatuses", CONTAINER_STATUS),
    ]);
}

const CONTAINER_STATUS: Keep = keep! {
    "name",
    "restartCount",
    "state" => {
        "waiting" => { "reason" },
    },
    "lastState" => { "terminated" => { "exitCode", "reason", "message", "finishedAt" } },
};

impl KeptField for Option<Vec<Endpoint>> {
    const NAME: &'static str = "endpoints";
    const KEEP: Keep = keep! { "conditions" => { "ready", "serving" } };
}

impl KeptField for Option<Vec<EndpointSubset>> {
    const NAME: &'static str = "subsets";
    const KEEP: Keep = keep! { "addresses" => {}, "notReadyAddresses" => {} };
}

impl<'de, T: KeptField> Deserialize<'de> for TrimmedObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Subset::read(deserializer, &T::OBJECT)?;
        let (metadata, metadata_fault) = match object.field("metadata") {
            Ok(metadata) => (metadata, None),
            Err(fault) => (ObjectMeta::default(), Some(fault)),
        };
        Ok(Self {
            metadata,
            metadata_fault,
            kept: object.field(T::NAME),
        })
    }
}
