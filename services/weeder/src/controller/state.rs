//! The services, recoveries and crash-looping pods of the seed, and the next of these pods that must be deleted.
//!
//! All of it follows from the watches and is the same on every replica; only the leader takes deletions from it. What
//! is not taken waits, so a replica that gains the lead acts on all recoveries that are still young.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use watchdog_api::unix_time::UnixTime;
use watchdog_api::weeder::WeederConfig;

use crate::domain::dependants::{Dependants, PodQuery};
use crate::domain::failure::RequestFailure;
use crate::domain::namespaced_name::{NamespacedName, in_namespace};
use crate::domain::pods::{CrashLoop, Pod};
use crate::domain::readiness::{Index, ReceivedBy, ServiceChange, ServiceState, Slice};
use crate::domain::recovery::Recovery;
use crate::domain::rule::{KeepReason, PodDecision, decide};
use crate::domain::schedule::Schedule;
use crate::domain::weeder::{Phase, StopReason, Weeder};

/// How long a weeder is shown after its end. No shorter than the minute in which recoveries of a service are counted
/// and successors judged.
const KEPT_AFTER_END: Duration = Duration::from_secs(60);

/// A pod whose deletion was refused because it changed waits this long for the watch to bring the change.
const WATCH_DELAY: Duration = Duration::from_secs(1);

/// The pause of a pod whose deletion could not be sent, because the lead was lost on the way.
const LEAD_PAUSE: Duration = Duration::from_millis(100);

/// A pod that must be deleted now, and why.
#[derive(Debug, Clone)]
pub(crate) struct Deletion {
    pub(crate) service: NamespacedName,
    pub(crate) recovery: Recovery,
    pub(crate) pod: Pod,
    pub(crate) crash: CrashLoop,
    /// Since when it could have been deleted.
    pub(crate) waiting_since: UnixTime,
    /// True if it crashed only after the recovery.
    pub(crate) crashed_later: bool,
}

/// An event besides requests, for logs, metrics and Events.
#[derive(Debug)]
pub(crate) enum Finding {
    HeldBack(NamespacedName),
    LeftAlone(NamespacedName, Pod, KeepReason),
    /// The successor of a deleted pod crashed within a minute.
    Useless(NamespacedName, Pod),
}

pub(crate) struct WeederState {
    config: WeederConfig,
    dependants: BTreeMap<Arc<str>, Arc<Dependants>>,
    index: Index,
    weeders: BTreeMap<NamespacedName, ManagedWeeder>,
    pods: BTreeMap<NamespacedName, KnownPod>,
    due_pods: Schedule<NamespacedName>,
    due_weeders: Schedule<NamespacedName>,
    /// The API server asked to wait until then.
    throttled_until: UnixTime,
    changed_services: BTreeSet<NamespacedName>,
    changed_weeders: BTreeSet<NamespacedName>,
    findings: Vec<Finding>,
    pub(crate) watched_services: watch::Sender<BTreeSet<Arc<str>>>,
    pub(crate) pod_queries: watch::Sender<BTreeSet<PodQuery>>,
}

struct ManagedWeeder {
    weeder: Weeder,
    /// When the last weeders of the service became active.
    recent: Vec<UnixTime>,
}

/// A dependant in a crash loop.
struct KnownPod {
    pod: Pod,
    seen_at: UnixTime,
    progress: DeletionProgress,
    /// Failed deletions in a row.
    failures: u32,
    retry_at: UnixTime,
}

/// A hint that saves requests: the preconditions of a deletion keep it from being done twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeletionProgress {
    None,
    InFlight,
    Deleted,
    /// In mode observe, for the recoveries so far.
    KeptBack,
}

// === impl WeederState: configuration and services ===

impl WeederState {
    pub(crate) fn new(config: &WeederConfig) -> Self {
        let mut state = Self {
            config: config.clone(),
            dependants: BTreeMap::new(),
            index: Index::default(),
            weeders: BTreeMap::new(),
            pods: BTreeMap::new(),
            due_pods: Schedule::default(),
            due_weeders: Schedule::default(),
            throttled_until: UnixTime::default(),
            changed_services: BTreeSet::new(),
            changed_weeders: BTreeSet::new(),
            findings: Vec::new(),
            watched_services: watch::Sender::default(),
            pod_queries: watch::Sender::default(),
        };
        state.reconfigure(config, UnixTime::default());
        state
    }

    pub(crate) fn reconfigure(&mut self, config: &WeederConfig, now: UnixTime) {
        self.config = config.clone();
        let services = config.services.iter();
        self.dependants = services
            .map(|(service, selectors)| (service.as_str().into(), Arc::new(Dependants::new(selectors))))
            .collect();
        for (key, managed) in &mut self.weeders {
            if !managed.weeder.is_live() {
                continue;
            }
            match self.dependants.get(&key.name) {
                Some(dependants) => managed.weeder.dependants = dependants.clone(),
                None => {
                    managed.weeder.cancel(StopReason::NotConfigured, now);
                    self.due_weeders.insert(key.clone(), now.after(KEPT_AFTER_END));
                }
            }
            self.changed_weeders.insert(key.clone());
        }
        let dependants = &self.dependants;
        let changes = self
            .index
            .keep_services(|service| dependants.contains_key(service), now);
        self.changed_services
            .extend(changes.into_iter().map(|change| change.key));
        let others = self
            .pods
            .extract_if(.., |_, known| !is_dependant(dependants, &known.pod));
        for (key, _) in others {
            self.due_pods.remove(&key);
        }
        for key in self.pods.keys() {
            self.due_pods.expedite(key.clone(), now);
        }
        let all = self
            .dependants
            .values()
            .flat_map(|dependants| dependants.queries().cloned());
        let queries = PodQuery::plan(all.collect());
        let services = self.dependants.keys().cloned().collect();
        self.pod_queries.send_if_modified(|known| replace(known, queries));
        self.watched_services
            .send_if_modified(|known| replace(known, services));
    }

    pub(crate) fn slice_applied(&mut self, slice: Slice, now: UnixTime) {
        let changes = self.index.apply(slice, now);
        self.services_changed(changes, ReceivedBy::Watch, now);
    }

    pub(crate) fn slice_removed(&mut self, key: &NamespacedName, now: UnixTime) {
        let changes = self.index.remove(key, now);
        self.services_changed(changes, ReceivedBy::Watch, now);
    }

    /// A list of the slices of a service, or of all services, is complete.
    pub(crate) fn slices_listed(&mut self, service: Option<&str>, slices: Vec<Slice>, now: UnixTime) {
        let changes = self.index.list(service, slices, now);
        self.services_changed(changes, ReceivedBy::List, now);
    }

    fn services_changed(&mut self, changes: Vec<ServiceChange>, received: ReceivedBy, now: UnixTime) {
        for change in changes {
            let key = change.key.clone();
            self.changed_services.insert(key.clone());
            let recent = self.weeders.get(&key).map_or(&[][..], |managed| &managed.recent);
            if let Some(recovery) = Recovery::of(&change, received, recent, &self.config, now) {
                if Recovery::is_held_back(recent, recovery.at) {
                    self.findings.push(Finding::HeldBack(key.clone()));
                }
                self.start(key, recovery, now);
            } else if !change.is_ready() {
                self.cancel(&key, now);
            }
        }
    }

    fn start(&mut self, key: NamespacedName, recovery: Recovery, now: UnixTime) {
        let Some(dependants) = self.dependants.get(&key.name) else {
            return;
        };
        let weeder = Weeder::new(key.clone(), recovery, dependants.clone());
        let recent = self
            .weeders
            .remove(&key)
            .map_or_else(Vec::new, |managed| managed.recent);
        self.weeders.insert(key.clone(), ManagedWeeder { weeder, recent });
        self.advance_weeder(&key, now);
    }

    fn cancel(&mut self, key: &NamespacedName, now: UnixTime) {
        if let Some(managed) = self.weeders.get_mut(key)
            && managed.weeder.is_live()
        {
            managed.weeder.cancel(StopReason::NotReady, now);
            self.due_weeders.insert(key.clone(), now.after(KEPT_AFTER_END));
            self.changed_weeders.insert(key.clone());
        }
    }

    /// Starts, ends and forgets the weeders whose time it is.
    pub(crate) fn advance(&mut self, now: UnixTime) {
        while let Some(key) = self.due_weeders.pop_due(now) {
            self.advance_weeder(&key, now);
        }
    }

    fn advance_weeder(&mut self, key: &NamespacedName, now: UnixTime) {
        let Some(managed) = self.weeders.get_mut(key) else {
            return;
        };
        self.changed_weeders.insert(key.clone());
        let (recovery, weeder) = (managed.weeder.recovery, &mut managed.weeder);
        let mut due = recovery.deletes_from;
        if weeder.phase == Phase::Queued && recovery.deletes_from <= now {
            weeder.activate();
            Recovery::note(&mut managed.recent, now);
            due = recovery.ends_at.after(Duration::from_micros(1));
            self.schedule_namespace(&key.namespace, now);
        } else if weeder.phase == Phase::Active && recovery.ends_at < now {
            weeder.end();
            due = now.after(KEPT_AFTER_END);
        } else if weeder.phase != Phase::Queued {
            self.weeders.remove(key);
            return;
        }
        self.due_weeders.insert(key.clone(), due);
    }

    fn schedule_namespace(&mut self, namespace: &str, now: UnixTime) {
        let first = NamespacedName::new(namespace, "");
        let pods = self.pods.range_mut(first..);
        for (key, known) in pods.take_while(|(key, _)| *key.namespace == *namespace) {
            if known.progress == DeletionProgress::KeptBack {
                known.progress = DeletionProgress::None;
            }
            self.due_pods.expedite(key.clone(), now.max(known.retry_at));
        }
    }
}

// === impl WeederState: pods and deletions ===

impl WeederState {
    /// A pod is new, changed or seen again.
    pub(crate) fn pod_applied(&mut self, pod: Pod, now: UnixTime) {
        let key = pod.key.clone();
        if pod.crash_loop().is_none() || !is_dependant(&self.dependants, &pod) {
            return self.forget_pod(&key);
        }
        self.judge_by(&pod);
        let same = self.pods.remove(&key).filter(|known| known.pod.uid == pod.uid);
        let known = match same {
            Some(known) => KnownPod { pod, ..known },
            None => KnownPod {
                pod,
                seen_at: now,
                progress: DeletionProgress::None,
                failures: 0,
                retry_at: now,
            },
        };
        self.due_pods.expedite(key.clone(), now.max(known.retry_at));
        self.pods.insert(key, known);
    }

    /// A pod is gone from a watch. Another one may still have it, if its labels have changed.
    pub(crate) fn pod_removed(&mut self, key: &NamespacedName, query: &PodQuery) {
        if self
            .pods
            .get(key)
            .is_some_and(|known| self.sees(query, &known.pod))
        {
            self.forget_pod(key);
        }
    }

    /// The list of a watch is complete: of the pods that it sees, these exist and no others.
    pub(crate) fn pods_synced(&mut self, query: &PodQuery, live: &BTreeSet<NamespacedName>) {
        let is_gone = |(key, known): &(&NamespacedName, &KnownPod)| {
            !live.contains(*key) && self.sees(query, &known.pod)
        };
        let gone: Vec<_> = self
            .pods
            .iter()
            .filter(is_gone)
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.forget_pod(&key);
        }
    }

    fn sees(&self, query: &PodQuery, pod: &Pod) -> bool {
        match query {
            PodQuery::All => true,
            PodQuery::Labels(labels) => {
                let mut all = self.dependants.values();
                all.any(|dependants| dependants.include_by(labels, &pod.labels))
            }
        }
    }

    fn forget_pod(&mut self, key: &NamespacedName) {
        self.pods.remove(key);
        self.due_pods.remove(key);
    }

    /// Takes the next pod that must be deleted now.
    pub(crate) fn next(&mut self, now: UnixTime) -> Option<Deletion> {
        if now < self.throttled_until {
            return None;
        }
        while let Some(key) = self.due_pods.pop_due(now) {
            let Some(deletion) = self.decide(&key, now) else {
                continue;
            };
            if let Some(known) = self.pods.get_mut(&key) {
                known.progress = DeletionProgress::InFlight;
            }
            return Some(deletion);
        }
        None
    }

    /// When [`WeederState::next`] may have one.
    pub(crate) fn next_due(&self) -> Option<UnixTime> {
        let due = self.due_pods.next_due();
        due.map(|due| due.max(self.throttled_until))
    }

    /// When [`WeederState::advance`] has something to do.
    pub(crate) fn next_weeder_due(&self) -> Option<UnixTime> {
        self.due_weeders.next_due()
    }

    /// Asks the rule about a pod, for each weeder of its namespace.
    fn decide(&mut self, key: &NamespacedName, now: UnixTime) -> Option<Deletion> {
        let known = self
            .pods
            .get(key)
            .filter(|known| known.progress == DeletionProgress::None)?;
        let (pod, crash) = (known.pod.clone(), known.pod.crash_loop()?.clone());
        let (seen_at, mut kept) = (known.seen_at, Vec::new());
        for (service, ManagedWeeder { weeder, .. }) in in_namespace(&self.weeders, &key.namespace) {
            if weeder.phase != Phase::Active {
                continue;
            }
            match decide(&pod, &weeder.dependants, &weeder.recovery, &self.config, now) {
                PodDecision::Delete => {
                    let recovery = weeder.recovery;
                    return Some(Deletion {
                        service: service.clone(),
                        recovery,
                        pod,
                        crash,
                        waiting_since: seen_at.max(recovery.at),
                        crashed_later: seen_at > recovery.at,
                    });
                }
                PodDecision::Keep(reason) => kept.push((service.clone(), reason)),
                PodDecision::NotConcerned => {}
            }
        }
        for (service, reason) in kept {
            if let Some(managed) = self.weeders.get_mut(&service)
                && managed.weeder.leave_alone(&pod, &crash, reason, now)
            {
                self.findings
                    .push(Finding::LeftAlone(service.clone(), pod.clone(), reason));
                self.changed_weeders.insert(service);
            }
        }
        None
    }

    /// True if the rule still says so of this very state of the pod, and the API server does not throttle.
    pub(crate) fn is_current(&self, deletion: &Deletion, now: UnixTime) -> bool {
        let pod = self.pods.get(&deletion.pod.key).map(|known| &known.pod);
        let weeder = self.weeders.get(&deletion.service).map(|managed| &managed.weeder);
        let weeder = weeder.filter(|weeder| weeder.phase == Phase::Active);
        now >= self.throttled_until
            && pod == Some(&deletion.pod)
            && weeder.is_some_and(|weeder| {
                weeder.recovery == deletion.recovery
                    && decide(
                        &deletion.pod,
                        &weeder.dependants,
                        &weeder.recovery,
                        &self.config,
                        now,
                    ) == PodDecision::Delete
            })
    }

    /// A deletion was not sent. The pod is looked at again.
    pub(crate) fn put_back(&mut self, deletion: &Deletion, now: UnixTime) {
        if let Some(known) = self.known(&deletion.pod) {
            known.progress = DeletionProgress::None;
            self.due_pods
                .insert(deletion.pod.key.clone(), now.after(LEAD_PAUSE));
        }
    }

    /// A deletion was answered, or kept back in mode observe.
    pub(crate) fn answered(
        &mut self,
        deletion: &Deletion,
        answer: Result<(), &RequestFailure>,
        kept_back: bool,
        now: UnixTime,
    ) {
        let key = &deletion.pod.key;
        if let Err(failure @ RequestFailure::Throttled(_)) = answer {
            // It would refuse the others too.
            self.throttled_until = self.throttled_until.max(now.after(failure.pause(1)));
        }
        if let Some(known) = self.known(&deletion.pod) {
            match answer {
                Ok(()) if kept_back => known.progress = DeletionProgress::KeptBack,
                Ok(()) => known.progress = DeletionProgress::Deleted,
                // The watch brings it back if that is not true.
                Err(RequestFailure::Gone) => self.forget_pod(key),
                Err(failure) => {
                    known.progress = DeletionProgress::None;
                    known.failures = known.failures.saturating_add(1);
                    known.retry_at = now.after(failure.pause(known.failures));
                    let unchanged = known.pod.resource_version == deletion.pod.resource_version;
                    let again = match failure {
                        RequestFailure::Changed if unchanged => known.retry_at.max(now.after(WATCH_DELAY)),
                        _ => known.retry_at,
                    };
                    self.due_pods.insert(key.clone(), again);
                }
            }
        }
        if let Some(managed) = self.weeders.get_mut(&deletion.service)
            && managed.weeder.recovery == deletion.recovery
        {
            let (pod, crash) = (&deletion.pod, &deletion.crash);
            managed.weeder.record(pod, crash, answer, kept_back, now);
            self.changed_weeders.insert(deletion.service.clone());
        }
        // The watch may bring a successor that crashes before the answer about its predecessor comes.
        let successors = in_namespace(&self.pods, &key.namespace);
        let successors: Vec<_> = successors.map(|(_, known)| known.pod.clone()).collect();
        for successor in successors {
            self.judge_by(&successor);
        }
    }

    fn known(&mut self, pod: &Pod) -> Option<&mut KnownPod> {
        let known = self.pods.get_mut(&pod.key);
        known.filter(|known| known.pod.uid == pod.uid)
    }

    fn judge_by(&mut self, pod: &Pod) {
        let first = NamespacedName::new(pod.key.namespace.clone(), "");
        let weeders = self.weeders.range_mut(first..);
        for (service, managed) in weeders.take_while(|(key, _)| key.namespace == pod.key.namespace) {
            if managed.weeder.judge_by(pod) {
                self.changed_weeders.insert(service.clone());
                self.findings.push(Finding::Useless(service.clone(), pod.clone()));
            }
        }
    }
}

// === impl WeederState: what is shown ===

impl WeederState {
    /// The services that changed since the last call; none stands for a removal.
    pub(crate) fn take_changed_services(&mut self) -> Vec<(NamespacedName, Option<ServiceState>)> {
        let changed = std::mem::take(&mut self.changed_services).into_iter();
        changed
            .map(|key| {
                let state = self.index.get(&key).copied();
                (key, state)
            })
            .collect()
    }

    /// The weeders that changed since the last call; none stands for a removal.
    pub(crate) fn take_changed_weeders(&mut self) -> Vec<(NamespacedName, Option<Weeder>)> {
        let changed = std::mem::take(&mut self.changed_weeders).into_iter();
        changed
            .map(|key| {
                let weeder = self.weeders.get(&key).map(|managed| managed.weeder.clone());
                (key, weeder)
            })
            .collect()
    }

    pub(crate) fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    #[cfg(test)]
    fn has_service(&self, key: &NamespacedName) -> bool {
        self.index.get(key).is_some()
    }

    pub(crate) fn count(&self, phase: Phase) -> usize {
        let weeders = self.weeders.values();
        weeders.filter(|managed| managed.weeder.phase == phase).count()
    }

    pub(crate) fn crashing_pods(&self) -> usize {
        self.pods.len()
    }

    /// Pods whose deletion is under way, and those that wait for a decision.
    pub(crate) fn pending_deletions(&self) -> usize {
        let in_flight = |known: &&KnownPod| known.progress == DeletionProgress::InFlight;
        self.pods.values().filter(in_flight).count() + self.due_pods.len()
    }
}

fn is_dependant(dependants: &BTreeMap<Arc<str>, Arc<Dependants>>, pod: &Pod) -> bool {
    dependants.values().any(|of| of.include(&pod.labels))
}

fn replace<T: PartialEq>(known: &mut T, new: T) -> bool {
    let changed = *known != new;
    *known = new;
    changed
}

#[cfg(test)]
mod tests;
