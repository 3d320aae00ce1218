//! How long everything takes, and why that is safe.

use std::time::Duration;

/// All durations of a membership. Tests scale them; the service uses [`Timing::PRODUCTION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// From one successful renewal to the next.
    pub renew: Duration,
    /// Deadline of one request to the API server.
    pub request: Duration,
    /// How long the own lease is valid, by the own monotonic clock, from the *start* of the last renewal that
    /// succeeded.
    pub lease_ttl: Duration,
    /// How long a foreign lease counts as live, by the own monotonic clock, from the instant at which its last
    /// change was *seen*.
    pub peer_ttl: Duration,
    /// How long a replica waits that finds the Lease of its dead predecessor in the same Pod, from when it found it.
    pub takeover_delay: Duration,
    /// Members are listed at least this often, so that a watch that died silently does not hide them for good.
    pub resync: Duration,
    /// Leases that were released or ran out this long ago are deleted. Kept until then for people to look at.
    pub gc_after: Duration,
    /// How long the drain may take: waiting for actions in progress, then releasing.
    pub release_timeout: Duration,
}

impl Timing {
    /// The timing of the services. A dead replica is replaced well within kube-controller-manager's grace period of
    /// 40 s, and two renewals in a row may fail.
    ///
    /// Clocks run up to 10 % fast or slow. A holder whose clock is slow believes in its lease for up to
    /// 13.5 s / 0.9 = 15.0 s; an observer whose clock is fast gives up on it after 18 s / 1.1 = 16.4 s or later. The
    /// observer starts counting no earlier than the holder (it can only see a renewal that was requested before), so
    /// the holder has always stopped 1.36 s or more before anybody takes over. (The same as 13.5 * 1.1 <= 18 * 0.9.)
    ///
    /// A predecessor in the same Pod is dead when its successor starts; what it had sent has the same 1.36 s to come to
    /// its end, and a fast clock counts 2 s as 1.8 s. See ADR 0009.
    pub const PRODUCTION: Self = Self {
        renew: Duration::from_secs(5),
        request: Duration::from_secs(3),
        lease_ttl: Duration::from_millis(13_500),
        peer_ttl: Duration::from_secs(18),
        takeover_delay: Duration::from_secs(2),
        resync: Duration::from_secs(15),
        gc_after: Duration::from_secs(3600),
        release_timeout: Duration::from_secs(10),
    };

    /// Everything faster by `factor`, for tests.
    #[must_use]
    pub fn faster(self, factor: u32) -> Self {
        let factor = factor.max(1);
        Self {
            renew: self.renew / factor,
            request: self.request / factor,
            lease_ttl: self.lease_ttl / factor,
            peer_ttl: self.peer_ttl / factor,
            takeover_delay: self.takeover_delay / factor,
            resync: self.resync / factor,
            gc_after: self.gc_after / factor,
            release_timeout: self.release_timeout / factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_over_before_the_holder_has_stopped() {
        let timing = Timing::PRODUCTION;
        let longest_own = timing.lease_ttl.div_f64(0.9);
        let shortest_foreign = timing.peer_ttl.div_f64(1.1);
        let margin = shortest_foreign.saturating_sub(longest_own);
        assert!(margin > Duration::from_secs(1));
        assert!(
            timing.takeover_delay.div_f64(1.1) > margin,
            "what a dead one has sent gets no less time"
        );
        assert!(
            timing.renew * 2 + timing.request <= timing.lease_ttl,
            "two renewals may fail before the lease is lost"
        );
    }
}
