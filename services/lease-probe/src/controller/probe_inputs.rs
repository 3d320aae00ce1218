//! The inputs of the probes of one shoot.

use std::sync::Arc;
use std::time::Duration;

use watchdog_api::eligibility::ShootSettings;
use watchdog_api::policy::{PolicyError, parse_failure_fraction};
use watchdog_api::prober::ProberConfig;

use crate::cluster::kubeconfig::Access;
use crate::domain::assessment::ExpiryRule;
use crate::domain::renewals::expiry_age;

/// The inputs of a probe. A change takes effect on the running probe.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeInputs {
    /// From the Cluster.
    pub settings: Arc<ShootSettings>,
    /// From the configuration file.
    pub config: Arc<ProberConfig>,
    /// The kubeconfig for the internal endpoint, or why there is none.
    pub internal: Access,
    /// The same for the external endpoint, where the configuration names a Secret for it.
    pub external: Option<Access>,
}

impl ProbeInputs {
    /// The grace period of the shoot's kube-controller-manager.
    fn grace_period(&self) -> Duration {
        let own = self.settings.node_monitor_grace;
        own.unwrap_or(self.config.kcm_node_monitor_grace_duration)
    }

    /// The rule for kubelets that renew at this interval.
    pub(super) fn rule(&self, renew_interval: Duration) -> ExpiryRule {
        let (threshold, grace) = (self.failure_fraction(), self.grace_period());
        ExpiryRule {
            grace,
            expiry_age: expiry_age(grace, renew_interval),
            threshold: threshold.unwrap_or(self.config.node_lease_failure_fraction),
        }
    }

    /// The share of expired leases at which the shoot counts as cut off: that of its annotation, or else that of the
    /// configuration. The error says what is wrong with the annotation.
    pub(super) fn failure_fraction(&self) -> Result<f64, PolicyError> {
        let own = self.settings.failure_fraction.as_deref();
        own.map_or(
            Ok(self.config.node_lease_failure_fraction),
            parse_failure_fraction,
        )
    }
}
