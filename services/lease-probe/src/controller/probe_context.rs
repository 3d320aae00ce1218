//! The state that all probes of the process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    /// How many shoots the process probes, as of the last verdict.
    pub probing: AtomicUsize,
    /// How many of them it probes closely, because a loss stands or seconds decide.
    pub close: AtomicUsize,
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
            shoots: self.probing.load(Ordering::Relaxed),
            close: self.close.load(Ordering::Relaxed),
        }
    }
}

/// Counts a shoot among those that are probed closely while it exists.
pub(super) struct CloseProbing(Arc<ProbeContext>);

impl CloseProbing {
    pub(super) fn begin(shared: &Arc<ProbeContext>) -> Self {
        shared.close.fetch_add(1, Ordering::Relaxed);
        Self(shared.clone())
    }
}

impl Drop for CloseProbing {
    fn drop(&mut self) {
        self.0.close.fetch_sub(1, Ordering::Relaxed);
    }
}
