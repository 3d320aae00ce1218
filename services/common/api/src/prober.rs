//! The configuration of lease-probe and the scaling-coordinator: the file that Gardener writes for DWD's prober.

mod dependents;

pub use dependents::{DependentResource, ResourceRef, ScaleInfo};

use self::dependents::DependentFile;
use crate::config::{self, ConfigErrors, POSITIVE, Parsed, Section, Setting, UnknownFields, secs};
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

// Where DWD has a default, it is the same: `internal/prober/config.go`.

/// Kubelets renew every 10 s: probes and leases are never looked at more often than each second.
const PROBE_INTERVAL: Setting<Duration> = Setting::duration("probeInterval", secs(10), secs(1));
const INITIAL_DELAY: Setting<Duration> = Setting::duration("initialDelay", secs(30), secs(0));
const PROBE_TIMEOUT: Setting<Duration> = Setting::duration("probeTimeout", secs(30), POSITIVE);
const JITTER: Setting<f64> = Setting::number("backoffJitterFactor", 0.2, 0.0, 10.0);
/// Gardener sets the same for shoots. kube-controller-manager knows seconds, and a lease is only renewed every few.
const GRACE: Setting<Duration> = Setting::duration("kcmNodeMonitorGraceDuration", secs(40), secs(1));
const SUCCESS_THRESHOLD: Setting<u32> = Setting::number("successThreshold", 1, 1, 1_000);
/// Older DWD releases had 3; with it a loss is seen after kube-controller-manager has acted.
const FAILURE_THRESHOLD: Setting<u32> = Setting::number("failureThreshold", 1, 1, 1_000);
/// Of DWD before v1.
const INTERNAL_BACK_OFF: Setting<Duration> =
    Setting::duration("internalProbeFailureBackOffDuration", secs(30), secs(0));

const DEFAULT_NODE_LEASE_FAILURE_FRACTION: f64 = 0.6;

/// Reads and checks a prober configuration (YAML or JSON).
///
/// # Errors
/// The first fault of form, or everything that is wrong with its content, each with line and column.
pub fn parse(bytes: &[u8], unknown: UnknownFields) -> Result<Parsed<ProberConfig>, ConfigErrors> {
    config::read(bytes, unknown, validate)
}

fn validate(file: ProberFile, at: &Section<'_>) -> Option<ProberConfig> {
    let secret = at
        .required("kubeConfigSecretName", file.kube_config_secret_name)
        .and_then(|name| at.object_name("kubeConfigSecretName", name));
    // Go writes a text that is not set as an empty one.
    let external = file
        .external_kube_config_secret_name
        .filter(|name| !name.is_empty());
    let external = external.and_then(|name| at.object_name("externalKubeConfigSecretName", name));
    let dependents = at
        .required("dependentResourceInfos", file.dependent_resource_infos)
        .and_then(|list| dependents::validate(list, at));
    Some(ProberConfig {
        probe_interval: at.duration(PROBE_INTERVAL, file.probe_interval),
        initial_delay: at.duration(INITIAL_DELAY, file.initial_delay),
        probe_timeout: at.duration(PROBE_TIMEOUT, file.probe_timeout),
        backoff_jitter_factor: at.number(JITTER, file.backoff_jitter_factor),
        kcm_node_monitor_grace_duration: at.duration(GRACE, file.kcm_node_monitor_grace_duration),
        node_lease_failure_fraction: failure_fraction(file.node_lease_failure_fraction, at),
        success_threshold: at.number(SUCCESS_THRESHOLD, file.success_threshold),
        failure_threshold: at.number(FAILURE_THRESHOLD, file.failure_threshold),
        internal_probe_failure_back_off_duration: at
            .duration(INTERNAL_BACK_OFF, file.internal_probe_failure_back_off_duration),
        kube_config_secret_name: secret?,
        external_kube_config_secret_name: external,
        dependent_resource_infos: dependents?,
    })
}

/// A share: more than 0, which is no range.
fn failure_fraction(field: Option<f64>, at: &Section<'_>) -> f64 {
    let value = field.unwrap_or(DEFAULT_NODE_LEASE_FAILURE_FRACTION);
    if !(value > 0.0 && value <= 1.0) {
        let message = format!("must be more than 0 and at most 1, not {value}");
        at.fault("nodeLeaseFailureFraction", message);
    }
    value
}

#[cfg(test)]
mod tests;
