//! The services, recoveries and crash-looping pods of the seed.
//!
//! All of it follows from the watches and is the same on every replica; only the leader takes deletions from it. What
//! is not taken stays, so a replica that gains the lead acts on all recoveries that are still young.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tracing::Span;
use watchdog_api::selector::{Selector, SelectorExt};
use watchdog_api::unix_time::UnixTime;
use watchdog_api::weeder::WeederConfig;
use watchdog_kube::events::Notice;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::work_queue::WorkQueue;
use watchdog_watch_stream::server::StreamStore;

use super::deletion::Deletion;
use super::notices;
use crate::cluster::watches::WatchUpdate;
use crate::domain::deletion_result::DeletionResult;
use crate::domain::kept_back::KeptBackPods;
use crate::domain::namespaced_name::{NamespacedName, in_namespace, in_namespace_mut};
use crate::domain::pods::Pod;
use crate::domain::readiness::{Endpoints, ServiceState, Slice};
use crate::domain::recovery::Recovery;
use crate::domain::rule::PodDecision;
use crate::domain::weeder::{Phase, Weeder};
use crate::metrics::{self, WeederEnd};

/// The state behind a lock, which is never held across an await.
pub(crate) struct SharedState {
    state: Mutex<WeederState>,
    clock: Clock,
}

pub(crate) struct WeederState {
    config: Arc<WeederConfig>,
    slices: BTreeMap<NamespacedName, Slice>,
    pods: BTreeMap<NamespacedName, KnownPod>,
    kept_back: KeptBackPods,
    pub(crate) services: StreamStore<NamespacedName, ServiceState>,
    pub(crate) weeders: StreamStore<NamespacedName, Weeder>,
    /// The namespaces in which something may have to be done.
    pub(crate) queue: Arc<WorkQueue>,
    /// The API server asked to wait until then.
    throttled_until: UnixTime,
    /// Kubernetes Events for the leader to publish.
    notices: Vec<Notice>,
}

/// A dependant in a crash loop.
struct KnownPod {
    pod: Arc<Pod>,
    seen_at: UnixTime,
    /// When it may be deleted; none if it was taken for a recovery and nothing failed. A hint that saves requests: the
    /// preconditions of a deletion keep it from being done twice.
    not_before: Option<UnixTime>,
    /// Failed deletions in a row.
    failures: u32,
}

// === impl SharedState ===

impl SharedState {
    pub(crate) fn new(config: Arc<WeederConfig>) -> Self {
        Self {
            state: Mutex::new(WeederState::new(config)),
            clock: Clock::start(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, WeederState> {
        self.state.lock()
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime(self.clock.now_micros())
    }
}

// === impl WeederState: services ===

impl WeederState {
    fn new(config: Arc<WeederConfig>) -> Self {
        Self {
            config,
            slices: BTreeMap::new(),
            pods: BTreeMap::new(),
            kept_back: KeptBackPods::default(),
            services: StreamStore::new(),
            weeders: StreamStore::new(),
            queue: Arc::default(),
            throttled_until: UnixTime::default(),
            notices: Vec::new(),
        }
    }

    /// Queues all that a new leader must look at.
    pub(crate) fn queue_all(&self) {
        for key in self.weeders.keys() {
            self.queue.add(&key.namespace);
        }
    }

    /// Takes over another configuration. What is known of the services and pods that it names stays, so a service that
    /// stayed ready has not recovered. The lists with which the watches begin anew show what has changed since.
    pub(crate) fn configure(&mut self, config: Arc<WeederConfig>) {
        let is_named = |service: &str| config.services.contains_key(service);
        self.slices
            .retain(|_, slice| slice.service.as_deref().is_some_and(is_named));
        let services = self.services.keys().into_iter();
        services
            .filter(|key| !is_named(&key.name))
            .for_each(|key| self.services.remove(&key));
        for (key, weeder) in self.weeders.snapshot() {
            let mut weeder = Weeder::clone(&weeder);
            if !is_named(&key.name) {
                if weeder.is_live() {
                    weeder.phase = Phase::Cancelled;
                    report_end(&key, &weeder);
                }
                self.weeders.remove(&key);
            } else if weeder.is_live() {
                weeder.recovery.configure(&config);
                self.weeders.upsert(key, weeder);
            }
        }
        let is_dependant = |pod: &Pod| {
            let mut selectors = config.services.values().flatten();
            selectors.any(|selector| selector.matches(&pod.labels))
        };
        self.pods.retain(|_, known| is_dependant(&known.pod));
        self.config = config;
    }

    /// Starts, ends and forgets the weeders whose time it is, and queues what is due.
    pub(crate) fn tick(&mut self, now: UnixTime) {
        self.kept_back.forget_old(self.config.watch_duration, now);
        for (key, weeder) in self.weeders.snapshot() {
            if weeder.is_outdated(now) {
                self.weeders.remove(&key);
            } else if weeder.next_phase(now).is_some() {
                self.advance(&key, Weeder::clone(&weeder), now);
            }
            if self.due(&key.namespace, now).is_some() {
                self.queue.add(&key.namespace);
            }
        }
    }

    /// Takes up what the watch brings that sees the slices of this service, or of all.
    pub(crate) fn slices_updated(
        &mut self,
        watched: Option<&str>,
        update: WatchUpdate<Slice>,
        now: UnixTime,
    ) {
        let (mut affected, mut stayed_ready) = (BTreeSet::new(), BTreeSet::new());
        let in_list = matches!(update, WatchUpdate::Listed(_));
        let service_of = |slice: &Slice| {
            let service = slice.service.clone()?;
            Some(NamespacedName::new(slice.key.namespace.clone(), service))
        };
        let applied = match update {
            WatchUpdate::Applied(slice) => vec![slice],
            WatchUpdate::Removed(key) => {
                affected.extend(self.slices.remove(&key).as_ref().and_then(service_of));
                Vec::new()
            }
            WatchUpdate::Listed(listed) => {
                let live: BTreeSet<_> = listed.iter().map(|slice| slice.key.clone()).collect();
                let is_gone = |key: &NamespacedName, slice: &mut Slice| {
                    watched.is_none_or(|service| slice.service.as_deref() == Some(service))
                        && !live.contains(key)
                };
                let gone = self.slices.extract_if(.., is_gone);
                affected.extend(gone.filter_map(|(_, slice)| service_of(&slice)));
                listed
            }
            WatchUpdate::Restored => {
                // New pods have revisions that are below those of the recoveries.
                for (key, weeder) in self.weeders.snapshot() {
                    let mut weeder = Weeder::clone(&weeder);
                    if let Some(write) = &mut weeder.recovery.write {
                        write.version = 0;
                    }
                    self.weeders.upsert(key, weeder);
                }
                Vec::new()
            }
        };
        for slice in applied {
            let service = service_of(&slice);
            affected.extend(service.clone());
            let before = self.slices.get(&slice.key);
            if before.is_some_and(|before| slice.stayed_ready_since(before)) {
                stayed_ready.extend(service);
            }
            // It may have moved from one service to another.
            let before = self.slices.insert(slice.key.clone(), slice);
            affected.extend(before.as_ref().and_then(service_of));
        }
        for service in affected {
            self.queue.add(&service.namespace);
            let shown = self.services.get(&service).map(|shown| *shown);
            let before = match in_list {
                true => shown.and_then(|shown| shown.known_before_list(stayed_ready.contains(&service))),
                false => shown,
            };
            self.service_changed(service, before, in_list, now);
        }
    }

    /// `before` is none if the service had no slice, or it is not known how it was.
    fn service_changed(
        &mut self,
        key: NamespacedName,
        before: Option<ServiceState>,
        in_list: bool,
        now: UnixTime,
    ) {
        let slices = in_namespace(&self.slices, &key.namespace).map(|(_, slice)| slice);
        let slices: Vec<_> = { slices }
            .filter(|slice| slice.service.as_ref() == Some(&key.name))
            .collect();
        let endpoints = slices.iter().map(|slice| slice.endpoints);
        let endpoints = endpoints.reduce(Endpoints::plus);
        let mut weeder = self.weeders.get(&key).map(|weeder| Weeder::clone(&weeder));
        let recent = weeder
            .as_ref()
            .map_or_else(Vec::new, |weeder| weeder.recent.clone());
        let recovery = Recovery::of(before, &slices, in_list, &recent, &self.config, now);
        if let Some(endpoints) = endpoints {
            let shown = self.services.get(&key);
            let unchanged = shown.filter(|shown| shown.endpoints.is_ready() == endpoints.is_ready());
            let since = match (recovery, unchanged) {
                (Some(recovery), _) => recovery.at,
                (None, Some(unchanged)) => unchanged.since,
                (None, None) => now,
            };
            let state = ServiceState { endpoints, since };
            self.services.upsert_unless(key.clone(), state, PartialEq::eq);
        } else {
            self.services.remove(&key);
        }
        if (recovery.is_some() || !endpoints.is_some_and(Endpoints::is_ready))
            && let Some(weeder) = &mut weeder
            && weeder.cancel(now)
        {
            report_end(&key, weeder);
            self.weeders.upsert(key.clone(), weeder.clone());
        }
        if let Some(recovery) = recovery {
            self.start(&key, Weeder::new(recovery, recent), now);
        }
    }

    fn start(&mut self, key: &NamespacedName, weeder: Weeder, now: UnixTime) {
        if weeder.recovery.is_held_back(&weeder.recent) {
            metrics::HELD_BACK.inc(());
            let _span = weeder_span(key).entered();
            tracing::warn!("service became ready four times in a minute; its dependants wait");
            self.notices.push(notices::held_back(key));
        }
        self.advance(key, weeder, now);
    }

    /// Lets a weeder begin or end if it is time.
    fn advance(&mut self, key: &NamespacedName, mut weeder: Weeder, now: UnixTime) {
        match weeder.next_phase(now) {
            Some(Phase::Active) => {
                weeder.phase = Phase::Active;
                Recovery::note(&mut weeder.recent, now);
                metrics::STARTED.inc(());
                let _span = weeder_span(key).entered();
                let (since, found_ready) = (weeder.recovery.at, weeder.recovery.found_ready);
                tracing::info!(%since, found_ready, "service recovered; weeder started");
                for (_, known) in in_namespace_mut(&mut self.pods, &key.namespace) {
                    known.not_before.get_or_insert(now);
                }
            }
            Some(phase) => {
                weeder.phase = phase;
                report_end(key, &weeder);
            }
            None => {}
        }
        self.weeders.upsert(key.clone(), weeder);
    }
}

/// Logs and counts the end of a weeder.
fn report_end(key: &NamespacedName, weeder: &Weeder) {
    let how = match weeder.phase {
        Phase::Cancelled => WeederEnd::Cancelled,
        _ => WeederEnd::Ended,
    };
    metrics::ENDED.inc(how);
    let _span = weeder_span(key).entered();
    let (how, deleted) = (how.as_str(), weeder.deleted);
    tracing::info!(how, deleted, "weeder ended");
}

// === impl WeederState: pods and deletions ===

impl WeederState {
    /// Takes up what the watch with this selector brings.
    pub(crate) fn pods_updated(&mut self, selector: &Selector, update: WatchUpdate<Pod>, now: UnixTime) {
        // Another watch may still see a pod that is gone from this one, if its labels have changed.
        let is_seen = |known: &KnownPod| selector.matches(&known.pod.labels);
        let crashing = match update {
            WatchUpdate::Applied(pod) => vec![pod],
            WatchUpdate::Removed(key) => {
                if self.pods.get(&key).is_some_and(is_seen) {
                    self.pods.remove(&key);
                }
                return;
            }
            WatchUpdate::Listed(pods) => {
                let live: BTreeSet<_> = pods.iter().map(|pod| pod.key.clone()).collect();
                self.pods
                    .retain(|key, known| live.contains(key) || !is_seen(known));
                pods
            }
            // Deletions may be undone. A list follows.
            WatchUpdate::Restored => {
                self.pods.retain(|_, known| !is_seen(known));
                return;
            }
        };
        for pod in crashing.into_iter().map(Arc::new) {
            self.queue.add(&pod.key.namespace);
            let same = self.pods.remove(&pod.key);
            let known = same
                .filter(|known| known.pod.uid == pod.uid)
                .unwrap_or_else(|| KnownPod {
                    pod: pod.clone(),
                    seen_at: now,
                    not_before: Some(now),
                    failures: 0,
                });
            self.pods.insert(pod.key.clone(), KnownPod { pod, ..known });
        }
    }

    /// The weeders of a namespace that are shown.
    fn weeders_in(&self, namespace: &str) -> Vec<(NamespacedName, Arc<Weeder>)> {
        let services = self.config.services.keys();
        let keys = services.map(|service| NamespacedName::new(namespace, service.as_str()));
        keys.filter_map(|key| Some((key.clone(), self.weeders.get(&key)?)))
            .collect()
    }

    /// The next pod of a namespace that must be deleted now.
    pub(crate) fn due(&self, namespace: &str, now: UnixTime) -> Option<Deletion> {
        let pods = in_namespace(&self.pods, namespace).map(|(_, known)| known);
        let mut waiting = pods
            .filter(|known| known.not_before.is_some_and(|at| at <= now))
            .peekable();
        waiting.peek()?;
        let weeders = self.weeders_in(namespace);
        waiting
            .find_map(|known| self.deletion(known, &weeders, now))
            .filter(|_| now >= self.throttled_until)
    }

    fn deletion(
        &self,
        known: &KnownPod,
        weeders: &[(NamespacedName, Arc<Weeder>)],
        now: UnixTime,
    ) -> Option<Deletion> {
        let deletes = |(service, weeder): &&(NamespacedName, Arc<Weeder>)| {
            weeder.decide(&known.pod, &service.name, &self.config, now) == PodDecision::Delete
                && !self.kept_back.counts_as_deleted(&known.pod, &weeder.recovery)
        };
        let (service, weeder) = weeders.iter().find(deletes)?;
        Some(Deletion {
            service: service.clone(),
            recovery: weeder.recovery,
            pod: known.pod.clone(),
            seen_at: known.seen_at,
        })
    }

    /// Takes the next pod of a namespace that must be deleted now. The namespace is queued again: its other pods wait
    /// until each namespace before it had its turn.
    pub(crate) fn take(&mut self, namespace: &str, now: UnixTime) -> Option<Deletion> {
        let deletion = self.due(namespace, now)?;
        self.pods.get_mut(&deletion.pod.key)?.not_before = None;
        self.queue.add(namespace);
        Some(deletion)
    }

    /// A deletion was answered or, in mode observe, not sent.
    pub(crate) fn answered(&mut self, deletion: &Deletion, result: &DeletionResult, now: UnixTime) {
        let known = self.pods.get_mut(&deletion.pod.key);
        // The watch removes a pod that is gone.
        if let Some(known) = known.filter(|known| known.pod.uid == deletion.pod.uid)
            && !result.is_done()
            && *result != DeletionResult::Gone
        {
            known.failures = known.failures.saturating_add(1);
            known.not_before = Some(now.after(result.pause(known.failures)));
        }
        if *result == DeletionResult::KeptBack {
            self.kept_back.add(&deletion.pod, now);
        }
        if matches!(result, DeletionResult::Throttled(_)) {
            // It would refuse the others too.
            self.throttled_until = self.throttled_until.max(now.after(result.pause(1)));
        }
        if let Some(weeder) = self.weeders.get(&deletion.service)
            && weeder.recovery.at == deletion.recovery.at
        {
            let mut weeder = Weeder::clone(&weeder);
            weeder.record(&deletion.pod, result.clone(), now);
            self.weeders.upsert(deletion.service.clone(), weeder);
        }
    }

    /// Records which pods of a namespace are left alone, and which deletions did not help. Returns the Events to
    /// publish.
    pub(crate) fn review(&mut self, namespace: &str, now: UnixTime) -> Vec<Notice> {
        for (service, weeder) in self.weeders_in(namespace) {
            let (mut weeder, mut has_changed) = (Weeder::clone(&weeder), false);
            let _span = weeder_span(&service).entered();
            for (key, known) in in_namespace(&self.pods, namespace) {
                let (pod, name) = (&known.pod, &*key.name);
                if weeder.judge_by(pod) {
                    has_changed = true;
                    metrics::USELESS.inc(());
                    tracing::warn!(
                        pod = name,
                        "replacement of a deleted pod crashes although its service is ready"
                    );
                    self.notices.push(notices::useless(&service, pod));
                }
                if known.not_before.is_some()
                    && let PodDecision::Keep(reason) = weeder.decide(pod, &service.name, &self.config, now)
                    && weeder.leave_alone(pod, reason, now)
                {
                    has_changed = true;
                    metrics::LEFT_ALONE.inc(reason);
                    let reason = reason.as_str();
                    tracing::info!(pod = name, reason, "crash-looping pod left alone");
                }
            }
            if has_changed {
                self.weeders.upsert(service, weeder);
            }
        }
        self.take_notices()
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub(crate) fn crashing_pods(&self) -> usize {
        self.pods.len()
    }

    /// Pods that must be deleted now, or that were taken for that and are still there.
    pub(crate) fn pending_deletions(&self, now: UnixTime) -> usize {
        let is_due = |(key, known): &(&NamespacedName, &KnownPod)| {
            self.deletion(known, &self.weeders_in(&key.namespace), now)
                .is_some()
        };
        self.pods.iter().filter(is_due).count()
    }
}

/// The span of all that happens to the weeder of a service.
pub(crate) fn weeder_span(service: &NamespacedName) -> Span {
    // A span of a lower level would be left out, with its fields, where only warnings are logged.
    tracing::error_span!(
        "weeder",
        namespace = &*service.namespace,
        service = &*service.name
    )
}

#[cfg(test)]
mod tests;
