//! Did a service become ready after a pod had crashed? What the pods behind its endpoints say about it.
//!
//! Neither an `EndpointSlice` nor an Endpoints says since when an endpoint is ready; the `Ready` condition of its pod
//! does. A weeder that finds a service ready, and has not seen it become ready, deletes a pod only when these
//! conditions show that the service became ready after the crash. What they leave open counts as no recovery: a pod
//! that is left alone wrongly starts again after its back-off, and one that is deleted wrongly loses its logs.

use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

/// Nodes and API servers keep their clocks this close; the times of pods are in whole seconds.
pub(crate) const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// The pod behind an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointPod {
    pub(crate) created: Option<UnixTime>,
    /// Readiness of the pod and the time of its last change; none when the status does not have them.
    pub(crate) ready: Option<(bool, UnixTime)>,
    /// True when a predecessor is gone before the pod exists, as with a `StatefulSet`.
    pub(crate) replaces_in_place: bool,
    /// The last stop of each container that was restarted. Meanwhile the pod was not ready.
    pub(crate) stops: Vec<ContainerStop>,
}

/// The time between two runs of a container, by the clock of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContainerStop {
    pub(crate) ended_at: UnixTime,
    pub(crate) started_at: UnixTime,
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

    /// True when the service became ready after a container had ended at `crashed_at`, by the clock of its node, and
    /// before the service was seen to be ready, at `first_seen`. No endpoint may have been ready all the time since the
    /// crash, and none at the moment at which the first one became ready.
    pub(crate) fn shows_recovery_after(&self, crashed_at: UnixTime, first_seen: UnixTime) -> bool {
        let Some(recovered_at) = self.ready_since() else {
            return false;
        };
        // A pod that replaces its predecessor in place left a gap only if there was no other one.
        let sole = self.0.len() == 1;
        // The service has been ready since it was first seen: what became ready later ended no outage.
        recovered_at <= first_seen.after(CLOCK_TOLERANCE)
            && self
                .0
                .iter()
                .all(|pod| pod.recovered_after(crashed_at, sole) && pod.was_unready_until(recovered_at))
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

    /// True when the pod is known to have been unready just before `moment`. Pods that were restarted one after the
    /// other are ready since different moments too, and the others were ready meanwhile.
    fn was_unready_until(&self, moment: UnixTime) -> bool {
        let stopped = |stop: &ContainerStop| {
            stop.ended_at.after(CLOCK_TOLERANCE) <= moment && moment.after(CLOCK_TOLERANCE) <= stop.started_at
        };
        match self.ready {
            Some((true, since)) => since == moment || self.stops.iter().any(stopped),
            Some((false, since)) => since < moment,
            None => false,
        }
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
            stops: Vec::new(),
        }
    }

    /// The service is first seen at second 1000.
    fn shows(pods: &[EndpointPod], crashed_at: f64) -> bool {
        OutageEvidence(pods.to_vec()).shows_recovery_after(at(crashed_at), at(1000.0))
    }

    fn stopped(mut pod: EndpointPod, ended_at: f64, started_at: f64) -> EndpointPod {
        pod.stops.push(ContainerStop {
            ended_at: at(ended_at),
            started_at: at(started_at),
        });
        pod
    }

    #[test]
    fn a_crash_before_the_only_endpoint_became_ready() {
        let restarted = pod(0.0, true, 100.0);
        let restarted = std::slice::from_ref(&restarted);
        assert!(shows(restarted, 90.0));
        assert!(!shows(restarted, 99.0), "the clocks of two nodes");
        assert!(!shows(restarted, 110.0));
        let evidence = OutageEvidence(restarted.to_vec());
        assert_eq!(evidence.ready_since(), Some(at(100.0)));
        assert!(
            !evidence.shows_recovery_after(at(90.0), at(97.0)),
            "it was seen to be ready before: another endpoint was"
        );
    }

    #[test]
    fn what_is_not_known_counts_as_ready() {
        assert!(!shows(&[], 90.0));
        let mut silent = pod(0.0, true, 100.0);
        silent.ready = None;
        assert!(!shows(&[pod(0.0, true, 100.0), silent.clone()], 90.0));
        assert!(!shows(&[silent], 90.0));
        let mut ageless = pod(0.0, true, 100.0);
        ageless.created = None;
        assert!(!shows(&[ageless], 90.0));
    }

    #[test]
    fn every_endpoint_must_have_been_unready() {
        let recovered = pod(0.0, true, 100.0);
        let and = |other: EndpointPod| [recovered.clone(), other];
        assert!(
            !shows(&and(pod(0.0, true, 50.0)), 90.0),
            "one was ready all the time"
        );
        assert!(
            shows(&and(pod(0.0, false, 50.0)), 90.0),
            "one is unready since before"
        );
        assert!(
            !shows(&and(pod(0.0, false, 95.0)), 90.0),
            "one was ready until after the crash"
        );
        assert!(!shows(&[pod(0.0, false, 50.0)], 90.0), "none is ready");
    }

    #[test]
    fn endpoints_must_have_been_unready_at_the_same_time() {
        let first = pod(0.0, true, 100.0);
        let and = |other: EndpointPod| [first.clone(), other];
        assert!(shows(&and(pod(0.0, true, 100.0)), 90.0));
        let second = pod(0.0, true, 130.0);
        assert!(
            !shows(&and(second.clone()), 90.0),
            "it may have been ready when the first one was not"
        );
        assert!(
            shows(&and(stopped(second.clone(), 80.0, 120.0)), 90.0),
            "a container of it did not run"
        );
        assert!(
            !shows(&and(stopped(second.clone(), 105.0, 120.0)), 90.0),
            "restarted one after the other"
        );
        assert!(
            !shows(&and(stopped(second, 80.0, 95.0)), 90.0),
            "it ran before the first one was ready"
        );
    }

    #[test]
    fn a_rollout_proves_nothing() {
        let mut replaced = pod(95.0, true, 100.0);
        assert!(
            !shows(std::slice::from_ref(&replaced), 90.0),
            "its predecessor may have been ready"
        );
        replaced.replaces_in_place = true;
        assert!(
            shows(std::slice::from_ref(&replaced), 90.0),
            "its predecessor was gone before it came"
        );
        let mut member = pod(105.0, true, 110.0);
        member.replaces_in_place = true;
        assert!(
            !shows(&[replaced, member], 90.0),
            "one member of a StatefulSet after the other was replaced, and the others were ready"
        );
    }

    /// A time in which a pod is not ready, in seconds; its container runs again from `started` on.
    #[derive(Debug, Clone, Copy)]
    struct Unready {
        from: u32,
        started: Option<u32>,
        until: u32,
    }

    const NOW: u32 = 120;

    fn histories() -> impl Strategy<Value = Vec<Vec<Unready>>> {
        let unready = (1_u32..NOW, 1_u32..40, prop::option::of(1_u32..40));
        let history = prop::collection::vec(unready, 0..3).prop_map(|mut times| {
            times.sort_unstable();
            let mut history: Vec<Unready> = Vec::new();
            for (from, length, started) in times {
                let from = history.last().map_or(from, |last| from.max(last.until + 1));
                let started = started.map(|after| from + after.min(length));
                let until = from + length;
                history.push(Unready { from, started, until });
            }
            history
        });
        prop::collection::vec(history, 1..4)
    }

    /// The pod as the API shows it at [`NOW`].
    fn shown(history: &[Unready]) -> EndpointPod {
        let past = || history.iter().rev().filter(|unready| unready.from <= NOW);
        let mut shown = match past().next() {
            Some(last) if last.until <= NOW => pod(-10.0, true, f64::from(last.until)),
            Some(last) => pod(-10.0, false, f64::from(last.from)),
            None => pod(-10.0, true, -5.0),
        };
        let restart = past().find_map(|unready| Some((unready.from, unready.started?)));
        if let Some((from, started)) = restart.filter(|(_, started)| *started <= NOW) {
            shown = stopped(shown, f64::from(from), f64::from(started));
        }
        shown
    }

    proptest! {
        /// Whatever the endpoints went through: a service that was ready all the time since the crash has not
        /// recovered.
        #[test]
        fn no_crash_of_a_service_that_was_ready_is_taken_for_an_outage(
            crashed_at in 0_u32..NOW,
            histories in histories(),
        ) {
            // Between two whole seconds.
            let ready_after = |second: u32, history: &[Unready]| {
                !history.iter().any(|unready| (unready.from..unready.until).contains(&second))
            };
            let always_ready = (crashed_at..NOW)
                .all(|second| histories.iter().any(|history| ready_after(second, history)));
            let pods: Vec<_> = histories.iter().map(|history| shown(history)).collect();
            let evidence = OutageEvidence(pods);
            let shows = evidence.shows_recovery_after(at(f64::from(crashed_at)), at(f64::from(NOW)));
            prop_assert!(!(shows && always_ready), "{evidence:?}");
        }

        /// A pod that was ready from the crash on, and others of a Deployment that rolls them at will.
        #[test]
        fn one_endpoint_that_was_ready_is_enough(
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
