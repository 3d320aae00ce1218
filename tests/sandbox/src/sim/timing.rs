//! How fast the simulation turns. The defaults are those of Kubernetes and Gardener; tests divide them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Durations of the simulators.
#[derive(Debug, Clone, PartialEq)]
pub struct SimTiming {
    /// Between two renewals of a kubelet's Lease (a quarter of the 40 s lease duration).
    pub renew_interval: Duration,
    /// Without a renewal for this long a node is Unknown (`--node-monitor-grace-period`).
    pub node_monitor_grace_period: Duration,
    /// Between two looks at the nodes (`--node-monitor-period`); machines are looked at as often.
    pub node_monitor_period: Duration,
    /// A machine whose node is Unknown for this long is replaced (`--machine-health-timeout`).
    pub machine_health_timeout: Duration,
    /// From the start of a pod to its readiness.
    pub ready_delay: Duration,
    /// From the wish to have fewer replicas to the end of a pod.
    pub stop_delay: Duration,
    /// How long a container runs before it notices that the service which it needs is missing.
    pub crash_after: Duration,
    /// First crash back-off; doubles with every crash.
    pub crash_backoff: Duration,
    /// Longest crash back-off.
    pub crash_backoff_max: Duration,
}

impl Default for SimTiming {
    fn default() -> Self {
        Self {
            renew_interval: Duration::from_secs(10),
            node_monitor_grace_period: Duration::from_secs(40),
            node_monitor_period: Duration::from_secs(5),
            machine_health_timeout: Duration::from_secs(600),
            ready_delay: Duration::from_secs(5),
            stop_delay: Duration::from_secs(1),
            crash_after: Duration::from_secs(3),
            crash_backoff: Duration::from_secs(10),
            crash_backoff_max: Duration::from_secs(300),
        }
    }
}

impl SimTiming {
    /// The default divided by `factor`, so that the world turns that much faster. Factors that are not
    /// positive count as 1.
    pub fn scaled(factor: f64) -> Self {
        let factor = if factor.is_finite() && factor > 0.0 {
            factor
        } else {
            1.0
        };
        let real = Self::default();
        let scale = |duration: Duration| duration.div_f64(factor);
        Self {
            renew_interval: scale(real.renew_interval),
            node_monitor_grace_period: scale(real.node_monitor_grace_period),
            node_monitor_period: scale(real.node_monitor_period),
            machine_health_timeout: scale(real.machine_health_timeout),
            ready_delay: scale(real.ready_delay),
            stop_delay: scale(real.stop_delay),
            crash_after: scale(real.crash_after),
            crash_backoff: scale(real.crash_backoff),
            crash_backoff_max: scale(real.crash_backoff_max),
        }
    }

    /// `leaseDurationSeconds` of kubelets: four renew intervals, in whole seconds, at least one.
    pub(crate) fn lease_seconds(&self) -> u64 {
        let millis = u64::try_from(self.renew_interval.as_millis()).unwrap_or(u64::MAX);
        millis.saturating_mul(4).div_ceil(1000).max(1)
    }
}

/// A duration in Go's notation, milliseconds the smallest unit.
pub(crate) fn go_duration(duration: Duration) -> String {
    let millis = duration.subsec_millis();
    match (duration.as_secs(), millis) {
        (seconds, 0) => format!("{seconds}s"),
        (0, millis) => format!("{millis}ms"),
        (seconds, millis) => format!("{seconds}.{millis:03}s"),
    }
}

/// Wall-clock time that follows tokio's clock, so that it stands still where that does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimClock {
    start: Instant,
    wall: Timestamp,
}

impl SimClock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            wall: Timestamp::now(),
        }
    }

    /// The wall-clock time at `now`.
    pub(crate) fn at(&self, now: Instant) -> Timestamp {
        let passed = SignedDuration::try_from(now.saturating_duration_since(self.start));
        self.wall
            .saturating_add(passed.unwrap_or(SignedDuration::MAX))
            .unwrap_or(Timestamp::MAX)
    }
}

/// The earlier of two times to wake up at.
pub(crate) fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations() {
        assert_eq!(go_duration(Duration::from_secs(40)), "40s");
        assert_eq!(go_duration(Duration::from_millis(1500)), "1.500s");
        assert_eq!(go_duration(Duration::from_millis(250)), "250ms");
    }

    #[test]
    fn scaled_ten_times() {
        let fast = SimTiming::scaled(10.0);
        assert_eq!(fast.renew_interval, Duration::from_secs(1));
        assert_eq!(fast.lease_seconds(), 4);
        assert_eq!(SimTiming::scaled(0.0), SimTiming::default());
    }
}
