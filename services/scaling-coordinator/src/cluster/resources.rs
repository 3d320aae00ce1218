//! The index of the configured resources in all shoots, trimmed to what the rules read.
//!
//! It is a hint that says that something may be to do. The watches feed it, and so do the answers to our own writes and
//! reads, which are often earlier; no object goes back to an older version.
//!
//! Kinds whose objects do not show their replicas in `spec.replicas` are completed from their scale sub-resource, which
//! is read only when a direction asks for it.

mod entry;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::ApiResource;
use parking_lot::RwLock;
use tokio::sync::watch;
use watchdog_api::prober::{ProberConfig, ResourceRef};
use watchdog_api::workload::Workload;
use watchdog_runtime::work_queue::WorkQueue;

pub(crate) use self::entry::ObservedScale;
use self::entry::ResourceEntry;
use super::object_index::{ObjectIndex, version_of};
use crate::domain::observed::{Dependent, Observed};

/// Why nothing is known of a configured resource, or that its objects are.
#[derive(Debug, Clone)]
pub(crate) enum ListState {
    Pending(String),
    /// Its kind is not served: it is absent everywhere.
    NotServed,
    NotScalable(String),
    Listed,
}

#[derive(Debug)]
pub(crate) struct Resources {
    work_queue: Arc<WorkQueue>,
    inner: RwLock<BTreeMap<ResourceRef, Configured>>,
    served_changes: watch::Sender<()>,
    predecessor: Option<&'static str>,
}

#[derive(Debug)]
struct Configured {
    listing: ListState,
    served: Option<ApiResource>,
    dropped: bool,
    objects: ObjectIndex<ResourceEntry>,
}

impl Resources {
    pub(crate) fn new(work_queue: Arc<WorkQueue>) -> Self {
        Self {
            work_queue,
            inner: RwLock::default(),
            served_changes: watch::Sender::new(()),
            predecessor: None,
        }
    }

    /// Counts resources that this writer of `managedFields` holds down as held down by the coordinator. The program
    /// behind it has given its place to this one and restores nothing.
    #[must_use]
    pub(crate) fn in_place_of(self, predecessor: Option<&'static str>) -> Self {
        Self { predecessor, ..self }
    }

    /// Changes when it becomes known how the API server serves a resource, and when a resource is removed.
    pub(crate) fn served_changes(&self) -> watch::Receiver<()> {
        self.served_changes.subscribe()
    }

    /// Takes a resource up; what is known of it already stays.
    pub(crate) fn add(&self, reference: &ResourceRef) {
        let configured = || Configured {
            listing: ListState::Pending("its objects are not listed yet".to_owned()),
            served: None,
            dropped: false,
            objects: ObjectIndex::default(),
        };
        let mut inner = self.inner.write();
        let configured = inner.entry(reference.clone()).or_insert_with(configured);
        let was_dropped = std::mem::take(&mut configured.dropped);
        drop(inner);
        if was_dropped {
            self.work_queue.add_all();
        }
    }

    /// A resource is no longer configured. Returns true if it was ever listed, so that this process may have scaled it
    /// down.
    pub(crate) fn drop_from_configuration(&self, reference: &ResourceRef) -> bool {
        let mut inner = self.inner.write();
        let listed = inner.get_mut(reference).is_some_and(|configured| {
            configured.dropped = true;
            matches!(configured.listing, ListState::Listed) || !configured.objects.is_empty()
        });
        drop(inner);
        self.work_queue.add_all();
        listed
    }

    /// Returns true if a resource is indexed only because an earlier configuration named it.
    pub(crate) fn is_dropped(&self, reference: &ResourceRef) -> bool {
        self.inner
            .read()
            .get(reference)
            .is_some_and(|configured| configured.dropped)
    }

    pub(crate) fn held_down_in(&self, reference: &ResourceRef) -> Vec<Arc<str>> {
        let inner = self.inner.read();
        let objects = inner
            .get(reference)
            .into_iter()
            .flat_map(|configured| configured.objects.iter());
        objects
            .filter(|(_, entry)| entry.protected)
            .map(|(shoot, _)| shoot.clone())
            .collect()
    }

    pub(crate) fn remove(&self, reference: &ResourceRef) {
        self.inner.write().remove(reference);
        self.served_changes.send_replace(());
    }

    pub(crate) fn listing(&self, reference: &ResourceRef, listing: ListState, served: Option<ApiResource>) {
        if let Some(configured) = self.inner.write().get_mut(reference) {
            if matches!(listing, ListState::NotServed) {
                configured.objects.clear();
            }
            configured.listing = listing;
            if served.is_some() {
                configured.served = served;
                self.served_changes.send_replace(());
            }
        }
        self.work_queue.add_all();
    }

    pub(crate) fn applied(&self, reference: &ResourceRef, workload: &Workload) {
        let Some(shoot) = workload.metadata.namespace.as_deref() else {
            return;
        };
        let mut inner = self.inner.write();
        let Some(configured) = inner.get_mut(reference) else {
            return;
        };
        let version: Arc<str> = version_of(&workload.metadata).into();
        if !configured.objects.accepts(shoot, &version) {
            return;
        }
        let old = configured.objects.get(shoot);
        let mut entry = ResourceEntry::of(workload, version.clone(), old.map(|old| &old.object));
        if let (Some(predecessor), Observed::Present(seen)) = (self.predecessor, &mut entry.observed) {
            seen.count_as_own(predecessor);
        }
        let changed = old.is_none_or(|old| old.version != version || old.object.observed != entry.observed);
        configured.objects.insert(shoot, version, entry);
        drop(inner);
        if changed {
            self.work_queue.add(shoot);
        }
    }

    /// The version of an object that is known.
    pub(crate) fn version(&self, reference: &ResourceRef, shoot: &str) -> Option<Arc<str>> {
        let inner = self.inner.read();
        let known = inner.get(reference)?.objects.get(shoot)?;
        Some(known.version.clone())
    }

    pub(crate) fn scale_read(&self, reference: &ResourceRef, shoot: &str, scale: ObservedScale) {
        if let Some(configured) = self.inner.write().get_mut(reference)
            && let Some(entry) = configured.objects.get_mut(shoot)
        {
            entry.scale = Some(scale);
        }
        self.work_queue.add(shoot);
    }

    /// A watch reports the deletion of an object, with its last state. A newer object of the same name stays.
    pub(crate) fn deleted(&self, reference: &ResourceRef, last: &Workload) {
        let shoot = last.metadata.namespace.as_deref().unwrap_or_default();
        if let Some(configured) = self.inner.write().get_mut(reference) {
            configured.objects.deleted(shoot, version_of(&last.metadata));
        }
        self.work_queue.add(shoot);
    }

    /// A read found no object; `before` is the version that was known when it was asked for.
    pub(crate) fn absent(&self, reference: &ResourceRef, shoot: &str, before: Option<&Arc<str>>) {
        if let Some(configured) = self.inner.write().get_mut(reference) {
            configured.objects.absent(shoot, before);
        }
        self.work_queue.add(shoot);
    }

    pub(crate) fn list_begins(&self, reference: &ResourceRef) {
        if let Some(configured) = self.inner.write().get_mut(reference) {
            configured.objects.list_begins();
        }
    }

    /// Objects exist in these shoots and in no others, by a complete list.
    pub(crate) fn synced(&self, reference: &ResourceRef, exist: &BTreeSet<String>) {
        let mut gone = Vec::new();
        let mut first = false;
        if let Some(configured) = self.inner.write().get_mut(reference) {
            gone = configured.objects.synced(exist);
            first = !matches!(configured.listing, ListState::Listed);
            configured.listing = ListState::Listed;
        }
        for shoot in gone {
            self.work_queue.add(&shoot);
        }
        if first {
            self.work_queue.add_all();
        }
    }

    pub(crate) fn observed(&self, reference: &ResourceRef, shoot: &str) -> Observed {
        let inner = self.inner.read();
        let Some(configured) = inner.get(reference) else {
            return Observed::Unknown("its objects are not listed yet".to_owned());
        };
        match &configured.listing {
            ListState::Pending(why) => Observed::Unknown(why.clone()),
            ListState::NotServed => Observed::Absent,
            ListState::NotScalable(why) => Observed::Unusable(why.clone()),
            ListState::Listed => configured
                .objects
                .get(shoot)
                .map_or(Observed::Absent, |known| known.object.observed()),
        }
    }

    /// The configured resources of a shoot, as far as is known without a read.
    pub(crate) fn dependents<'a>(&self, config: &'a ProberConfig, shoot: &str) -> Vec<Dependent<'a>> {
        let dependents = config.dependent_resource_infos.iter();
        dependents
            .map(|config| Dependent {
                config,
                dropped: self.is_dropped(&config.reference),
                observed: self.observed(&config.reference, shoot),
                read: false,
            })
            .collect()
    }

    /// Returns true once a resource is listed in all shoots, or its kind turned out not to be served.
    pub(crate) fn is_listed(&self, reference: &ResourceRef) -> bool {
        let inner = self.inner.read();
        let configured = inner.get(reference);
        configured.is_some_and(|configured| !matches!(configured.listing, ListState::Pending(_)))
    }

    /// Returns true if the API server does not serve the resource's kind, so that no object exists.
    pub(crate) fn is_not_served(&self, reference: &ResourceRef) -> bool {
        let inner = self.inner.read();
        matches!(inner.get(reference), Some(configured) if matches!(configured.listing, ListState::NotServed))
    }

    /// How the API server serves a resource; `None` while that is not known.
    pub(crate) fn served(&self, reference: &ResourceRef) -> Option<ApiResource> {
        self.inner.read().get(reference)?.served.clone()
    }

    /// How the API server serves each of the resources for which that is known.
    pub(crate) fn all_served(&self) -> Vec<(ResourceRef, ApiResource)> {
        let inner = self.inner.read();
        let served = inner
            .iter()
            .filter_map(|(reference, c)| Some((reference.clone(), c.served.clone()?)));
        served.collect()
    }

    pub(crate) fn about(&self, reference: &ResourceRef, shoot: &str) -> ObjectReference {
        let inner = self.inner.read();
        let known = inner
            .get(reference)
            .and_then(|configured| configured.objects.get(shoot));
        ObjectReference {
            api_version: Some(reference.api_version.clone()),
            kind: Some(reference.kind.clone()),
            name: Some(reference.name.clone()),
            namespace: Some(shoot.to_owned()),
            uid: known.and_then(|known| known.object.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

#[cfg(test)]
mod tests;
