//! Schedules the API server requests for all weeders and all pods in a crash loop.
//!
//! [`WeederManager`] is one schedule without I/O, not a task for each weeder, because its bounds hold over all weeders
//! (ADR 0023): how often the pods of a controller are deleted, deletions before anything else, one pause for all when
//! the API server throttles. The worker takes a task when it has room for a request, and reports the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::weeder::WeederConfig;

use super::task::{EndpointRead, Finding, Task};
use crate::domain::attempts::{Attempts, ControllerKey};
use crate::domain::dependants::Dependants;
use crate::domain::evidence::OutageEvidence;
use crate::domain::flapping::Recoveries;
use crate::domain::namespaced_name::{NamespacedName, in_namespace};
use crate::domain::schedule::Schedule;
use crate::domain::weeder::{Phase, StopReason, Weeder};
use watchdog_api::unix_time::UnixTime;

mod answers;
mod crashing_pods;
mod decision;

use crashing_pods::{CrashingPod, DeletionState};

/// A weeder is forgotten this long after its end.
pub(crate) const KEPT_AFTER_END: Duration = Duration::from_secs(60);

/// How often a weeder whose time is over looks whether pods still wait for a request.
const BACKLOG_CHECK: Duration = Duration::from_secs(1);

/// A pod that changed before its deletion arrived is tried again this much later, unless its watch brings the newer
/// state before.
const WATCH_DELAY: Duration = Duration::from_secs(1);

/// How often a replica that may not act asks whether it may.
const PERMIT_CHECK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct WeederManager {
    weeders: BTreeMap<NamespacedName, ManagedWeeder>,
    pods: BTreeMap<NamespacedName, CrashingPod>,
    attempts: Attempts,
    config: WeederConfig,
    due_pods: Schedule<NamespacedName>,
    due_reads: Schedule<NamespacedName>,
    // When each weeder activates, ends or is forgotten.
    due_phases: Schedule<NamespacedName>,
    in_flight: BTreeMap<ControllerKey, InFlight>,
    // No request is made before then.
    requests_from: UnixTime,
    generations: u64,
    changed: BTreeSet<NamespacedName>,
    findings: Vec<Finding>,
}

#[derive(Debug)]
struct ManagedWeeder {
    weeder: Weeder,
    // Distinguishes it from the weeder that it replaced.
    generation: u64,
    proof: OutageProof,
    recoveries: Recoveries,
    failed_reads: u32,
}

/// How a weeder knows that its service was not ready before.
#[derive(Debug)]
pub(crate) enum OutageProof {
    /// The service was seen to become ready.
    Observed,
    /// It was ready when it was first seen, in a list that is not complete: it may have more endpoints.
    Listing,
    /// It was ready when it was first seen; these pods behind its endpoints say since when, and are read when it
    /// matters.
    Unread(BTreeSet<Arc<str>>),
    Reading,
    Read(OutageEvidence),
}

/// Deletions of the pods of a controller that are under way.
#[derive(Debug)]
struct InFlight {
    // When the first of them left.
    since: UnixTime,
    requests: usize,
}

// === impl WeederManager ===

impl WeederManager {
    pub(crate) fn new(config: &WeederConfig) -> Self {
        Self {
            weeders: BTreeMap::new(),
            pods: BTreeMap::new(),
            attempts: Attempts::default(),
            config: config.clone(),
            due_pods: Schedule::default(),
            due_reads: Schedule::default(),
            due_phases: Schedule::default(),
            in_flight: BTreeMap::new(),
            requests_from: UnixTime::default(),
            generations: 0,
            changed: BTreeSet::new(),
            findings: Vec::new(),
        }
    }

    /// Durations hold for weeders that start from now on, kinds for all.
    pub(crate) fn reconfigure(&mut self, config: &WeederConfig, now: UnixTime) {
        if self.config != *config {
            self.config = config.clone();
            for key in self.pods.keys() {
                self.due_pods.expedite(key.clone(), now);
            }
        }
    }

    /// A service is ready: a new weeder, in place of one that may be there.
    pub(crate) fn start(
        &mut self,
        key: NamespacedName,
        dependants: Arc<Dependants>,
        proof: OutageProof,
        now: UnixTime,
    ) {
        let old = self.weeders.remove(&key);
        let was_flapping = old.as_ref().is_some_and(|old| old.recoveries.was_flapping());
        // A service that is seen for the first time has not come back.
        let recovered =
            matches!(proof, OutageProof::Observed) || old.as_ref().is_some_and(|old| old.weeder.is_paused());
        let mut recoveries = old.map(|old| old.recoveries).unwrap_or_default();
        if recovered {
            recoveries.add(now);
        }
        if recoveries.is_flapping(now) && !was_flapping {
            self.findings.push(Finding::Flapping(key.clone()));
        }
        self.generations += 1;
        let first_sight = !matches!(proof, OutageProof::Observed);
        let pause = recoveries.pause(self.config.ready_for, now);
        let weeder = Weeder::new(
            key.clone(),
            dependants,
            first_sight,
            pause,
            self.config.watch_duration,
            now,
        );
        let due = if pause.is_zero() {
            weeder.ends_at
        } else {
            weeder.deletes_from
        };
        self.due_phases.insert(key.clone(), due);
        let mut entry = ManagedWeeder {
            weeder,
            generation: self.generations,
            proof: OutageProof::Observed,
            recoveries,
            failed_reads: 0,
        };
        entry.set_proof(proof);
        self.weeders.insert(key.clone(), entry);
        self.due_reads.remove(&key);
        self.schedule_namespace(&key.namespace, now);
        self.changed.insert(key);
    }

    /// The list of endpoints is complete: `proof` is about each service that was ready in it.
    pub(crate) fn endpoints_listed(&mut self, proof: impl Fn(&NamespacedName) -> OutageProof, now: UnixTime) {
        let mut listed = Vec::new();
        for (key, entry) in &mut self.weeders {
            if matches!(entry.proof, OutageProof::Listing) {
                entry.set_proof(proof(key));
                listed.push(key.clone());
            }
        }
        for key in listed {
            self.schedule_namespace(&key.namespace, now);
            self.changed.insert(key);
        }
    }

    /// A service is not ready: its weeder deletes nothing until the service is ready again.
    pub(crate) fn pause(&mut self, key: &NamespacedName) {
        if let Some(entry) = self.weeders.get_mut(key).filter(|entry| entry.weeder.is_live())
            && entry.weeder.pause()
        {
            self.changed.insert(key.clone());
        }
    }

    pub(crate) fn cancel(&mut self, key: &NamespacedName, why: StopReason, now: UnixTime) {
        let weeder = self.weeders.get(key).map(|entry| &entry.weeder);
        if weeder.is_some_and(Weeder::is_live) {
            self.finish(key, now, |weeder| weeder.cancel(why, now));
        }
    }

    pub(crate) fn cancel_namespace(&mut self, namespace: &str, why: StopReason, now: UnixTime) {
        let weeders = in_namespace(&self.weeders, namespace);
        let keys: Vec<_> = weeders.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.cancel(&key, why, now);
        }
    }

    pub(crate) fn reselect(&mut self, key: &NamespacedName, dependants: &Arc<Dependants>, now: UnixTime) {
        let live = self.weeders.get_mut(key).filter(|entry| entry.weeder.is_live());
        if let Some(entry) = live.filter(|entry| entry.weeder.dependants != *dependants) {
            entry.weeder.dependants = dependants.clone();
            self.changed.insert(key.clone());
            self.schedule_namespace(&key.namespace, now);
        }
    }

    pub(crate) fn live(&self) -> Vec<NamespacedName> {
        let live = self.weeders.iter().filter(|(_, entry)| entry.weeder.is_live());
        live.map(|(key, _)| key.clone()).collect()
    }

    /// Activates, ends and forgets what is due.
    pub(crate) fn expire(&mut self, now: UnixTime) {
        while let Some(key) = self.due_phases.pop_due(now) {
            let waits = self.has_backlog(&key);
            let Some(entry) = self.weeders.get_mut(&key) else {
                continue;
            };
            if entry.weeder.phase == Phase::Queued && now < entry.weeder.ends_at {
                // One that is paused waits for another to take its place.
                if entry.weeder.is_weeding() {
                    entry.weeder.activate();
                }
                self.due_phases.insert(key.clone(), entry.weeder.ends_at);
            } else if entry.weeder.is_live() && waits {
                self.due_phases.insert(key, now.after(BACKLOG_CHECK));
                continue;
            } else if entry.weeder.is_live() {
                self.finish(&key, now, Weeder::end);
            } else {
                self.weeders.remove(&key);
            }
            self.changed.insert(key);
        }
        let useful = self.attempts.expire(now);
        if useful > 0 {
            self.findings.push(Finding::Useful(useful));
        }
    }

    /// The next request, if one is due.
    pub(crate) fn next(&mut self, now: UnixTime) -> Option<Task> {
        self.expire(now);
        if now < self.requests_from {
            return None;
        }
        while let Some(key) = self.due_pods.pop_due(now) {
            if let Some(deletion) = self.decide(key, now) {
                if let Some(pod) = self.pods.get_mut(&deletion.pod.key) {
                    pod.state = DeletionState::InFlight;
                }
                let first = InFlight {
                    since: now,
                    requests: 0,
                };
                let controller = ControllerKey::of(&deletion.pod);
                self.in_flight.entry(controller).or_insert(first).requests += 1;
                return Some(Task::Delete(Box::new(deletion)));
            }
        }
        while let Some(key) = self.due_reads.pop_due(now) {
            if let Some(entry) = self
                .weeders
                .get_mut(&key)
                .filter(|entry| entry.weeder.is_weeding())
                && let OutageProof::Unread(pods) = &mut entry.proof
            {
                let pods = std::mem::take(pods);
                entry.proof = OutageProof::Reading;
                let generation = entry.generation;
                return Some(Task::ReadEndpoints(EndpointRead {
                    key,
                    pods,
                    generation,
                }));
            }
        }
        None
    }

    /// When [`WeederManager::next`] must be asked again; requests count only if there is `room` for them.
    pub(crate) fn next_due(&self, room: bool) -> Option<UnixTime> {
        let requests = [self.due_pods.next_due(), self.due_reads.next_due()];
        let requests = requests.into_iter().flatten().filter(|_| room);
        let requests = requests.map(|due| due.max(self.requests_from));
        let changes = [self.due_phases.next_due(), self.attempts.next_due()];
        requests.chain(changes.into_iter().flatten()).min()
    }

    /// The changes since the last call; none stands for a removal.
    pub(crate) fn take_changed(&mut self) -> Vec<(NamespacedName, Option<Weeder>)> {
        let shown = |key: NamespacedName| {
            let weeder = self.weeders.get(&key).map(|entry| entry.weeder.clone());
            (key, weeder)
        };
        std::mem::take(&mut self.changed).into_iter().map(shown).collect()
    }

    pub(crate) fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    pub(crate) fn count(&self, phase: Phase) -> usize {
        let weeders = self.weeders.values();
        weeders.filter(|entry| entry.weeder.phase == phase).count()
    }

    pub(crate) fn crashing_pods(&self) -> usize {
        self.pods.len()
    }

    /// Pods that wait to be deleted or are being deleted.
    pub(crate) fn pending_deletions(&self) -> usize {
        let in_flight = |pod: &&CrashingPod| pod.state == DeletionState::InFlight;
        self.due_pods.len() + self.pods.values().filter(in_flight).count()
    }

    /// True when a pod has been due since before the end of the weeder. Only requests of ours keep it waiting, so the
    /// weeder does not end before the pod has had its turn.
    fn has_backlog(&self, service: &NamespacedName) -> bool {
        let Some(ManagedWeeder { weeder, .. }) = self.weeders.get(service) else {
            return false;
        };
        let waits = |(key, known): (&NamespacedName, &CrashingPod)| {
            self.due_pods.due(key).is_some_and(|due| due < weeder.ends_at) && weeder.weeds(&known.pod.labels)
        };
        in_namespace(&self.pods, &service.namespace).any(waits)
    }

    fn schedule_namespace(&mut self, namespace: &str, now: UnixTime) {
        for (key, _) in in_namespace(&self.pods, namespace) {
            self.due_pods.expedite(key.clone(), now);
        }
    }

    fn finish(&mut self, key: &NamespacedName, now: UnixTime, how: impl FnOnce(&mut Weeder)) {
        let Some(entry) = self.weeders.get_mut(key) else {
            return;
        };
        how(&mut entry.weeder);
        self.due_phases.insert(key.clone(), now.after(KEPT_AFTER_END));
        self.changed.insert(key.clone());
    }
}

// === impl ManagedWeeder ===

impl ManagedWeeder {
    fn set_proof(&mut self, proof: OutageProof) {
        if let OutageProof::Read(evidence) = &proof
            && evidence.ready_since().is_none()
        {
            self.weeder.message = format!(
                "Service {} was ready already, and its endpoints do not say since when: nothing is deleted.",
                self.weeder.key.name
            );
        }
        self.proof = proof;
    }
}

#[cfg(test)]
mod tests;
