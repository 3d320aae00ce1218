//! The state that all probes of the process share, and the inputs of the probes of one shoot.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::policy::{PolicyError, parse_failure_fraction};
use watchdog_api::prober::ProberConfig;
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;

use crate::cluster::kubeconfig::Access;
use crate::cluster::limits::SharedLimits;
use crate::domain::assessment::ExpiryRule;
use crate::domain::renewals::expiry_age;
use crate::domain::schedule::ProbePace;

/// Connections that begin to open at the same time, over all shoots: a handshake costs a core about a millisecond, and
/// after a restart all shoots want one. Servers that do not answer hold a permit for 250 ms only, so 256 a second can
/// begin, and one for each endpoint of each shoot that hangs is under way: sockets that wait.
const CONNECT_AT_ONCE: usize = 64;

/// The state that all probes of the process share.
pub struct ProbeContext {
    /// Where the machines are listed.
    pub(super) seed: kube::Client,
    /// The clock of the process.
    pub(super) clock: Clock,
    /// Name of this replica.
    pub(super) identity: Arc<str>,
    pub(super) limits: Arc<SharedLimits>,
    /// Draws the numbers in [0, 1) by which probes are spread.
    pub(super) random: Box<dyn Fn() -> f64 + Send + Sync>,
    /// Each prober has a copy, so the number of copies is that of the shoots that the process probes.
    pub(super) probing: Arc<()>,
    /// Each prober has a copy while it probes closely, because a loss stands or seconds decide.
    pub(super) close: Arc<()>,
}

impl ProbeContext {
    /// Of the replica with this name, which has `answer_memory` bytes for large answers.
    pub fn new(
        seed: kube::Client,
        clock: Clock,
        identity: Arc<str>,
        answer_memory: usize,
        random: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            seed,
            clock,
            identity,
            limits: Arc::new(SharedLimits::new(CONNECT_AT_ONCE, answer_memory)),
            random: Box::new(random),
            probing: Arc::default(),
            close: Arc::default(),
        })
    }

    /// The present time: wall time at the start, continued by the monotonic clock.
    #[must_use]
    pub fn now(&self) -> UnixTime {
        UnixTime(self.clock.now_micros())
    }

    pub(super) fn time_of(&self, instant: Instant) -> UnixTime {
        UnixTime(self.clock.micros_at(instant))
    }

    pub(super) fn pace(&self, config: &ProberConfig) -> ProbePace {
        ProbePace {
            interval: config.probe_interval,
            jitter: config.backoff_jitter_factor,
            failure_back_off: config.internal_probe_failure_back_off_duration,
            shoots: Arc::strong_count(&self.probing) - 1,
            close: Arc::strong_count(&self.close) - 1,
            random: (self.random)(),
        }
    }
}

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
    /// The rule for kubelets that renew at this interval.
    pub(super) fn rule(&self, renew_interval: Duration) -> ExpiryRule {
        let (own, threshold) = (self.settings.node_monitor_grace, self.failure_fraction());
        let grace = own.unwrap_or(self.config.kcm_node_monitor_grace_duration);
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
