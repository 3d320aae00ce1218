//! The configuration of lease-probe and the scaling-coordinator: the file that Gardener writes for DWD's prober.

mod dependents;

pub use dependents::{DependentResource, ResourceRef, ScaleInfo};

use self::dependents::DependentFile;
use crate::{
    config::{self, ConfigErrors, Parsed, Section, UnknownFields},
    names,
};
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
    /// Name of this set of rules, for people.
    pub name: Option<String>,
    /// Namespace of this set of rules, for people.
    pub namespace: Option<String>,
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
    name: Option<String>,
    namespace: Option<String>,
    dependent_resource_infos: Option<Vec<DependentFile>>,
}

/// Probes and leases are never looked at more often: kubelets renew every 10 s.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The least duration that is not zero.
const POSITIVE: Duration = Duration::from_millis(1);
/// kube-controller-manager knows seconds, and a lease is only renewed every few.
const MIN_GRACE: Duration = Duration::from_secs(1);
const MAX_JITTER: f64 = 10.0;
const MAX_THRESHOLD: u32 = 1_000;

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
        .and_then(|name| object_name(at, "kubeConfigSecretName", name));
    // Go writes a text that is not set as an empty one.
    let set = |name: &String| !name.is_empty();
    let external = file.external_kube_config_secret_name.filter(set);
    let external = external.and_then(|name| object_name(at, "externalKubeConfigSecretName", name));
    let dependents = at
        .required("dependentResourceInfos", file.dependent_resource_infos)
        .and_then(|list| dependents::validate(list, at));
    Some(ProberConfig {
        probe_interval: at.duration(
            "probeInterval",
            names::DEFAULT_PROBE_INTERVAL,
            file.probe_interval,
            MIN_INTERVAL,
        ),
        initial_delay: at.duration(
            "initialDelay",
            names::DEFAULT_PROBE_INITIAL_DELAY,
            file.initial_delay,
            Duration::ZERO,
        ),
        probe_timeout: at.duration(
            "probeTimeout",
            names::DEFAULT_PROBE_TIMEOUT,
            file.probe_timeout,
            POSITIVE,
        ),
        backoff_jitter_factor: at.number(
            "backoffJitterFactor",
            names::DEFAULT_BACKOFF_JITTER_FACTOR,
            file.backoff_jitter_factor,
            0.0..=MAX_JITTER,
        ),
        kcm_node_monitor_grace_duration: at.duration(
            "kcmNodeMonitorGraceDuration",
            names::DEFAULT_KCM_NODE_MONITOR_GRACE_DURATION,
            file.kcm_node_monitor_grace_duration,
            MIN_GRACE,
        ),
        node_lease_failure_fraction: fraction(
            at,
            "nodeLeaseFailureFraction",
            names::DEFAULT_NODE_LEASE_FAILURE_FRACTION,
            file.node_lease_failure_fraction,
        ),
        success_threshold: at.number(
            "successThreshold",
            names::DEFAULT_SUCCESS_THRESHOLD,
            file.success_threshold,
            1..=MAX_THRESHOLD,
        ),
        failure_threshold: at.number(
            "failureThreshold",
            names::DEFAULT_FAILURE_THRESHOLD,
            file.failure_threshold,
            1..=MAX_THRESHOLD,
        ),
        internal_probe_failure_back_off_duration: at.duration(
            "internalProbeFailureBackOffDuration",
            names::DEFAULT_INTERNAL_PROBE_FAILURE_BACK_OFF,
            file.internal_probe_failure_back_off_duration,
            Duration::ZERO,
        ),
        name: file.name.filter(|name| !name.is_empty()),
        namespace: file.namespace.filter(|namespace| !namespace.is_empty()),
        kube_config_secret_name: secret?,
        external_kube_config_secret_name: external,
        dependent_resource_infos: dependents?,
    })
}

/// A share; the default where it is absent.
fn fraction(at: &Section<'_>, name: &str, default: f64, field: Option<f64>) -> f64 {
    let value = field.unwrap_or(default);
    if !(value > 0.0 && value <= 1.0) {
        at.fault(name, format!("must be more than 0 and at most 1, not {value}"));
    }
    value
}

/// The name of a Kubernetes object: a DNS subdomain.
fn object_name(at: &Section<'_>, field: &str, name: String) -> Option<String> {
    if names::is_dns_subdomain(&name) {
        return Some(name);
    }
    let rule = match &*name {
        "" => "must not be empty",
        _ => "must be the name of an object: lower-case letters, digits, - and ., at most 253 characters",
    };
    at.fault(field, rule);
    None
}

#[cfg(test)]
mod tests;
