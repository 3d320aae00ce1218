//! The decision about one pod in a crash loop.

use std::cmp::Reverse;

use super::crashing_pods::{CrashingPod, DeletionState};
use super::{ManagedWeeder, OutageProof, WATCH_DELAY, WeederManager};
use crate::controller::task::Deletion;
use crate::domain::attempts::{ControllerKey, DeletionPermit};
use crate::domain::namespaced_name::{NamespacedName, in_namespace};
use crate::domain::pods::may_delete_pods_of;
use watchdog_api::unix_time::UnixTime;

pub(super) enum PodDecision {
    Delete(Box<Deletion>),
    /// Decided again then; meanwhile the endpoint pods of these services are read, each not before its time.
    Later {
        again: Option<UnixTime>,
        reads: Vec<(NamespacedName, UnixTime)>,
    },
    LeaveAlone(NamespacedName),
    Nothing,
}

/// The decision of one weeder about a pod.
enum WeederDecision {
    /// Delete it: the service is ready since then.
    Delete(UnixTime),
    /// Not before then.
    Wait(UnixTime),
    /// Its service's endpoint pods must be read, not before then.
    Read(UnixTime),
    LeaveAlone,
    Nothing,
}

impl WeederManager {
    /// Of several weeders one that saw its service become ready comes first, and the youngest of those: its service is
    /// the last that the pod was missing.
    pub(super) fn decide(&self, key: &NamespacedName, now: UnixTime) -> PodDecision {
        let Some(known) = self
            .pods
            .get(key)
            .filter(|known| known.state == DeletionState::None)
        else {
            return PodDecision::Nothing;
        };
        let pod = &known.pod;
        let Some(crash) = pod
            .crash_loop()
            .filter(|_| may_delete_pods_of(pod.owner.as_ref(), &self.config))
        else {
            return PodDecision::Nothing;
        };
        if now < known.retry_at {
            return PodDecision::Later {
                again: Some(known.retry_at),
                reads: Vec::new(),
            };
        }
        let (mut wait, mut reads, mut exhausted) = (None::<UnixTime>, Vec::new(), None);
        for entry in self.responsible_for(key, known) {
            match self.decide_by(entry, known, now) {
                WeederDecision::Delete(service_ready_since) => {
                    let weeder = &entry.weeder;
                    return PodDecision::Delete(Box::new(Deletion {
                        pod: pod.clone(),
                        crash: crash.clone(),
                        key: weeder.key.clone(),
                        service_ready_since,
                        crashed_later: known.found_at > weeder.deletes_from,
                        waiting_since: known.found_at.max(weeder.deletes_from),
                        generation: entry.generation,
                        ends_at: weeder.ends_at,
                        found_at: known.found_at,
                        asked_at: now,
                    }));
                }
                WeederDecision::Wait(until) => wait = Some(wait.map_or(until, |wait| wait.min(until))),
                WeederDecision::Read(from) => reads.push((entry.weeder.key.clone(), from)),
                WeederDecision::LeaveAlone => exhausted = exhausted.or(Some(entry.weeder.key.clone())),
                WeederDecision::Nothing => {}
            }
        }
        match exhausted {
            Some(service) if wait.is_none() && reads.is_empty() => PodDecision::LeaveAlone(service),
            _ => PodDecision::Later { again: wait, reads },
        }
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

    fn decide_by(&self, entry: &ManagedWeeder, known: &CrashingPod, now: UnixTime) -> WeederDecision {
        let deletes_from = entry.weeder.deletes_from;
        if now < deletes_from {
            return WeederDecision::Wait(deletes_from);
        }
        let service_ready_since = match self.ready_since(entry, known, now) {
            Ok(since) => since,
            Err(decision) => return decision,
        };
        let controller = ControllerKey::of(&known.pod);
        // It may be the successor of a pod whose deletion was not answered yet.
        if self
            .in_flight
            .get(&controller)
            .is_some_and(|in_flight| known.found_at > in_flight.since)
        {
            return WeederDecision::Wait(now.after(WATCH_DELAY));
        }
        match self
            .attempts
            .permit(&controller, &known.pod, known.found_at, entry.generation, now)
        {
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
        now: UnixTime,
    ) -> Result<UnixTime, WeederDecision> {
        let evidence = match &entry.proof {
            OutageProof::Observed => return Ok(entry.weeder.started_at),
            OutageProof::Unread(_) => return Err(WeederDecision::Read(entry.reads_from.max(now))),
            OutageProof::Listing | OutageProof::Reading => return Err(WeederDecision::Nothing),
            OutageProof::Read(evidence) => evidence,
        };
        // A successor crashed after the service was ready, even if the clock of its node is behind.
        if self
            .attempts
            .is_successor(&known.pod, known.found_at, entry.generation)
        {
            return Err(WeederDecision::Nothing);
        }
        let proven = |at: &UnixTime| evidence.shows_recovery_after(*at, entry.weeder.started_at);
        match (known.pod.last_ended.filter(proven), evidence.ready_since()) {
            (Some(_), Some(since)) => Ok(since),
            _ => Err(WeederDecision::Nothing),
        }
    }
}
