//! How fast time runs.

use std::time::Duration;

/// Durations in proportion to the grace period: 40 s in Kubernetes, less here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// `nodeMonitorGracePeriod`.
    pub(crate) grace: Duration,
    /// A machine whose node is Unknown for this long is replaced.
    pub(crate) machine_health_timeout: Duration,
    /// For waits that end with a condition; generous, as machines are at times busy.
    pub(crate) bound: Duration,
}

/// Kubernetes' default grace period.
const REAL_GRACE: Duration = Duration::from_secs(40);

// === impl Times ===

impl Times {
    /// A real duration, as short as the grace period is.
    pub(crate) fn scaled(&self, real: Duration) -> Duration {
        real.mul_f64(self.factor())
    }

    /// How long something takes here that takes a second in reality.
    pub(crate) fn factor(&self) -> f64 {
        self.grace.as_secs_f64() / REAL_GRACE.as_secs_f64()
    }

    /// Between two renewals of a kubelet.
    pub(crate) fn renew_interval(&self) -> Duration {
        self.grace / 4
    }

    /// With machines that are given up after half a grace period and not, as in reality, after fifteen of them: an
    /// outage need not last for minutes to show a meltdown.
    pub(crate) fn impatient(mut self) -> Self {
        self.machine_health_timeout = self.grace / 2;
        self
    }

    /// How long an outage is that melts an unprotected shoot down: until its nodes are Unknown, and its machines given
    /// up.
    pub(crate) fn outage(&self) -> Duration {
        self.grace * 2
    }

    /// After this time without a sign of it, nothing comes any more: a lease is expired after three quarters of the
    /// grace period, and the next probe is due then.
    pub(crate) fn observation_window(&self) -> Duration {
        self.grace * 5 / 4
    }

    /// The prober's configuration, before its dependants.
    pub(crate) fn prober_head(&self) -> String {
        let millis = |duration: Duration| duration.as_millis();
        format!(
            "probeInterval: {}ms\ninitialDelay: 1s\nprobeTimeout: 3s\ninternalProbeFailureBackOffDuration: 4s\n\
             kcmNodeMonitorGraceDuration: {}ms",
            millis(self.renew_interval()),
            millis(self.grace)
        )
    }
}
