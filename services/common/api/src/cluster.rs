//! Gardener's Cluster object, which carries a whole Shoot, reduced to what decides whether and how a shoot is probed.

use crate::{
    duration,
    lenient::{Keep, Lenient, Subset},
    meta, names, policy,
};
use k8s_openapi::{ClusterResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::Value;
use std::{borrow::Cow, time::Duration};

/// `extensions.gardener.cloud/v1alpha1` Cluster. Its name is the shoot's namespace in the seed.
///
/// Reading one fails only on broken JSON: whatever is wrong inside shows up as [`Lenient::Malformed`] in
/// `spec.shoot`, while name, resourceVersion and deletionTimestamp stay readable.
#[derive(Clone, Debug, Deserialize)]
pub struct Cluster {
    /// Name, uid, resourceVersion, generation and deletionTimestamp; nothing else is kept.
    #[serde(default, deserialize_with = "meta::identity")]
    pub metadata: ObjectMeta,
    /// The specification.
    #[serde(default, deserialize_with = "spec")]
    pub spec: ClusterSpec,
}

/// Specification of a [`Cluster`]. CloudProfile and Seed are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// `spec.shoot`, as gardenlet copied it from the garden.
    pub shoot: Lenient<Shoot>,
}

/// The fields read from a `core.gardener.cloud` Shoot. The fields have the same names in all its versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct Shoot {
    /// The shoot's own metadata.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ShootMeta,
    /// Wanted state.
    #[serde(default, deserialize_with = "null_as_default")]
    pub spec: ShootSpec,
    /// Observed state.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: ShootStatus,
}

/// The fields read from a shoot's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "an object")]
pub struct ShootMeta {
    /// True if a deletionTimestamp is set, whatever its value.
    #[serde(default, rename = "deletionTimestamp", deserialize_with = "present")]
    pub deleting: bool,
    /// The annotations that the watchdog reads.
    #[serde(default, deserialize_with = "annotations")]
    pub annotations: ShootAnnotations,
}

/// The unparsed texts of a shoot's annotations. [`crate::policy`] parses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShootAnnotations {
    /// [`names::MODE_ANNOTATION`].
    pub mode: Option<String>,
    /// [`names::FAILURE_FRACTION_ANNOTATION`].
    pub failure_fraction: Option<String>,
}

/// The fields read from a shoot's specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct ShootSpec {
    /// Hibernation settings.
    #[serde(default)]
    pub hibernation: Option<Hibernation>,
    /// Kubernetes settings.
    #[serde(default, deserialize_with = "null_as_default")]
    pub kubernetes: Kubernetes,
    /// Infrastructure settings.
    #[serde(default, deserialize_with = "null_as_default")]
    pub provider: Provider,
}

/// `spec.hibernation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "an object")]
pub struct Hibernation {
    /// True if the shoot should hibernate. Absent means no.
    #[serde(default)]
    pub enabled: Option<bool>,
}

/// `spec.kubernetes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct Kubernetes {
    /// Settings of the shoot's kube-controller-manager.
    #[serde(default)]
    pub kube_controller_manager: Option<KubeControllerManager>,
}

/// `spec.kubernetes.kubeControllerManager`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct KubeControllerManager {
    /// How long a node may be silent before it counts as lost; absent means the configured default.
    #[serde(default, deserialize_with = "duration::deserialize_option")]
    pub node_monitor_grace_period: Option<Duration>,
}

/// `spec.provider`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "an object")]
pub struct Provider {
    /// Worker pools; empty for a shoot without nodes.
    #[serde(default, deserialize_with = "null_as_default")]
    pub workers: Vec<Worker>,
}

/// One of `spec.provider.workers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct Worker {
    /// Name of the pool, which its nodes carry in the label `worker.gardener.cloud/pool`.
    pub name: String,
    /// Settings of machine-controller-manager for this pool.
    #[serde(default)]
    pub machine_controller_manager: Option<MachineControllerManager>,
}

/// `spec.provider.workers[].machineControllerManager`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct MachineControllerManager {
    /// Node conditions that, when True, mark a node as unhealthy; absent or empty means the default ones.
    #[serde(default)]
    pub node_conditions: Option<Vec<String>>,
}

/// The fields read from a shoot's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct ShootStatus {
    /// True if the shoot is hibernated now. In Go the field is `IsHibernated`, in JSON it is `hibernated`.
    #[serde(default, rename = "hibernated", deserialize_with = "null_as_default")]
    pub is_hibernated: bool,
    /// Gardener's last or current operation. Absent before the first creation.
    #[serde(default)]
    pub last_operation: Option<LastOperation>,
}

/// `status.lastOperation`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(expecting = "an object")]
pub struct LastOperation {
    /// `Create`, `Reconcile`, `Delete`, `Migrate` or `Restore`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// `Processing`, `Succeeded`, `Error`, `Failed`, `Pending` or `Aborted`.
    #[serde(default)]
    pub state: String,
}

// === impl Cluster ===

impl Cluster {
    /// The Cluster's name, which is the shoot's namespace; empty when the object has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl kube::core::Resource for Cluster {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Cluster".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        names::CLUSTER_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        names::V1ALPHA1.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "clusters".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl ClusterSpec ===

impl Default for ClusterSpec {
    fn default() -> Self {
        Self {
            shoot: Lenient::Malformed("spec.shoot is absent".to_owned()),
        }
    }
}

fn spec<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClusterSpec, D::Error> {
    Ok(match Lenient::<Option<RawSpec>>::deserialize(deserializer)? {
        Lenient::Ok(Some(RawSpec { shoot: Some(shoot) })) => ClusterSpec {
            shoot: Lenient::Ok(shoot),
        },
        Lenient::Ok(_) => ClusterSpec::default(),
        Lenient::Malformed(reason) => {
            // The reason starts with the path below spec, unless spec itself is wrong.
            let separator = if reason.starts_with("shoot") { "." } else { ": " };
            ClusterSpec {
                shoot: Lenient::Malformed(format!("spec{separator}{reason}")),
            }
        }
    })
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct RawSpec {
    #[serde(default)]
    shoot: Option<Shoot>,
}

impl Subset for RawSpec {
    const KEEP: Keep = Keep::Fields(&[("shoot", Shoot::KEEP)]);
}

impl Subset for Shoot {
    const KEEP: Keep = Keep::Fields(&[
        (
            "metadata",
            Keep::Fields(&[
                ("deletionTimestamp", Keep::All),
                (
                    "annotations",
                    Keep::Fields(&[
                        (names::MODE_ANNOTATION, Keep::All),
                        (names::FAILURE_FRACTION_ANNOTATION, Keep::All),
                    ]),
                ),
            ]),
        ),
        (
            "spec",
            Keep::Fields(&[
                ("hibernation", Keep::Fields(&[("enabled", Keep::All)])),
                (
                    "kubernetes",
                    Keep::Fields(&[(
                        "kubeControllerManager",
                        Keep::Fields(&[("nodeMonitorGracePeriod", Keep::All)]),
                    )]),
                ),
                (
                    "provider",
                    Keep::Fields(&[(
                        "workers",
                        Keep::Fields(&[
                            ("name", Keep::All),
                            (
                                "machineControllerManager",
                                Keep::Fields(&[("nodeConditions", Keep::All)]),
                            ),
                        ]),
                    )]),
                ),
            ]),
        ),
        (
            "status",
            Keep::Fields(&[
                ("hibernated", Keep::All),
                (
                    "lastOperation",
                    Keep::Fields(&[("type", Keep::All), ("state", Keep::All)]),
                ),
            ]),
        ),
    ]);
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

/// A value that is not text is kept as its JSON, because an annotation must not make the whole shoot malformed.
fn annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ShootAnnotations, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let text = |name: &str| {
        let text = match value.get(name)? {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Some(text.chars().take(policy::LONGEST + 1).collect())
    };
    Ok(ShootAnnotations {
        mode: text(names::MODE_ANNOTATION),
        failure_fraction: text(names::FAILURE_FRACTION_ANNOTATION),
    })
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
