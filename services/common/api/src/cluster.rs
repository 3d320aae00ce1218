//! Gardener's Cluster object, which carries a whole Shoot, reduced to what decides whether and how a shoot is probed.

use crate::{
    duration, keep, names, policy,
    subset::{Keep, Subset, located, scrub},
    text,
};
use k8s_openapi::{ClusterResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::Value;
use std::time::Duration;

/// `extensions.gardener.cloud/v1alpha1` Cluster. Its name is the shoot's namespace in the seed. Reading one fails only
/// on broken JSON. CloudProfile and Seed are not read.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Name, uid, resourceVersion, generation and deletionTimestamp, and the watchdog's annotations; nothing else is
    /// kept.
    pub metadata: ObjectMeta,
    /// `spec.shoot`, as gardenlet copied it from the garden, or why it cannot be read.
    pub shoot: Result<Shoot, String>,
}

/// The part of a `core.gardener.cloud` Shoot that is read. The fields have the same names in all its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shoot {
    /// True if a deletionTimestamp is set, whatever its value.
    pub deleting: bool,
    /// The text of [`names::MODE_ANNOTATION`], which [`policy::parse_mode`] reads. The annotations of the Cluster
    /// itself take precedence: gardenlet copies those of the Shoot only when it reconciles it, and never touches the
    /// others.
    pub mode: Option<String>,
    /// The text of [`names::FAILURE_FRACTION_ANNOTATION`], which [`policy::parse_failure_fraction`] reads; likewise.
    pub failure_fraction: Option<String>,
    /// True if the shoot should hibernate.
    pub hibernation_enabled: bool,
    /// How long a node may be silent before it counts as lost; none means the configured default.
    pub node_monitor_grace: Option<Duration>,
    /// Worker pools; empty for a shoot without nodes.
    pub workers: Vec<Worker>,
    /// True if the shoot is hibernated now.
    pub is_hibernated: bool,
    /// Gardener's last or current operation: `Create`, `Reconcile`, `Delete`, `Migrate` or `Restore`; empty before the
    /// first creation.
    pub last_operation: String,
    /// Its state: `Processing`, `Succeeded`, `Error`, `Failed`, `Pending` or `Aborted`.
    pub last_operation_state: String,
    /// True if the control plane has this specification: the last operation has succeeded with it. gardenlet writes the
    /// Cluster at the start of an operation and at its end.
    pub is_rolled_out: bool,
}

/// One of `spec.provider.workers`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
pub struct Worker {
    /// Name of the pool, which its nodes carry in the label `worker.gardener.cloud/pool`.
    pub name: String,
    /// True if the pool runs the control plane of its own shoot, which is then self-hosted.
    #[serde(default, rename = "controlPlane", deserialize_with = "text::present")]
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

const KEEP: Keep = keep! {
    "metadata" => {
        "name", "uid", "resourceVersion", "generation", "deletionTimestamp",
        "annotations" => { names::MODE_ANNOTATION, names::FAILURE_FRACTION_ANNOTATION },
    },
    "spec" => {
        "shoot" => {
            "metadata" => {
                "generation", "deletionTimestamp",
                "annotations" => { names::MODE_ANNOTATION, names::FAILURE_FRACTION_ANNOTATION },
            },
            "spec" => {
                "hibernation" => { "enabled" },
                "kubernetes" => { "kubeControllerManager" => { "nodeMonitorGracePeriod" } },
                "provider" => {
                    "workers" => { "name", "controlPlane" => {}, "machineControllerManager" => { "nodeConditions" } },
                },
            },
            "status" => { "hibernated", "observedGeneration", "lastOperation" => { "type", "state" } },
        },
    },
};

const GRACE_PERIOD: &str = "spec.shoot.spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod";

impl<'de> Deserialize<'de> for Cluster {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Subset::read(deserializer, &KEEP)?;
        Ok(Self {
            metadata: object.metadata(),
            shoot: shoot(&object),
        })
    }
}

fn shoot(cluster: &Subset) -> Result<Shoot, String> {
    if cluster.field::<Option<IgnoredAny>>("spec.shoot")?.is_none() {
        return Err("spec.shoot is absent".to_owned());
    }
    let grace: Option<String> = cluster.field(GRACE_PERIOD)?;
    let grace = grace.map(|text| duration::parse(&text)).transpose();
    let last_operation_state: String = cluster.field("spec.shoot.status.lastOperation.state")?;
    let at = |path: &str| cluster.0.pointer(path);
    let is_observed = at("/spec/shoot/metadata/generation") == at("/spec/shoot/status/observedGeneration");
    let deletion: Option<IgnoredAny> = cluster.field("spec.shoot.metadata.deletionTimestamp")?;
    Ok(Shoot {
        deleting: deletion.is_some(),
        mode: annotation(cluster, names::MODE_ANNOTATION),
        failure_fraction: annotation(cluster, names::FAILURE_FRACTION_ANNOTATION),
        hibernation_enabled: cluster.field("spec.shoot.spec.hibernation.enabled")?,
        node_monitor_grace: grace.map_err(|why| located(GRACE_PERIOD, &scrub(&why)))?,
        workers: cluster.field("spec.shoot.spec.provider.workers")?,
        // In Go the field is `IsHibernated`.
        is_hibernated: cluster.field("spec.shoot.status.hibernated")?,
        last_operation: cluster.field("spec.shoot.status.lastOperation.type")?,
        is_rolled_out: is_observed && last_operation_state == "Succeeded",
        last_operation_state,
    })
}

/// An annotation of the Cluster, which must be text, or else of its Shoot. There a value that is not text is kept as
/// its JSON, because an annotation must not make the whole shoot malformed.
fn annotation(cluster: &Subset, name: &str) -> Option<String> {
    let at = |path: &str| cluster.0.pointer(path).and_then(|all| all.get(name));
    let own = at("/metadata/annotations").and_then(Value::as_str);
    let of_shoot = at("/spec/shoot/metadata/annotations").map(|value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let text = own.map(str::to_owned).or(of_shoot)?;
    Some(text.chars().take(policy::LONGEST + 1).collect())
}

// === impl Cluster ===

impl Cluster {
    /// The Cluster's name, which is the shoot's namespace; empty when the object has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl k8s_openapi::Resource for Cluster {
    const API_VERSION: &'static str = "extensions.gardener.cloud/v1alpha1";
    const GROUP: &'static str = names::CLUSTER_GROUP;
    const KIND: &'static str = "Cluster";
    const VERSION: &'static str = names::V1ALPHA1;
    const URL_PATH_SEGMENT: &'static str = "clusters";
    type Scope = ClusterResourceScope;
}

crate::trimmed!(Cluster);

#[cfg(test)]
mod tests;
