//! How fast the simulation turns. The defaults are those of Kubernetes and Gardener; tests divide them.

use std::time::Duration;

/// Durations of a simulated shoot.
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
        Self::scaled(1.0)
    }
}

impl SimTiming {
    /// Divided by `factor`, so that the world turns that much faster.
    pub fn scaled(factor: f64) -> Self {
        let seconds = |real: f64| Duration::from_secs_f64(real / factor);
        Self {
            renew_interval: seconds(10.0),
            node_monitor_grace_period: seconds(40.0),
            node_monitor_period: seconds(5.0),
            machine_health_timeout: seconds(600.0),
            ready_delay: seconds(5.0),
            stop_delay: seconds(1.0),
            crash_after: seconds(3.0),
            crash_backoff: seconds(10.0),
            crash_backoff_max: seconds(300.0),
        }
    }
}
