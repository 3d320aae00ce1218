//! Takes in the answers to requests.

use std::time::Duration;

use super::crashing_pods::DeletionState;
use super::{ManagedWeeder, OutageProof, PERMIT_CHECK, WATCH_DELAY, WeederManager};
use crate::controller::task::{Deletion, EndpointRead, Finding};
use crate::domain::attempts::ControllerKey;
use crate::domain::evidence::OutageEvidence;
use crate::domain::failure::RequestFailure;
use crate::domain::namespaced_name::{NamespacedName, in_namespace};
use crate::domain::pods::Pod;
use watchdog_api::unix_time::UnixTime;

impl WeederManager {
    pub(crate) fn endpoints_read(
        &mut self,
        read: &EndpointRead,
        answer: Result<OutageEvidence, RequestFailure>,
        now: UnixTime,
    ) {
        let Some(entry) = self.weeder(&read.key, read.generation) else {
            return;
        };
        match answer {
            Ok(evidence) => {
                entry.set_proof(OutageProof::Read(evidence));
                self.schedule_namespace(&read.key.namespace, now);
            }
            Err(failure) => {
                entry.proof = OutageProof::Unread(read.pods.clone());
                entry.failed_reads = entry.failed_reads.saturating_add(1);
                entry.weeder.message =
                    format!("The pods of the service cannot be read; trying again: {failure}.");
                let again = now.after(failure.pause(entry.failed_reads));
                self.due_reads.insert(read.key.clone(), again);
                self.throttle(&failure, again);
            }
        }
        self.changed.insert(read.key.clone());
    }

    /// A deletion was answered, with the time of the API server.
    pub(crate) fn deleted(
        &mut self,
        deletion: &Deletion,
        answer: &Result<Option<UnixTime>, RequestFailure>,
        now: UnixTime,
    ) {
        // Its watch will bring the end.
        self.answered(deletion, answer, DeletionState::Deleted, now);
    }

    /// Mode observe has kept back a deletion. It counts as one that was done now.
    pub(crate) fn kept_back(&mut self, deletion: &Deletion, now: UnixTime) {
        let second = now.at_multiple_of(Duration::from_secs(1));
        let by = deletion.key.clone();
        self.answered(
            deletion,
            &Ok(Some(second)),
            DeletionState::KeptBack { by, at: now },
            now,
        );
    }

    fn answered(
        &mut self,
        deletion: &Deletion,
        answer: &Result<Option<UnixTime>, RequestFailure>,
        done: DeletionState,
        now: UnixTime,
    ) {
        self.arrived(&deletion.pod);
        // A deletion without an answer may have taken place.
        if matches!(answer, Ok(_) | Err(RequestFailure::Failed(_))) {
            self.attempts
                .deleted(&deletion.pod, &deletion.attempt, answer, now);
        }
        let kept_back = matches!(done, DeletionState::KeptBack { .. });
        self.settle(&deletion.pod, answer, done, now);
        if let Some(entry) = self.weeder(&deletion.key, deletion.attempt.weeder) {
            let answer = answer.as_ref().map(drop);
            let (pod, crash, since) = (&deletion.pod, &deletion.crash, deletion.service_ready_since);
            entry.weeder.record(pod, crash, since, answer, kept_back, now);
            self.changed.insert(deletion.key.clone());
        }
        // The watch may bring a successor that crashes before the answer about its predecessor comes.
        let successors = in_namespace(&self.pods, &deletion.pod.key.namespace);
        let successors: Vec<_> = successors.map(|(_, known)| known.pod.clone()).collect();
        for successor in successors {
            self.judge_by(&successor, now);
        }
    }

    /// This replica may not act now, so the deletion was not sent. Every other one waits for the same.
    pub(crate) fn put_back(&mut self, deletion: &Deletion, now: UnixTime) {
        self.arrived(&deletion.pod);
        if let Some(known) = self.known_pod(&deletion.pod) {
            known.state = DeletionState::None;
            // As before, so that its weeder waits for it.
            self.due_pods
                .insert(deletion.pod.key.clone(), deletion.attempt.asked_at);
        }
        self.requests_from = self.requests_from.max(now.after(PERMIT_CHECK));
    }

    /// The deletion of a pod is not under way any more.
    fn arrived(&mut self, pod: &Pod) {
        let controller = ControllerKey::of(pod);
        if let Some(in_flight) = self.in_flight.get_mut(&controller) {
            in_flight.requests = in_flight.requests.saturating_sub(1);
            if in_flight.requests == 0 {
                self.in_flight.remove(&controller);
            }
        }
    }

    fn settle(
        &mut self,
        pod: &Pod,
        answer: &Result<Option<UnixTime>, RequestFailure>,
        done: DeletionState,
        now: UnixTime,
    ) {
        let Some(known) = self.known_pod(pod) else {
            if let Err(failure) = answer {
                self.throttle(failure, now.after(failure.pause(1)));
            }
            return;
        };
        known.state = DeletionState::None;
        match answer {
            Ok(_) => known.state = done,
            Err(RequestFailure::Gone) => self.forget_pod(&pod.key),
            Err(failure) => {
                known.failures = known.failures.saturating_add(1);
                known.retry_at = now.after(failure.pause(known.failures));
                let unchanged = known.pod.resource_version == pod.resource_version;
                let again = match failure {
                    RequestFailure::Changed if unchanged => known.retry_at.max(now.after(WATCH_DELAY)),
                    _ => known.retry_at,
                };
                self.due_pods.insert(pod.key.clone(), again);
                self.throttle(failure, again);
            }
        }
    }

    /// The weeder of a service, if it was not replaced.
    fn weeder(&mut self, key: &NamespacedName, generation: u64) -> Option<&mut ManagedWeeder> {
        let entry = self.weeders.get_mut(key);
        entry.filter(|entry| entry.generation == generation)
    }

    pub(super) fn leave_alone(&mut self, service: &NamespacedName, key: &NamespacedName, now: UnixTime) {
        let (Some(entry), Some(known)) = (self.weeders.get_mut(service), self.pods.get(key)) else {
            return;
        };
        let controller = ControllerKey::of(&known.pod);
        for crash in &known.pod.crashes {
            if self
                .attempts
                .give_up(&controller, &crash.container, entry.generation)
            {
                entry.weeder.leave_alone(&known.pod, crash, now);
                self.changed.insert(service.clone());
                self.findings.push(Finding::LeftAlone {
                    key: service.clone(),
                    pod: known.pod.clone(),
                    crash: crash.clone(),
                });
            }
        }
    }

    /// Judges the last deletion by a pod that may be the successor.
    pub(super) fn judge_by(&mut self, pod: &Pod, now: UnixTime) {
        for useless in self.attempts.judge(pod, now) {
            self.findings.push(Finding::Useless);
            let deleted_it = |(_, entry): &(_, &ManagedWeeder)| entry.generation == useless.weeder;
            let service = in_namespace(&self.weeders, &pod.key.namespace)
                .find(deleted_it)
                .map(|(service, _)| service.clone());
            if let Some(service) = service
                && let Some(entry) = self.weeders.get_mut(&service)
                && entry.weeder.mark_useless(pod, &useless.container)
            {
                self.changed.insert(service);
            }
        }
    }

    /// All requests wait when the API server throttles one: it would refuse the others too.
    fn throttle(&mut self, failure: &RequestFailure, until: UnixTime) {
        if matches!(failure, RequestFailure::Throttled(_)) {
            self.requests_from = self.requests_from.max(until);
        }
    }
}
