//! The index of the configured resources in all shoots, trimmed to what the rules read. It is a hint that says that
//! something may be to do.
//!
//! Objects that do not show their replicas are completed from their scale sub-resource, which is read only when a
//! direction asks for it.

pub(crate) mod dropped;
mod entry;

use std::sync::Arc;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::ApiResource;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;
use watchdog_api::prober::{DependentResource, ResourceRef};
use watchdog_api::workload::Workload;
use watchdog_kube::watch::Change;

use self::entry::{ResourceEntry, needs_scale};
use super::kinds::ServedKind;
use super::object_index::{IndexSignals, ObjectIndex, version_of};
use crate::domain::observed::{Dependent, Observed};

#[derive(Debug)]
pub(crate) struct Resources {
    signals: IndexSignals,
    /// Those in the configuration file, in its order, and then the dropped ones that are still watched.
    watched: RwLock<Vec<WatchedResource>>,
    served_changes: watch::Sender<()>,
    /// Resources that this writer of `managedFields` holds down count as held down by the coordinator. The program
    /// behind it has given its place to this one and restores nothing.
    pub(crate) predecessor: Option<&'static str>,
    /// All resources count as dropped from the configuration, and all shoots as protected and healthy: what is held
    /// down is restored, and nothing else is touched.
    pub(crate) restores_only: bool,
}

/// A resource that is configured, or was and may still be held down.
#[derive(Debug)]
struct WatchedResource {
    /// How it is configured, or was last.
    config: Arc<DependentResource>,
    /// When it was dropped from the configuration.
    dropped_at: Option<Instant>,
    /// Stops its watch when it is dropped; none while the watch must be started.
    watching: Option<DropGuard>,
    kind: ServedKind,
    objects: ObjectIndex<ResourceEntry>,
}

impl Resources {
    pub(crate) fn new(signals: IndexSignals, configured: &[DependentResource]) -> Self {
        let watched = configured
            .iter()
            .map(|config| WatchedResource::new(&signals, config));
        Self {
            watched: RwLock::new(watched.collect()),
            signals,
            served_changes: watch::Sender::new(()),
            predecessor: None,
            restores_only: false,
        }
    }

    /// Changes when it becomes known how the API server serves a resource, and when the configuration changes.
    pub(crate) fn served_changes(&self) -> watch::Receiver<()> {
        self.served_changes.subscribe()
    }

    fn of<T>(&self, reference: &ResourceRef, read: impl FnOnce(&WatchedResource) -> T) -> Option<T> {
        let watched = self.watched.read();
        let mut watched = watched.iter();
        watched.find(|watched| watched.is(reference)).map(read)
    }

    fn change(&self, reference: &ResourceRef, change: impl FnOnce(&mut WatchedResource)) {
        let mut watched = self.watched.write();
        let mut watched = watched.iter_mut();
        watched.find(|watched| watched.is(reference)).map(change);
    }

    /// From now on the API server is known to serve a kind like this. If that is news, its objects are listed anew.
    pub(crate) fn set_kind(&self, reference: &ResourceRef, kind: ServedKind) {
        let is_served = kind.is_ok();
        self.change(reference, |watched| {
            if watched.kind == kind {
                return;
            }
            watched.objects.unlist();
            if kind == Err(Observed::Absent) {
                watched.objects.clear();
            }
            watched.kind = kind;
        });
        if is_served {
            self.served_changes.send_replace(());
        }
        self.signals.work_queue.add_all();
    }

    /// The watch of a resource reports a change.
    pub(crate) fn take_in(&self, reference: &ResourceRef, change: Change<Workload>) {
        self.change(reference, |watched| {
            watched.objects.take_in(
                &change,
                |key| key.namespace,
                |workload, old| self.entry(reference, workload, None, old),
            );
        });
    }

    /// A write or a read has shown an object.
    pub(crate) fn applied(&self, reference: &ResourceRef, workload: &Workload, scale: Option<&Scale>) {
        let shoot = workload.metadata.namespace.as_deref().unwrap_or_default();
        let version = version_of(&workload.metadata);
        self.change(reference, |watched| {
            watched
                .objects
                .apply(shoot, version, |old| self.entry(reference, workload, scale, old));
        });
    }

    /// A consistent read has shown an object, or that there is none; `before` is the version that was known when the
    /// read was asked for.
    pub(crate) fn read(
        &self,
        reference: &ResourceRef,
        shoot: &str,
        before: Option<&str>,
        found: Option<&Workload>,
    ) {
        let found = found.map(|workload| {
            let make = |old: Option<&ResourceEntry>| self.entry(reference, workload, None, old);
            (version_of(&workload.metadata), make)
        });
        self.change(reference, |watched| watched.objects.read(shoot, before, found));
    }

    /// Forgets the resources of a shoot that reads have shown and that are not listed.
    pub(crate) fn forget_unlisted(&self, shoot: &str) {
        let mut watched = self.watched.write();
        let watched = watched.iter_mut();
        watched.for_each(|watched| watched.objects.forget_unlisted(shoot));
    }

    /// True if only its scale sub-resource shows how many replicas an object has.
    pub(crate) fn needs_scale(&self, reference: &ResourceRef, workload: &Workload) -> bool {
        let shoot = workload.metadata.namespace.as_deref().unwrap_or_default();
        let needs = |watched: &WatchedResource| needs_scale(reference, workload, watched.objects.get(shoot));
        self.of(reference, needs).unwrap_or_default()
    }

    fn entry(
        &self,
        reference: &ResourceRef,
        workload: &Workload,
        scale: Option<&Scale>,
        old: Option<&ResourceEntry>,
    ) -> ResourceEntry {
        let mut entry = ResourceEntry::of(reference, workload, scale, old);
        if let (Some(predecessor), Observed::Present(seen)) = (self.predecessor, &mut entry.observed) {
            seen.count_as_own(predecessor);
        }
        entry
    }

    /// The version of an object that is known.
    pub(crate) fn version(&self, reference: &ResourceRef, shoot: &str) -> Option<Arc<str>> {
        self.of(reference, |watched| watched.objects.version(shoot))
            .flatten()
    }

    /// Each resource with the shoots in which it is held down.
    pub(crate) fn held_down(&self) -> Vec<(ResourceRef, Vec<Arc<str>>)> {
        let watched = self.watched.read();
        let held_down = watched
            .iter()
            .map(|watched| (watched.config.reference.clone(), watched.held_down_in()));
        held_down.collect()
    }

    pub(crate) fn observed(&self, reference: &ResourceRef, shoot: &str) -> Observed {
        let observed = self.of(reference, |watched| watched.observed(shoot));
        observed.unwrap_or_else(WatchedResource::not_looked_up)
    }

    /// The configured resources of a shoot, and those that were dropped and must still be restored, as far as is known
    /// without a read.
    pub(crate) fn dependents(&self, shoot: &str) -> Vec<Dependent> {
        let watched = self.watched.read();
        let dependents = watched.iter().map(|watched| Dependent {
            config: watched.config.clone(),
            dropped: self.restores_only || watched.is_dropped(),
            observed: watched.observed(shoot),
            read: false,
        });
        dependents.collect()
    }

    /// The resources of which it is neither known where they are nor why they cannot be listed.
    pub(crate) fn unlisted(&self) -> Vec<String> {
        let watched = self.watched.read();
        let unlisted = watched.iter().filter(|watched| !watched.is_listed());
        unlisted
            .map(|watched| watched.config.reference.to_string())
            .collect()
    }

    /// How the API server serves a resource.
    pub(crate) fn kind(&self, reference: &ResourceRef) -> Option<ServedKind> {
        self.of(reference, |watched| watched.kind.clone())
    }

    /// How the API server serves each of the configured resources for which that is known.
    pub(crate) fn all_served(&self) -> Vec<(ResourceRef, ApiResource)> {
        let all = self.watched.read();
        let configured = all.iter().filter(|watched| !watched.is_dropped());
        let served = configured.filter_map(|watched| {
            let served = watched.kind.as_ref().ok()?;
            Some((watched.config.reference.clone(), served.clone()))
        });
        served.collect()
    }

    pub(crate) fn about(&self, reference: &ResourceRef, shoot: &str) -> ObjectReference {
        let uid = self.of(reference, |watched| watched.objects.get(shoot)?.uid.clone());
        ObjectReference {
            api_version: Some(reference.api_version.clone()),
            kind: Some(reference.kind.clone()),
            name: Some(reference.name.clone()),
            namespace: Some(shoot.to_owned()),
            uid: uid.flatten(),
            ..ObjectReference::default()
        }
    }
}

impl WatchedResource {
    fn new(signals: &IndexSignals, config: &DependentResource) -> Self {
        Self {
            config: Arc::new(config.clone()),
            dropped_at: None,
            watching: None,
            kind: Err(Self::not_looked_up()),
            objects: ObjectIndex::new(signals.clone()),
        }
    }

    fn is(&self, reference: &ResourceRef) -> bool {
        self.config.reference == *reference
    }

    fn not_looked_up() -> Observed {
        Observed::Unknown("its kind was not looked up on the seed yet".to_owned())
    }

    fn observed(&self, shoot: &str) -> Observed {
        match &self.kind {
            Err(everywhere) => everywhere.clone(),
            Ok(_) if self.objects.is_known(shoot) => {
                let known = self.objects.get(shoot);
                known.map_or(Observed::Absent, |known| known.observed.clone())
            }
            Ok(_) => Observed::NotListed,
        }
    }

    const fn is_dropped(&self) -> bool {
        self.dropped_at.is_some()
    }

    /// Notes whether it is dropped from the configuration. If that changes, its watch begins anew, because it blocks
    /// readiness only while the resource is configured.
    fn set_dropped_at(&mut self, dropped_at: Option<Instant>) {
        if dropped_at.is_some() != self.is_dropped() {
            self.dropped_at = dropped_at;
            self.watching = None;
        }
    }

    /// Returns true once it is listed in all shoots, or it is known why it cannot be.
    fn is_listed(&self) -> bool {
        self.objects.is_listed() || matches!(self.kind, Err(Observed::Absent | Observed::Unusable(_)))
    }

    fn held_down_in(&self) -> Vec<Arc<str>> {
        let objects = self.objects.iter();
        objects
            .filter(|(_, entry)| entry.protected)
            .map(|(shoot, _)| shoot.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests;
