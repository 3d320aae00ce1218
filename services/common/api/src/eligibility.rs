//! Decides which shoots are probed, and with what settings: a pure rule that lease-probe and the scaling-coordinator
//! share.
//!
//! There are two questions, because starting asks for more than carrying on:
//!
//! | state of the shoot | [`may_start`] | [`may_continue`] |
//! | --- | --- | --- |
//! | Cluster or shoot has a deletionTimestamp | skip | stop |
//! | Cluster cannot be read | skip | stop |
//! | hibernation enabled in the spec | skip | stop |
//! | lastOperation is Migrate | skip | stop |
//! | no worker pools | skip | stop |
//! | a worker pool runs the control plane (self-hosted) | skip | stop |
//! | hibernation disabled, status still hibernated (waking up) | skip | carry on |
//! | lastOperation is Reconcile, any state | probe | carry on |
//! | lastOperation is Create or Restore, Succeeded | probe | carry on |
//! | lastOperation absent, anything else | skip | carry on |
//!
//! So a probe that runs is not stopped by a shoot whose lastOperation turns to, say, a failed Create. The Cluster that
//! is gone altogether has no row: it has no object to ask about, and both answers are no.
//!
//! While a Cluster cannot be read, lease-probe keeps what its running probe knows, and reports nothing of it.

use crate::{
    cluster::{Cluster, Shoot},
    names,
};
use std::{collections::BTreeMap, time::Duration};

/// Why a shoot is not probed, or why its probe has to stop: its text is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum SkipReason {
    /// The Cluster or the shoot has a deletionTimestamp.
    #[error("The shoot is being deleted.")]
    Deleting,
    /// Hibernation is enabled in the shoot's specification.
    #[error("The shoot hibernates: spec.hibernation.enabled is true.")]
    Hibernating,
    /// Hibernation was disabled, but the status still says hibernated.
    #[error("The shoot is waking up: hibernation is disabled, but the status still says hibernated.")]
    WakingUp,
    /// The control plane is being migrated to another seed.
    #[error("The shoot's control plane is being migrated to another seed.")]
    Migrating,
    /// The shoot has no worker pool.
    #[error("The shoot has no worker pools.")]
    NoWorkers,
    /// A worker pool of the shoot runs its control plane.
    #[error(
        "The shoot is self-hosted: its control plane runs on its own nodes, where nothing can be scaled from the seed."
    )]
    SelfHosted,
    /// The shoot was not created or restored successfully yet.
    #[error("The shoot has not been created or restored successfully yet, or its last operation is unknown.")]
    NotReconciled,
    /// The Cluster cannot be read, for this reason.
    #[error("The Cluster object cannot be used: {0}.")]
    Malformed(String),
}

/// The settings of a shoot that its probe depends on. A difference means that a running probe has to take up the new
/// settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShootSettings {
    /// The shoot's own `nodeMonitorGracePeriod`, more than zero; `None` means the configured default.
    pub node_monitor_grace: Option<Duration>,
    /// Per worker pool that names its own: the node conditions that mark a node as unhealthy when True, sorted and
    /// without repetition. A pool that is not here has [`names::DEFAULT_UNHEALTHY_CONDITIONS`].
    pub unhealthy_conditions: BTreeMap<String, Vec<String>>,
    /// The text of the shoot's annotation [`names::FAILURE_FRACTION_ANNOTATION`], whatever it says.
    pub failure_fraction: Option<String>,
}

/// Decides whether a probe may *start*: no stop rule holds, the shoot is not waking up, and its last operation is
/// Reconcile in any state, or a Create or Restore that succeeded.
///
/// # Errors
/// The reason not to.
pub fn may_start(cluster: &Cluster) -> Result<ShootSettings, SkipReason> {
    let shoot = not_stopped(cluster)?;
    if shoot.is_hibernated {
        return Err(SkipReason::WakingUp);
    }
    if !came_up(shoot) {
        return Err(SkipReason::NotReconciled);
    }
    settings(shoot)
}

/// Decides whether a *running* probe may carry on, and with what settings: only the stop rules count, so what a start
/// asks for in addition (not waking up, a successful last operation) does not end it.
///
/// # Errors
/// The reason to stop: deletion, hibernation, migration, no workers, self-hosting, or a Cluster that cannot be read.
pub fn may_continue(cluster: &Cluster) -> Result<ShootSettings, SkipReason> {
    settings(not_stopped(cluster)?)
}

/// True if the last operation proves that the control plane was complete at least once. During a first Create the
/// kube-apiserver may answer before any node can have joined.
fn came_up(shoot: &Shoot) -> bool {
    match shoot.last_operation.as_str() {
        "Reconcile" => true,
        "Create" | "Restore" => shoot.last_operation_state == "Succeeded",
        _ => false,
    }
}

/// The stop rules.
fn not_stopped(cluster: &Cluster) -> Result<&Shoot, SkipReason> {
    // Before the shoot is looked at: a deletion counts even when nothing else can be read.
    if cluster.metadata.deletion_timestamp.is_some() {
        return Err(SkipReason::Deleting);
    }
    let shoot = match &cluster.shoot {
        Ok(shoot) => shoot,
        Err(reason) => return Err(SkipReason::Malformed(reason.clone())),
    };
    if shoot.deleting {
        return Err(SkipReason::Deleting);
    }
    if shoot.hibernation_enabled {
        return Err(SkipReason::Hibernating);
    }
    if shoot.last_operation == "Migrate" {
        return Err(SkipReason::Migrating);
    }
    if shoot.workers.is_empty() {
        return Err(SkipReason::NoWorkers);
    }
    // No machine-controller-manager replaces the machines, and the seed has nothing to scale.
    if shoot.workers.iter().any(|worker| worker.runs_control_plane) {
        return Err(SkipReason::SelfHosted);
    }
    Ok(shoot)
}

fn settings(shoot: &Shoot) -> Result<ShootSettings, SkipReason> {
    // With a grace period of zero every lease would be expired at once.
    if shoot.node_monitor_grace == Some(Duration::ZERO) {
        let reason = "spec.shoot.spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod is zero";
        return Err(SkipReason::Malformed(reason.to_owned()));
    }
    let own = shoot.workers.iter().filter_map(|worker| {
        let mut conditions = worker.machine_controller_manager.node_conditions.clone();
        conditions.sort_unstable();
        conditions.dedup();
        (!conditions.is_empty()).then(|| (worker.name.clone(), conditions))
    });
    Ok(ShootSettings {
        node_monitor_grace: shoot.node_monitor_grace,
        unhealthy_conditions: own.collect(),
        failure_fraction: shoot.failure_fraction.clone(),
    })
}

// === impl ShootSettings ===

impl ShootSettings {
    /// These settings for a probe that ran with those `before`. If they are not rolled out, kube-controller-manager may
    /// still have the grace period from before, so the shorter one counts: silence of a node that is cut off is a loss
    /// under both. `default` is the configured one.
    #[must_use]
    pub fn following(mut self, before: &Self, is_rolled_out: bool, default: Duration) -> Self {
        let grace = |settings: &Self| settings.node_monitor_grace.unwrap_or(default);
        if !is_rolled_out && grace(before) < grace(&self) {
            self.node_monitor_grace = before.node_monitor_grace;
        }
        self
    }

    /// True if a condition of this type, when True, marks a node of this pool as unhealthy. `pool` is that of the
    /// node.
    #[must_use]
    pub fn is_unhealthy_condition(&self, pool: Option<&str>, condition: &str) -> bool {
        match pool.and_then(|pool| self.unhealthy_conditions.get(pool)) {
            Some(own) => own.iter().any(|name| name == condition),
            None => names::DEFAULT_UNHEALTHY_CONDITIONS.contains(&condition),
        }
    }
}

// === impl SkipReason ===

impl SkipReason {
    /// The reason as a label value, the same for all shoots.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests;
