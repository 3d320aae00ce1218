//! The state that all probes of the process share.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::prober::ProberConfig;
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;

use crate::domain::schedule::ProbePace;

/// The state that all probes of the process share.
pub struct ProbeContext {
    /// Where the machines are listed.
    pub seed: kube::Client,
    /// The clock of the process.
    pub clock: Clock,
    /// Name of this replica.
    pub identity: Arc<str>,
    /// Draws the numbers in [0, 1) by which probes are spread.
    pub random: Box<dyn Fn() -> f64 + Send + Sync>,
    /// Each prober has a copy, so the number of copies is that of the shoots that the process probes.
    pub probing: Arc<()>,
    /// Each prober has a copy while it probes closely, because a loss stands or seconds decide.
    pub close: Arc<()>,
}

impl ProbeContext {
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
            failure_back_off: config
                .internal_probe_failure_back_off_duration
                .max(Duration::from_secs(1)),
            shoots: Arc::strong_count(&self.probing) - 1,
            close: Arc::strong_count(&self.close) - 1,
            random: (self.random)(),
        }
    }
}
