//! The workloads that are scaled: any kind with a scale sub-resource, reduced to what the scaling rules read.

use crate::{
    keep, names,
    subset::{Keep, Subset},
    text::printable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ObjectMeta};
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;

/// [`names::MELTDOWN_PROTECTION_ANNOTATION`] in managedFields.
const PROTECTION_FIELD: &str = "f:dependency-watchdog.gardener.cloud/meltdown-protection-active";

/// The same as a JSON pointer.
const PROTECTION_POINTER: &str =
    "/f:metadata/f:annotations/f:dependency-watchdog.gardener.cloud~1meltdown-protection-active";

/// The most replicas that a configuration or an annotation may ask for: a mistake must not flood the seed with Pods.
pub(crate) const MAX_REPLICAS: i32 = 10_000;

/// A workload of any kind (its `DynamicType` is kube's [`ApiResource`]). Reading one fails only on broken JSON.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Identity, resourceVersion, generation, deletionTimestamp and the watchdog's three annotations; nothing else is
    /// kept except, in managedFields, who wrote what the watchdog writes.
    pub metadata: ObjectMeta,
    /// `spec.replicas`, or why it cannot be read; absent means one, as for Deployments and StatefulSets.
    pub replicas: Result<Option<i32>, String>,
    /// The observed state, or why it cannot be read.
    pub status: Result<WorkloadStatus, String>,
}

/// The fields read from a workload's status. Controllers leave out what is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadStatus {
    /// Generation of the specification that the controller had seen.
    pub observed_generation: Option<i64>,
    /// Pods that exist.
    pub replicas: Option<i32>,
    /// Pods that are ready.
    pub ready_replicas: Option<i32>,
}

/// The recorded replica count of a workload ([`names::REPLICAS_ANNOTATION`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedReplicas {
    /// Nothing is recorded.
    Absent,
    /// This many, from 1 to 10,000.
    Count(i32),
    /// Something is recorded that is no such count; the text, cut to 64 characters.
    Unreadable(String),
}

/// The last writers of what the watchdog writes, by their names in managedFields. `None` where nobody is named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldWriters {
    /// Writer of `spec.replicas`, also through the scale sub-resource.
    pub replicas: Option<String>,
    /// Writer of [`names::MELTDOWN_PROTECTION_ANNOTATION`].
    pub protection: Option<String>,
}

/// Go's `strconv.ParseBool`.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// The begin of a value that cannot be read, for people.
fn begin(text: &str) -> String {
    printable(&text.chars().take(64).collect::<String>())
}

/// Value of [`names::IGNORE_SCALING_ANNOTATION`]. The words are those of Go's `strconv.ParseBool`, with which DWD reads
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IgnoreScaling {
    /// It is absent, or its text is one of Go's words for false.
    #[default]
    No,
    /// Its text is one of Go's words for true.
    Yes,
    /// Its text is neither, so scaling is not ignored; cut to 64 characters.
    Invalid(String),
}

// === impl IgnoreScaling ===

impl From<&str> for IgnoreScaling {
    fn from(text: &str) -> Self {
        match parse_bool(text) {
            Some(true) => Self::Yes,
            Some(false) => Self::No,
            None => Self::Invalid(begin(text)),
        }
    }
}

// === impl Workload ===

impl Workload {
    /// `status.readyReplicas`, by default 0; `Err` when it cannot be read.
    ///
    /// # Errors
    /// The reason why the status cannot be read.
    pub fn ready_replicas(&self) -> Result<i32, &str> {
        let status = self.status.as_ref().map_err(String::as_str)?;
        Ok(status.ready_replicas.unwrap_or(0))
    }

    /// True if the status is that of the current specification. True when the kind has no generations.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        let observed = self
            .status
            .as_ref()
            .ok()
            .and_then(|status| status.observed_generation);
        match (observed, self.metadata.generation) {
            (Some(observed), Some(generation)) => observed >= generation,
            _ => true,
        }
    }

    /// The replica count that was recorded before the workload was scaled down.
    #[must_use]
    pub fn recorded_replicas(&self) -> RecordedReplicas {
        match self.annotation(names::REPLICAS_ANNOTATION) {
            None => RecordedReplicas::Absent,
            Some(text) => match text.trim().parse::<i32>() {
                Ok(count) if (1..=MAX_REPLICAS).contains(&count) => RecordedReplicas::Count(count),
                _ => RecordedReplicas::Unreadable(begin(text)),
            },
        }
    }

    /// True if [`names::MELTDOWN_PROTECTION_ANNOTATION`] is there, whatever its value.
    #[must_use]
    pub fn is_meltdown_protected(&self) -> bool {
        self.annotation(names::MELTDOWN_PROTECTION_ANNOTATION).is_some()
    }

    /// Reads the annotation by which operators take a workload out of the watchdog's hands.
    #[must_use]
    pub fn ignore_scaling(&self) -> IgnoreScaling {
        self.annotation(names::IGNORE_SCALING_ANNOTATION)
            .map_or(IgnoreScaling::No, IgnoreScaling::from)
    }

    /// The last writers of the replicas and of the protection.
    #[must_use]
    pub fn writers(&self) -> FieldWriters {
        let entries = self.metadata.managed_fields.as_deref().unwrap_or_default();
        let writer = |path: &str| {
            let owns = |fields: &FieldsV1| fields.0.pointer(path).is_some();
            let owners = entries
                .iter()
                .filter(|entry| entry.fields_v1.as_ref().is_some_and(owns));
            // Several may own a field after server-side applies of the same value.
            let last = owners.max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
            last.and_then(|entry| entry.manager.clone())
        };
        FieldWriters {
            replicas: writer("/f:spec/f:replicas"),
            protection: writer(PROTECTION_POINTER),
        }
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

impl kube::core::Resource for Workload {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

const KEEP: Keep = keep! {
    "metadata" => {
        "name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp",
        "annotations" => {
            names::REPLICAS_ANNOTATION, names::MELTDOWN_PROTECTION_ANNOTATION, names::IGNORE_SCALING_ANNOTATION,
        },
        "managedFields" => {
            "manager",
            "time",
            "fieldsV1" => {
                "f:spec" => { "f:replicas" },
                "f:metadata" => { "f:annotations" => { PROTECTION_FIELD } },
            },
        },
    },
    "spec" => { "replicas" },
    "status" => { "observedGeneration", "replicas", "readyReplicas" },
};

impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Subset::read(deserializer, &KEEP)?;
        Ok(Self {
            metadata: object.metadata(),
            replicas: object.field("spec.replicas"),
            status: object.field("status"),
        })
    }
}

#[cfg(test)]
mod tests;
