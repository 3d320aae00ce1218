//! The configuration of lease-probe and the scaling-coordinator: the file that Gardener writes for DWD's prober.

mod dependents;

pub use dependents::{DependentResource, ResourceRef, ScaleInfo};

use crate::{
    config::{self, ConfigErrors, Field, Parsed, Section, UnknownFields, Value},
    names,
};
use std::time::Duration;

/// The prober's configuration, checked. Two equal ones mean the same behaviour.
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

const FIELDS: &[Field] = &[
    &["kubeConfigSecretName", "internalKubeConfigSecretName"],
    &["externalKubeConfigSecretName"],
    &["probeInterval"],
    &["initialDelay"],
    &["probeTimeout"],
    // Go does not look at the case, so backOffJitterFactor is the same name.
    &["backoffJitterFactor"],
    &["kcmNodeMonitorGraceDuration"],
    &["nodeLeaseFailureFraction", "leaseFailureThresholdFraction"],
    &["successThreshold"],
    &["failureThreshold"],
    &[
        "internalProbeFailureBackOffDuration",
        "apiServerProbeFailureBackoffDuration",
    ],
    &["name"],
    &["namespace"],
    &["dependentResourceInfos"],
];

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
/// Everything that is wrong with it, each with line and column.
pub fn parse(bytes: &[u8], unknown: UnknownFields) -> Result<Parsed<ProberConfig>, ConfigErrors> {
    config::read(bytes, unknown, convert)
}

fn convert(root: &Value<'_>) -> Option<ProberConfig> {
    let fields = root.section(FIELDS)?;
    let threshold = |name, default| fields.or(name, default, |value| value.integer(1..=MAX_THRESHOLD));
    let duration = |name, default, min| fields.or(name, default, |value| value.duration(min));
    let secret = fields.required("kubeConfigSecretName").and_then(object_name);
    let dependents = fields
        .required("dependentResourceInfos")
        .and_then(dependents::convert);
    let config = ProberConfig {
        kube_config_secret_name: secret.unwrap_or_default(),
        external_kube_config_secret_name: set_text(&fields, "externalKubeConfigSecretName")
            .and_then(object_name),
        probe_interval: duration("probeInterval", names::DEFAULT_PROBE_INTERVAL, MIN_INTERVAL),
        initial_delay: duration("initialDelay", names::DEFAULT_PROBE_INITIAL_DELAY, Duration::ZERO),
        probe_timeout: duration("probeTimeout", names::DEFAULT_PROBE_TIMEOUT, POSITIVE),
        backoff_jitter_factor: fields.or(
            "backoffJitterFactor",
            names::DEFAULT_BACKOFF_JITTER_FACTOR,
            jitter,
        ),
        kcm_node_monitor_grace_duration: duration(
            "kcmNodeMonitorGraceDuration",
            names::DEFAULT_KCM_NODE_MONITOR_GRACE_DURATION,
            MIN_GRACE,
        ),
        node_lease_failure_fraction: fields.or(
            "nodeLeaseFailureFraction",
            names::DEFAULT_NODE_LEASE_FAILURE_FRACTION,
            fraction,
        ),
        success_threshold: threshold("successThreshold", names::DEFAULT_SUCCESS_THRESHOLD),
        failure_threshold: threshold("failureThreshold", names::DEFAULT_FAILURE_THRESHOLD),
        internal_probe_failure_back_off_duration: duration(
            "internalProbeFailureBackOffDuration",
            names::DEFAULT_INTERNAL_PROBE_FAILURE_BACK_OFF,
            Duration::ZERO,
        ),
        name: free_text(&fields, "name"),
        namespace: free_text(&fields, "namespace"),
        dependent_resource_infos: dependents.unwrap_or_default(),
    };
    Some(config)
}

/// A text that is set: Go writes one that is not as an empty text.
fn set_text<'s, 'd>(fields: &'s Section<'d>, name: &str) -> Option<&'s Value<'d>> {
    let value = fields.get(name)?;
    value.text().filter(|text| !text.is_empty()).map(|_| value)
}

fn free_text(fields: &Section<'_>, name: &str) -> Option<String> {
    set_text(fields, name).and_then(Value::text).map(str::to_owned)
}

fn jitter(value: &Value<'_>) -> Option<f64> {
    let factor = value.number()?;
    if (0.0..=MAX_JITTER).contains(&factor) {
        return Some(factor);
    }
    value.error(format!("must be from 0 to {MAX_JITTER}, not {factor}"));
    None
}

fn fraction(value: &Value<'_>) -> Option<f64> {
    let fraction = value.number()?;
    if fraction > 0.0 && fraction <= 1.0 {
        return Some(fraction);
    }
    value.error(format!("must be more than 0 and at most 1, not {fraction}"));
    None
}

/// The name of a Kubernetes object: a DNS subdomain.
fn object_name(value: &Value<'_>) -> Option<String> {
    let name = value.text()?;
    if names::is_dns_subdomain(name) {
        return Some(name.to_owned());
    }
    let rule = "must be the name of an object: lower-case letters, digits, - and ., at most 253 characters";
    value.error(if name.is_empty() {
        "must not be empty"
    } else {
        rule
    });
    None
}

#[cfg(test)]
mod tests;
