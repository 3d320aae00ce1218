//! The configuration of lease-probe and the scaling-coordinator: the file that Gardener writes for DWD's prober.

mod dependents;

pub use dependents::{DependentResource, ResourceRef, ScaleInfo};

use self::dependents::DependentFile;
use crate::config::{self, ConfigErrors, POSITIVE, Parsed, Section, UnknownFields, secs};
use serde::Deserialize;
use std::time::Duration;

/// The prober's configuration, checked. Two equal ones mean the same behavior.
#[derive(Clone, Debug, PartialEq)]
pub struct ProberConfig {
    /// Name of the Secret, in each shoot's namespace, with the kubeconfig for its kube-apiserver.
    pub kube_config_secret_name: String,
    /// Name of the Secret with a kubeconfig for the external endpoint; `None` switches the external probe off.
    pub external_kube_config_secret_name: Option<String>,
    /// Between two probes of a shoot, at least 1 s.
    pub probe_interval: Duration,
    /// Before the first probe of a shoot.
    pub initial_delay: Duration,
    /// For one probe as a whole, more than zero.
    pub probe_timeout: Duration,
    /// An interval grows by a random share of up to this much; 0 to 10.
    pub backoff_jitter_factor: f64,
    /// kube-controller-manager's `--node-monitor-grace-period` where the shoot does not set its own; at least 1 s.
    pub kcm_node_monitor_grace_duration: Duration,
    /// Share of expired leases at which a shoot counts as cut off; more than 0, at most 1.
    pub node_lease_failure_fraction: f64,
    /// Healthy probes in a row before a shoot counts as healthy again; at least 1.
    pub success_threshold: u32,
    /// Failed probes in a row before a shoot counts as cut off; at least 1.
    pub failure_threshold: u32,
    /// Pause after the internal endpoint failed.
    pub internal_probe_failure_back_off_duration: Duration,
    /// The scaled resources; at least one.
    pub dependent_resource_infos: Vec<DependentResource>,
}

/// The file, as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProberFile {
    #[serde(alias = "internalKubeConfigSecretName")]
    kube_config_secret_name: Option<String>,
    external_kube_config_secret_name: Option<String>,
    probe_interval: Option<String>,
    initial_delay: Option<String>,
    probe_timeout: Option<String>,
    #[serde(alias = "backOffJitterFactor")]
    backoff_jitter_factor: Option<f64>,
    kcm_node_monitor_grace_duration: Option<String>,
    #[serde(alias = "leaseFailureThresholdFraction")]
    node_lease_failure_fraction: Option<f64>,
    success_threshold: Option<u32>,
    failure_threshold: Option<u32>,
    #[serde(
        alias = "apiServerProbeFailureBackoffDuration",
        alias = "internalProbeFailureBackoffDuration"
    )]
    internal_probe_failure_back_off_duration: Option<String>,
    // For people.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "namespace")]
    _namespace: Option<String>,
    dependent_resource_infos: Option<Vec<DependentFile>>,
}

/// Reads and checks a prober configuration (YAML or JSON).
///
/// # Errors
/// The first fault of form, or everything that is wrong with its content, each with line and column.
pub fn parse(bytes: &[u8], unknown: UnknownFields) -> Result<Parsed<ProberConfig>, ConfigErrors> {
    config::read(bytes, unknown, validate)
}

fn validate(file: ProberFile, at: &Section<'_>) -> Option<ProberConfig> {
    let secret = at.object_name("kubeConfigSecretName", file.kube_config_secret_name);
    // Go writes a text that is not set as an empty one.
    let external = file
        .external_kube_config_secret_name
        .filter(|name| !name.is_empty());
    let external = external.and_then(|name| at.object_name("externalKubeConfigSecretName", Some(name)));
    let dependents = at
        .required("dependentResourceInfos", file.dependent_resource_infos)
        .and_then(|list| dependents::validate(list, at));
    let fraction = file.node_lease_failure_fraction.unwrap_or(0.6);
    if !(fraction > 0.0 && fraction <= 1.0) {
        let message = format!("must be more than 0 and at most 1, not {fraction}");
        at.fault("nodeLeaseFailureFraction", message);
    }
    // Where DWD has a default, it is the same: `internal/prober/config.go`.
    Some(ProberConfig {
        // Kubelets renew every 10 s: probes and leases are never looked at more often than each second.
        probe_interval: at.duration("probeInterval", file.probe_interval, secs(10), secs(1)..),
        initial_delay: at.duration("initialDelay", file.initial_delay, secs(30), secs(0)..),
        probe_timeout: at.duration("probeTimeout", file.probe_timeout, secs(30), POSITIVE..),
        backoff_jitter_factor: at.number(
            "backoffJitterFactor",
            file.backoff_jitter_factor.unwrap_or(0.2),
            0.0..=10.0,
        ),
        // Gardener sets the same for shoots. kube-controller-manager knows seconds, and a lease is only renewed every
        // few.
        kcm_node_monitor_grace_duration: at.duration(
            "kcmNodeMonitorGraceDuration",
            file.kcm_node_monitor_grace_duration,
            secs(40),
            secs(1)..,
        ),
        node_lease_failure_fraction: fraction,
        success_threshold: at.number("successThreshold", file.success_threshold.unwrap_or(1), 1..=1_000),
        // Older DWD releases had 3; with it a loss is seen after kube-controller-manager has acted.
        failure_threshold: at.number("failureThreshold", file.failure_threshold.unwrap_or(1), 1..=1_000),
        // Of DWD before v1.
        internal_probe_failure_back_off_duration: at.duration(
            "internalProbeFailureBackOffDuration",
            file.internal_probe_failure_back_off_duration,
            secs(30),
            secs(0)..,
        ),
        kube_config_secret_name: secret?,
        external_kube_config_secret_name: external,
        dependent_resource_infos: dependents?,
    })
}

#[cfg(test)]
mod tests;
