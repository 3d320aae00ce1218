//! All that the weeder knows, and what follows from a change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use watchdog_api::selector::Selector;
use watchdog_api::weeder::WeederConfig;

use super::manager::{OutageProof, WeederManager};
use crate::domain::declared::{Declared, WatchedServices};
use crate::domain::dependants::PodQuery;
use crate::domain::evidence::OutageEvidence;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::namespaces::{Namespace, Namespaces};
use crate::domain::readiness::{Index, ReceivedBy, ServiceChange, ServiceReadiness, ServiceState, Slice};
use crate::domain::weeder::{StopReason, Weeder};
use watchdog_api::unix_time::UnixTime;

/// True for the namespaces that this replica owns.
pub(crate) type OwnsNamespace<'a> = &'a dyn Fn(&str) -> bool;

/// The readiness of services, the weeders, and who owns their namespaces.
#[derive(Debug)]
pub(crate) struct WeederState {
    declared: Declared,
    index: Index,
    namespaces: Namespaces,
    // The namespaces with services, and whether this replica owns them.
    owned_namespaces: BTreeMap<Arc<str>, bool>,
    // While the annotations are listed, each name would cause another list of the slices.
    annotations_listed: bool,
    // Until a list of slices is complete, a service may have endpoints that are not known yet.
    slices_listing: bool,
    queries: BTreeSet<PodQuery>,
    watched_services: WatchedServices,
    pub(crate) manager: WeederManager,
    published: Vec<(NamespacedName, Option<ServiceState>)>,
}

/// Changes to publish; none stands for a removal.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) services: Vec<(NamespacedName, Option<ServiceState>)>,
    pub(crate) weeders: Vec<(NamespacedName, Option<Weeder>)>,
}

impl WeederState {
    pub(crate) fn new(config: &WeederConfig) -> Self {
        let mut declared = Declared::default();
        declared.configure(config);
        Self {
            annotations_listed: false,
            slices_listing: false,
            queries: PodQuery::plan(&declared.selectors(), &BTreeMap::new()),
            watched_services: declared.watched_services(false),
            declared,
            index: Index::default(),
            namespaces: Namespaces::default(),
            owned_namespaces: BTreeMap::new(),
            manager: WeederManager::new(config),
            published: Vec::new(),
        }
    }

    pub(crate) const fn pod_queries(&self) -> &BTreeSet<PodQuery> {
        &self.queries
    }

    pub(crate) const fn watched_services(&self) -> &WatchedServices {
        &self.watched_services
    }

    /// The configuration has changed. Weeders of services that have no dependants any more stop, the others take
    /// their new dependants; new durations hold for weeders that start from now on.
    pub(crate) fn reconfigure(&mut self, config: &WeederConfig, now: UnixTime) {
        self.manager.reconfigure(config, now);
        // An annotation lets slices of a service be known that the file did not name: they are first seen now.
        let known: Vec<(NamespacedName, bool)> = self
            .index
            .services()
            .map(|(key, _)| (key.clone(), self.declared.of(key).is_some()))
            .collect();
        self.declared.configure(config);
        for (key, before) in known {
            self.redeclared(&key, before, now);
        }
        self.declaration_lost(StopReason::NotConfigured, now);
        for key in self.manager.live() {
            self.reselect(&key, now);
        }
        self.plan_watches();
    }

    /// A service declares these dependants by its annotation, or none. One that is ready and had no dependants counts
    /// as first seen ready.
    pub(crate) fn set_dependants(&mut self, key: &NamespacedName, own: Option<Vec<Selector>>, now: UnixTime) {
        let before = self.declared.of(key).cloned();
        self.declared.set_dependants(key, own);
        if before.as_ref() == self.declared.of(key) {
            return;
        }
        self.redeclared(key, before.is_some(), now);
        if self.declared.of(key).is_none() {
            self.declaration_lost(StopReason::NotAnnotated, now);
        } else {
            self.reselect(key, now);
        }
        self.plan_watches();
    }

    pub(crate) fn annotations_synced(&mut self, live: &BTreeSet<NamespacedName>, now: UnixTime) {
        let gone = self.declared.annotated().filter(|key| !live.contains(key));
        let gone: Vec<NamespacedName> = gone.cloned().collect();
        for key in gone {
            self.set_dependants(&key, None, now);
        }
        self.annotations_listed = true;
        self.plan_watches();
    }

    /// Only slices of these services are watched from now on: those of others are forgotten. Some of them may have no
    /// dependants; their slices start nothing, but are known when dependants are declared.
    pub(crate) fn keep_services(&mut self, watched: impl Fn(&str) -> bool, now: UnixTime) {
        // Their removal was published when they lost their dependants.
        self.index.keep_services(watched, now);
        let Self {
            index,
            owned_namespaces,
            ..
        } = self;
        owned_namespaces.retain(|namespace, _| index.services_in(namespace).next().is_some());
    }

    pub(crate) fn slice_applied(
        &mut self,
        slice: Slice,
        received_by: ReceivedBy,
        owns: OwnsNamespace<'_>,
        now: UnixTime,
    ) {
        self.slices_listing |= received_by == ReceivedBy::List;
        for change in self.index.apply(slice, now) {
            self.changed(change, received_by, owns, now);
        }
    }

    pub(crate) fn slice_removed(&mut self, key: &NamespacedName, owns: OwnsNamespace<'_>, now: UnixTime) {
        if let Some(change) = self.index.remove(key, now) {
            self.changed(change, ReceivedBy::Watch, owns, now);
        }
    }

    /// These slices exist and no others, of this service or of all of them.
    pub(crate) fn slices_synced(
        &mut self,
        service: Option<&str>,
        live: &BTreeSet<NamespacedName>,
        owns: OwnsNamespace<'_>,
        now: UnixTime,
    ) {
        for change in self.index.synced(service, live, now) {
            self.changed(change, ReceivedBy::List, owns, now);
        }
        self.slices_listing = false;
        let Self { index, manager, .. } = self;
        manager.endpoints_listed(|key| endpoint_proof(index, key), now);
        self.plan_watches();
    }

    pub(crate) fn namespace_applied(&mut self, name: &str, namespace: Namespace, now: UnixTime) {
        if self.namespaces.applied(name, namespace) {
            self.namespace_ended(name, now);
        }
    }

    pub(crate) fn namespace_removed(&mut self, name: &str, now: UnixTime) {
        self.namespaces.removed(name);
        self.namespace_ended(name, now);
    }

    pub(crate) fn namespaces_synced(&mut self, live: &BTreeSet<Arc<str>>, now: UnixTime) {
        for name in self.namespaces.synced(live) {
            self.namespace_ended(&name, now);
        }
    }

    /// Other namespaces belong to this replica now. Of a namespace that comes from another replica the services that
    /// are ready count as first seen ready.
    pub(crate) fn ownership_changed(&mut self, owns: OwnsNamespace<'_>, now: UnixTime) {
        let (mut gained, mut lost) = (BTreeSet::new(), BTreeSet::new());
        for (namespace, owned) in &mut self.owned_namespaces {
            let owns = owns(namespace);
            if std::mem::replace(owned, owns) != owns {
                let moved = if owns { &mut gained } else { &mut lost };
                moved.insert(namespace.clone());
            }
        }
        self.manager
            .cancel(StopReason::NotOwned, now, |key| lost.contains(&key.namespace));
        for namespace in &lost {
            let gone = self.declared_in(namespace).map(|(key, _)| (key.clone(), None));
            let gone: Vec<_> = gone.collect();
            self.published.extend(gone);
        }
        for namespace in &gained {
            let services = self
                .declared_in(namespace)
                .map(|(key, state)| (key.clone(), *state));
            for (key, state) in services.collect::<Vec<_>>() {
                if state.readiness() == ServiceReadiness::Ready {
                    self.start(&key, ReceivedBy::List, now);
                }
                self.published.push((key, Some(state)));
            }
        }
        self.plan_watches();
    }

    /// Returns true if [`Self::ownership_changed`] would change nothing.
    pub(crate) fn follows_ownership(&self, owns: OwnsNamespace<'_>) -> bool {
        let mut namespaces = self.owned_namespaces.iter();
        namespaces.all(|(namespace, owned)| *owned == owns(namespace))
    }

    /// Returns true if the service has slices and dependants, whichever replica owns its namespace.
    pub(crate) fn has_service(&self, key: &NamespacedName) -> bool {
        self.index.get(key).is_some() && self.declared.of(key).is_some()
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Changes {
        Changes {
            services: std::mem::take(&mut self.published),
            weeders: self.manager.take_changed(),
        }
    }

    fn changed(
        &mut self,
        change: ServiceChange,
        received_by: ReceivedBy,
        owns: OwnsNamespace<'_>,
        now: UnixTime,
    ) {
        let namespace = change.key.namespace.clone();
        // A namespace that is seen for the first time may belong to any replica.
        let owned = match self.owned_namespaces.get(&namespace) {
            Some(owned) => *owned,
            None => {
                let owned = owns(&namespace);
                self.owned_namespaces.insert(namespace.clone(), owned);
                if received_by == ReceivedBy::Watch {
                    self.plan_watches();
                }
                owned
            }
        };
        if owned && change.became_ready() {
            self.start(&change.key, received_by, now);
        } else if change.is_not_ready() {
            self.manager.pause(&change.key);
        }
        self.publish(change.key, change.after);
        // A namespace that comes back is decided on anew.
        if self.index.services_in(&namespace).next().is_none() {
            self.owned_namespaces.remove(&namespace);
        }
    }

    fn start(&mut self, key: &NamespacedName, received_by: ReceivedBy, now: UnixTime) {
        if self.namespaces.is_terminating(&key.namespace) {
            return;
        }
        if let Some(dependants) = self.declared.of(key) {
            let proof = match received_by {
                ReceivedBy::Watch => OutageProof::Observed,
                ReceivedBy::List | ReceivedBy::ResumedWatch if self.slices_listing => OutageProof::Listing,
                ReceivedBy::List | ReceivedBy::ResumedWatch => endpoint_proof(&self.index, key),
            };
            self.manager.start(key.clone(), dependants.clone(), proof, now);
        }
    }

    fn publish(&mut self, key: NamespacedName, state: Option<ServiceState>) {
        // A service of that name may have dependants in another namespace only.
        if self.is_owned(&key) && self.declared.of(&key).is_some() {
            self.published.push((key, state));
        }
    }

    fn declared_in<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a NamespacedName, &'a ServiceState)> {
        let services = self.index.services_in(namespace);
        services.filter(|(key, _)| self.declared.of(key).is_some())
    }

    fn is_owned(&self, key: &NamespacedName) -> bool {
        self.owned_namespaces.get(&key.namespace) == Some(&true)
    }

    /// A service got its first dependants, or lost its last.
    fn redeclared(&mut self, key: &NamespacedName, before: bool, now: UnixTime) {
        let after = self.declared.of(key).is_some();
        let Some(state) = self.index.get(key).copied() else {
            return;
        };
        if before == after || !self.is_owned(key) {
            return;
        }
        if after && state.readiness() == ServiceReadiness::Ready {
            self.start(key, ReceivedBy::List, now);
        }
        self.published.push((key.clone(), after.then_some(state)));
    }

    /// Stops the weeders of services without dependants.
    fn declaration_lost(&mut self, why: StopReason, now: UnixTime) {
        let Self {
            declared, manager, ..
        } = self;
        manager.cancel(why, now, |key| declared.of(key).is_none());
    }

    fn reselect(&mut self, key: &NamespacedName, now: UnixTime) {
        if let Some(dependants) = self.declared.of(key) {
            self.manager.reselect(key, dependants, now);
        }
    }

    fn namespace_ended(&mut self, name: &str, now: UnixTime) {
        self.manager
            .cancel(StopReason::NamespaceEnded, now, |key| *key.namespace == *name);
    }

    fn plan_watches(&mut self) {
        self.queries = PodQuery::plan(&self.declared.selectors(), &self.owned_namespaces);
        self.watched_services = self.declared.watched_services(self.annotations_listed);
    }
}

/// The evidence that the endpoints of a service can give when it was not seen to become ready.
fn endpoint_proof(index: &Index, service: &NamespacedName) -> OutageProof {
    match index.endpoint_pods(service) {
        Some(pods) => OutageProof::Unread(pods),
        None => OutageProof::Read(OutageEvidence::default()),
    }
}

#[cfg(test)]
mod tests;
