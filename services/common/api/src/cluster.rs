//! Gardener's Cluster object, which carries a whole Shoot, reduced to what decides whether and how a shoot is probed.

use crate::{
    duration, keep,
    lenient::{Keep, Lenient, Subset},
    meta, names, policy, text,
};
use k8s_openapi::{ClusterResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::{borrow::Cow, time::Duration};

/// `extensions.gardener.cloud/v1alpha1` Cluster. Its name is the shoot's namespace in the seed.
///
/// Reading one fails only on broken JSON: whatever is wrong inside shows up as [`Lenient::Malformed`] in
/// `spec.shoot`, while name, resourceVersion and deletionTimestamp stay readable.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "StoredCluster")]
pub struct Cluster {
    /// Name, uid, resourceVersion, generation and deletionTimestamp, and the watchdog's annotations; nothing else is
    /// kept.
    pub metadata: ObjectMeta,
    /// The specification. The watchdog's annotations on the Cluster itself stand in the place of those of its Shoot:
    /// gardenlet copies these only when it reconciles the Shoot, and never touches those.
    pub spec: ClusterSpec,
}

/// As the API server has it.
#[derive(Deserialize)]
struct StoredCluster {
    #[serde(default, deserialize_with = "cluster_meta")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "spec")]
    spec: ClusterSpec,
}

impl From<StoredCluster> for Cluster {
    fn from(StoredCluster { metadata, mut spec }: StoredCluster) -> Self {
        if let (Some(own), Lenient::Ok(shoot)) = (&metadata.annotations, &mut spec.shoot) {
            let annotations = &mut shoot.metadata.annotations;
            for (name, of_shoot) in [
                (names::MODE_ANNOTATION, &mut annotations.mode),
                (
                    names::FAILURE_FRACTION_ANNOTATION,
                    &mut annotations.failure_fraction,
                ),
            ] {
                if let Some(text) = own.get(name) {
                    *of_shoot = Some(text.chars().take(policy::LONGEST + 1).collect());
                }
            }
        }
        Self { metadata, spec }
    }
}

fn cluster_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    const KEEP: Keep = keep! {
        "name", "uid", "resourceVersion", "generation", "deletionTimestamp",
        "annotations" => { names::MODE_ANNOTATION, names::FAILURE_FRACTION_ANNOTATION },
    };
    meta::read(deserializer, &KEEP)
}

/// Specification of a [`Cluster`]. CloudProfile and Seed are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// `spec.shoot`, as gardenlet copied it from the garden.
    pub shoot: Lenient<Shoot>,
}

/// The fields read from a `core.gardener.cloud` Shoot. The fields have the same names in all its versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
pub struct Shoot {
    /// The shoot's own metadata.
    pub metadata: ShootMeta,
    /// Wanted state.
    pub spec: ShootSpec,
    /// Observed state.
    pub status: ShootStatus,
}

/// The fields read from a shoot's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct ShootMeta {
    /// True if a deletionTimestamp is set, whatever its value.
    #[serde(rename = "deletionTimestamp", deserialize_with = "text::present")]
    pub deleting: bool,
    /// The annotations that the watchdog reads.
    #[serde(deserialize_with = "annotations")]
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
#[serde(default, rename_all = "camelCase", expecting = "an object")]
pub struct ShootSpec {
    /// Hibernation settings.
    pub hibernation: Hibernation,
    /// Kubernetes settings.
    pub kubernetes: Kubernetes,
    /// Infrastructure settings.
    pub provider: Provider,
}

/// `spec.hibernation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct Hibernation {
    /// True if the shoot should hibernate.
    pub enabled: bool,
}

/// `spec.kubernetes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
pub struct Kubernetes {
    /// Settings of the shoot's kube-controller-manager.
    pub kube_controller_manager: KubeControllerManager,
}

/// `spec.kubernetes.kubeControllerManager`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
pub struct KubeControllerManager {
    /// How long a node may be silent before it counts as lost; absent means the configured default.
    #[serde(deserialize_with = "duration::deserialize_option")]
    pub node_monitor_grace_period: Option<Duration>,
}

/// `spec.provider`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct Provider {
    /// Worker pools; empty for a shoot without nodes.
    pub workers: Vec<Worker>,
}

/// One of `spec.provider.workers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct Worker {
    /// Name of the pool, which its nodes carry in the label `worker.gardener.cloud/pool`.
    pub name: String,
    /// True if the pool runs the control plane of its own shoot, which is then self-hosted.
    #[serde(default, rename = "controlPlane", deserialize_with = "text::is_set")]
    pub runs_control_plane: bool,
    /// Settings of machine-controller-manager for this pool.
    #[serde(default)]
    pub machine_controller_manager: MachineControllerManager,
}

/// `spec.provider.workers[].machineControllerManager`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
pub struct MachineControllerManager {
    /// Node conditions that, when True, mark a node as unhealthy; none means the default ones.
    pub node_conditions: Vec<String>,
}

/// The fields read from a shoot's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
pub struct ShootStatus {
    /// True if the shoot is hibernated now. In Go the field is `IsHibernated`, in JSON it is `hibernated`.
    #[serde(rename = "hibernated")]
    pub is_hibernated: bool,
    /// Gardener's last or current operation; of no type before the first creation.
    pub last_operation: LastOperation,
}

/// `status.lastOperation`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct LastOperation {
    /// `Create`, `Reconcile`, `Delete`, `Migrate` or `Restore`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `Processing`, `Succeeded`, `Error`, `Failed`, `Pending` or `Aborted`.
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
    shoot: Option<Shoot>,
}

impl Subset for RawSpec {
    const KEEP: Keep = keep! {
        "shoot" => {
            "metadata" => {
                "deletionTimestamp",
                "annotations" => { names::MODE_ANNOTATION, names::FAILURE_FRACTION_ANNOTATION },
            },
            "spec" => {
                "hibernation" => { "enabled" },
                "kubernetes" => { "kubeControllerManager" => { "nodeMonitorGracePeriod" } },
                "provider" => {
                    "workers" => { "name", "controlPlane" => {}, "machineControllerManager" => { "nodeConditions" } },
                },
            },
            "status" => { "hibernated", "lastOperation" => { "type", "state" } },
        },
    };
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

#[cfg(test)]
mod tests;
