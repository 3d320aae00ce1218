//! Did a service become ready after a pod had crashed? What the pods behind its endpoints say about it.
//!
//! Neither an `EndpointSlice` nor an Endpoints says since when an endpoint is ready; the `Ready` condition of its pod
//! does. A weeder that finds a service ready, and has not seen it become ready, deletes a pod only when these conditions
//! show that the service became ready after the crash. What they leave open counts as no recovery: a pod that is left
//! alone wrongly starts again after its back-off, and one that is deleted wrongly loses its logs.

use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

/// Nodes keep their clocks this close, and the times of pods are in whole seconds.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// The pod behind an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndpointPod {
    pub(crate) created: Option<UnixTime>,
    /// Readiness of the pod and the time of its last change; none when the status does not have them.
    pub(crate) ready: Option<(bool, UnixTime)>,
    /// True when a predecessor is gone before the pod exists, as with a `StatefulSet`.
    pub(crate) replaces_in_place: bool,
}

/// The pods behind all endpoints of a service; empty when one of them is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OutageEvidence(pub(crate) Vec<EndpointPod>);

impl OutageEvidence {
    /// Since when the service is ready at the latest.
    pub(crate) fn ready_since(&self) -> Option<UnixTime> {
        let ready = self.0.iter().filter_map(|pod| pod.ready);
        ready.filter_map(|(ready, since)| ready.then_some(since)).min()
    }

    /// True when the service became ready after a container had ended at `crashed_at`, by the clock of its node. No
    /// endpoint may have been ready all the time since then.
    pub(crate) fn shows_recovery_after(&self, crashed_at: UnixTime) -> bool {
        // A pod that replaces its predecessor in place left a gap only if there was no other one.
        let sole = self.0.len() == 1;
        self.ready_since().is_some() && self.0.iter().all(|pod| pod.recovered_after(crashed_at, sole))
    }
}

impl EndpointPod {
    fn recovered_after(&self, moment: UnixTime, sole: bool) -> bool {
        // A pod that a Deployment created since then may have taken over from one that was ready.
        let existed = self
            .created
            .is_some_and(|created| created.after(CLOCK_TOLERANCE) <= moment);
        let unready = match self.ready {
            Some((true, since)) => moment.after(CLOCK_TOLERANCE) <= since,
            Some((false, since)) => since.after(CLOCK_TOLERANCE) <= moment,
            None => false,
        };
        unready && (existed || (sole && self.replaces_in_place))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::fixtures::at;

    fn pod(created: f64, ready: bool, since: f64) -> EndpointPod {
        EndpointPod {
            created: Some(at(created)),
            ready: Some((ready, at(since))),
            replaces_in_place: false,
        }
    }

    fn shows(pods: &[EndpointPod], crashed_at: f64) -> bool {
        OutageEvidence(pods.to_vec()).shows_recovery_after(at(crashed_at))
    }

    #[test]
    fn a_crash_before_the_only_endpoint_became_ready() {
        let restarted = pod(0.0, true, 100.0);
        assert!(shows(&[restarted], 90.0));
        assert!(!shows(&[restarted], 99.0), "the clocks of two nodes");
        assert!(!shows(&[restarted], 110.0));
        assert_eq!(OutageEvidence(vec![restarted]).ready_since(), Some(at(100.0)));
    }

    #[test]
    fn what_is_not_known_counts_as_ready() {
        assert!(!shows(&[], 90.0));
        let mut silent = pod(0.0, true, 100.0);
        silent.ready = None;
        assert!(!shows(&[silent], 90.0));
        assert!(!shows(&[pod(0.0, true, 100.0), silent], 90.0));
        let mut ageless = pod(0.0, true, 100.0);
        ageless.created = None;
        assert!(!shows(&[ageless], 90.0));
    }

    #[test]
    fn every_endpoint_must_have_been_unready() {
        let recovered = pod(0.0, true, 100.0);
        assert!(
            !shows(&[recovered, pod(0.0, true, 50.0)], 90.0),
            "one was ready all the time"
        );
        assert!(
            shows(&[recovered, pod(0.0, false, 50.0)], 90.0),
            "one is unready since before"
        );
        assert!(
            !shows(&[recovered, pod(0.0, false, 95.0)], 90.0),
            "one was ready until after the crash"
        );
        assert!(!shows(&[pod(0.0, false, 50.0)], 90.0), "none is ready");
    }

    #[test]
    fn a_rollout_proves_nothing() {
        let mut replaced = pod(95.0, true, 100.0);
        assert!(!shows(&[replaced], 90.0), "its predecessor may have been ready");
        replaced.replaces_in_place = true;
        assert!(
            shows(&[replaced], 90.0),
            "its predecessor was gone before it came"
        );
        let mut member = pod(105.0, true, 110.0);
        member.replaces_in_place = true;
        assert!(
            !shows(&[replaced, member], 90.0),
            "one member of a StatefulSet after the other was replaced, and the others were ready"
        );
    }

    proptest! {
        /// Endpoints that were ready at any moment from the crash on, by a Deployment that rolls them at will.
        #[test]
        fn no_crash_of_a_service_that_was_ready_is_taken_for_an_outage(
            crashed_at in 0_u32..200,
            ready_at_crash in (0_u32..200, 0_u32..200),
            others in prop::collection::vec((0_u32..400, any::<bool>(), 0_u32..400), 0..4),
        ) {
            // It became ready before the crash and is, or was until after it.
            let since = ready_at_crash.0.min(crashed_at);
            let steady = pod(0.0, true, f64::from(since));
            let left = pod(0.0, false, f64::from(crashed_at + ready_at_crash.1));
            let others: Vec<_> = others.into_iter().map(|(c, r, s)| pod(f64::from(c), r, f64::from(s))).collect();
            for was_ready in [steady, left] {
                let mut pods = others.clone();
                pods.push(was_ready);
                prop_assert!(!shows(&pods, f64::from(crashed_at)));
            }
        }
    }
}
