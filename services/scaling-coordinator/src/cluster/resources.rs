//! The index of the configured resources in all shoots, trimmed to what the rules read. It is a hint that says that
//! something may be to do.
//!
//! Objects that do not show their replicas are completed from their scale sub-resource, which is read only when a
//! direction asks for it.

pub(crate) mod dropped;
mod entry;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::ApiResource;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
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
    watched: RwLock<BTreeMap<ResourceRef, WatchedResource>>,
    /// Those in the configuration file, in its order, and then the dropped ones that are still watched, as they were
    /// configured last.
    configured: RwLock<Arc<Vec<DependentResource>>>,
    served_changes: watch::Sender<()>,
    predecessor: Option<&'static str>,
    /// All resources count as dropped from the configuration, and all shoots as protected and healthy: what is held
    /// down is restored, and nothing else is touched.
    pub(crate) restores_only: bool,
}

/// A resource that is configured, or was and may still be held down.
#[derive(Debug)]
struct WatchedResource {
    /// When it was dropped from the configuration.
    dropped_at: watch::Sender<Option<Instant>>,
    /// Stops its watch.
    stop: CancellationToken,
    kind: ServedKind,
    objects: ObjectIndex<ResourceEntry>,
}

impl Resources {
    pub(crate) fn new(signals: IndexSignals, configured: &[DependentResource]) -> Self {
        Self {
            signals,
            watched: RwLock::default(),
            configured: RwLock::new(Arc::new(configured.to_vec())),
            served_changes: watch::Sender::new(()),
            predecessor: None,
            restores_only: false,
        }
    }

    /// Counts resources that this writer of `managedFields` holds down as held down by the coordinator. The program
    /// behind it has given its place to this one and restores nothing.
    #[must_use]
    pub(crate) fn in_place_of(self, predecessor: Option<&'static str>) -> Self {
        Self { predecessor, ..self }
    }

    #[must_use]
    pub(crate) fn restoring_only(self) -> Self {
        Self {
            restores_only: true,
            ..self
        }
    }

    /// Changes when it becomes known how the API server serves a resource, and when the configuration changes.
    pub(crate) fn served_changes(&self) -> watch::Receiver<()> {
        self.served_changes.subscribe()
    }

    fn of<T>(&self, reference: &ResourceRef, read: impl FnOnce(&WatchedResource) -> T) -> Option<T> {
        self.watched.read().get(reference).map(read)
    }

    fn change(&self, reference: &ResourceRef, change: impl FnOnce(&mut WatchedResource)) {
        if let Some(watched) = self.watched.write().get_mut(reference) {
            change(watched);
        }
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

    pub(crate) fn held_down_in(&self, reference: &ResourceRef) -> Vec<Arc<str>> {
        self.of(reference, WatchedResource::held_down_in)
            .unwrap_or_default()
    }

    pub(crate) fn observed(&self, reference: &ResourceRef, shoot: &str) -> Observed {
        let observed = self.of(reference, |watched| watched.observed(shoot));
        observed.unwrap_or_else(WatchedResource::not_listed)
    }

    /// The configured resources, and those that were dropped and must still be restored.
    pub(crate) fn configured(&self) -> Arc<Vec<DependentResource>> {
        self.configured.read().clone()
    }

    /// These resources of a shoot, as far as is known without a read.
    pub(crate) fn dependents<'a>(
        &self,
        configured: &'a [DependentResource],
        shoot: &str,
    ) -> Vec<Dependent<'a>> {
        configured
            .iter()
            .map(|config| Dependent {
                config,
                dropped: self.is_dropped(&config.reference),
                observed: self.observed(&config.reference, shoot),
                read: false,
            })
            .collect()
    }

    /// Returns true once a resource is listed in all shoots, or it is known why it cannot be.
    pub(crate) fn is_listed(&self, reference: &ResourceRef) -> bool {
        self.of(reference, WatchedResource::is_listed).unwrap_or_default()
    }

    /// How the API server serves a resource.
    pub(crate) fn kind(&self, reference: &ResourceRef) -> Option<ServedKind> {
        self.of(reference, |watched| watched.kind.clone())
    }

    /// How the API server serves each of the configured resources for which that is known.
    pub(crate) fn all_served(&self) -> Vec<(ResourceRef, ApiResource)> {
        let all = self.watched.read();
        let configured = all.iter().filter(|(_, watched)| !watched.is_dropped());
        let served = configured.filter_map(|(reference, watched)| {
            let served = watched.kind.as_ref().ok()?;
            Some((reference.clone(), served.clone()))
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
    fn not_listed() -> Observed {
        Observed::Unknown("its objects are not listed yet".to_owned())
    }

    fn observed(&self, shoot: &str) -> Observed {
        match &self.kind {
            Err(everywhere) => everywhere.clone(),
            Ok(_) if self.objects.is_listed() => {
                let known = self.objects.get(shoot);
                known.map_or(Observed::Absent, |known| known.observed.clone())
            }
            Ok(_) => Self::not_listed(),
        }
    }

    fn is_dropped(&self) -> bool {
        self.dropped_at.borrow().is_some()
    }

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
