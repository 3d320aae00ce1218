//! The decision about one pod in a crash loop.

use std::cmp::Reverse;

use super::crashing_pods::{CrashingPod, DeletionState};
use super::{ManagedWeeder, OutageProof, WATCH_DELAY, WeederManager};
use crate::controller::task::Deletion;
use crate::domain::attempts::{Attempt, ControllerKey, DeletionPermit};
use crate::domain::namespaced_name::{NamespacedName, in_namespace};
use crate::domain::pods::may_delete_pods_of;
use watchdog_api::unix_time::UnixTime;

/// The decision of one weeder about a pod.
enum WeederDecision {
    /// Delete it: the service is ready since then.
    Delete(UnixTime),
    /// Not before then.
    Wait(UnixTime),
    /// Its service's endpoint pods must be read.
    Read,
    LeaveAlone,
    Nothing,
}

impl WeederManager {
    /// Decides about a pod that is due. One that is not deleted now is due again when that may change.
    ///
    /// Of several weeders one that saw its service become ready comes first, and the youngest of those: its service is
    /// the last that the pod was missing.
    pub(super) fn decide(&mut self, key: NamespacedName, now: UnixTime) -> Option<Deletion> {
        let known = self.pods.get(&key)?;
        let crash = known.pod.crash_loop()?;
        if known.state != DeletionState::None || !may_delete_pods_of(known.pod.owner.as_ref(), &self.config) {
            return None;
        }
        if now < known.retry_at {
            self.due_pods.insert(key, known.retry_at);
            return None;
        }
        let (mut wait, mut reads, mut exhausted) = (None::<UnixTime>, Vec::new(), None);
        for entry in self.responsible_for(&key, known) {
            let weeder = &entry.weeder;
            let attempt = Attempt {
                weeder: entry.generation,
                ends_at: weeder.ends_at,
                found_at: known.found_at,
                asked_at: now,
            };
            match self.decide_by(entry, known, &attempt) {
                WeederDecision::Delete(service_ready_since) => {
                    return Some(Deletion {
                        pod: known.pod.clone(),
                        crash: crash.clone(),
                        key: weeder.key.clone(),
                        service_ready_since,
                        crashed_later: known.found_at > weeder.deletes_from,
                        waiting_since: known.found_at.max(weeder.deletes_from),
                        attempt,
                    });
                }
                WeederDecision::Wait(until) => wait = Some(wait.map_or(until, |wait| wait.min(until))),
                WeederDecision::Read => reads.push(weeder.key.clone()),
                WeederDecision::LeaveAlone => exhausted = exhausted.or(Some(weeder.key.clone())),
                WeederDecision::Nothing => {}
            }
        }
        if let Some(service) = exhausted
            && wait.is_none()
            && reads.is_empty()
        {
            self.leave_alone(&service, &key, now);
        }
        if let Some(again) = wait {
            self.due_pods.insert(key, again);
        }
        for service in reads {
            // One that has failed waits for its retry.
            if self.due_reads.due(&service).is_none() {
                self.due_reads.insert(service, now);
            }
        }
        None
    }

    /// The weeders that may delete a pod, in their order.
    fn responsible_for<'a>(&'a self, key: &'a NamespacedName, known: &CrashingPod) -> Vec<&'a ManagedWeeder> {
        let mut responsible: Vec<&ManagedWeeder> = in_namespace(&self.weeders, &key.namespace)
            .map(|(_, entry)| entry)
            .filter(|entry| entry.weeder.weeds(&known.pod.labels) && known.found_at < entry.weeder.ends_at)
            .collect();
        responsible.sort_by_key(|entry| (entry.weeder.first_sight, Reverse(entry.generation)));
        responsible
    }

    fn decide_by(&self, entry: &ManagedWeeder, known: &CrashingPod, attempt: &Attempt) -> WeederDecision {
        let deletes_from = entry.weeder.deletes_from;
        if attempt.asked_at < deletes_from {
            return WeederDecision::Wait(deletes_from);
        }
        let service_ready_since = match self.ready_since(entry, known, attempt) {
            Ok(since) => since,
            Err(decision) => return decision,
        };
        // It may be the successor of a pod whose deletion was not answered yet.
        let in_flight = self.in_flight.get(&ControllerKey::of(&known.pod));
        if in_flight.is_some_and(|in_flight| known.found_at > in_flight.since) {
            return WeederDecision::Wait(attempt.asked_at.after(WATCH_DELAY));
        }
        match self.attempts.permit(&known.pod, attempt) {
            DeletionPermit::Now => WeederDecision::Delete(service_ready_since),
            DeletionPermit::At(until) => WeederDecision::Wait(until),
            DeletionPermit::Exhausted => WeederDecision::LeaveAlone,
        }
    }

    /// Since when the service of a weeder is ready. The error is the decision if the service is not proven to have been
    /// unready when the pod crashed.
    fn ready_since(
        &self,
        entry: &ManagedWeeder,
        known: &CrashingPod,
        attempt: &Attempt,
    ) -> Result<UnixTime, WeederDecision> {
        let evidence = match &entry.proof {
            OutageProof::Observed => return Ok(entry.weeder.started_at),
            OutageProof::Unread(_) => return Err(WeederDecision::Read),
            OutageProof::Listing | OutageProof::Reading => return Err(WeederDecision::Nothing),
            OutageProof::Read(evidence) => evidence,
        };
        // A successor crashed after the service was ready, even if the clock of its node is behind.
        if self.attempts.is_successor(&known.pod, attempt) {
            return Err(WeederDecision::Nothing);
        }
        let proven = |at: &UnixTime| evidence.shows_recovery_after(*at, entry.weeder.started_at);
        match (known.pod.last_ended.filter(proven), evidence.ready_since()) {
            (Some(_), Some(since)) => Ok(since),
            _ => Err(WeederDecision::Nothing),
        }
    }
}
