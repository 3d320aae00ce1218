//! All that the weeder knows, and what follows from a change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use watchdog_api::selector::Selector;
use watchdog_api::weeder::WeederConfig;
use watchdog_runtime::publish::publish_if_changed;

use super::manager::{OutageProof, WeederManager};
use crate::domain::declared::{Declared, WatchedServices};
use crate::domain::dependants::PodQuery;
use crate::domain::evidence::OutageEvidence;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::namespaces::{Namespace, Namespaces};
use crate::domain::readiness::{Index, ReceivedBy, ServiceChange, ServiceState, Slice};
use crate::domain::weeder::StopReason;
use watchdog_api::unix_time::UnixTime;

/// The readiness of services, the weeders, and who owns their namespaces.
pub(crate) struct WeederState {
    declared: Declared,
    index: Index,
    namespaces: Namespaces,
    // True for the namespaces that this replica owns now.
    owns: Box<dyn Fn(&str) -> bool + Send>,
    // The namespaces with services, and whether this replica owned them when that was last looked at.
    owned_namespaces: BTreeMap<Arc<str>, bool>,
    // While the annotations are listed, each name would cause another list of the slices.
    annotations_listed: bool,
    // Until a list of slices is complete, a service may have endpoints that are not known yet.
    slices_listing: bool,
    pub(crate) pod_queries: watch::Sender<BTreeSet<PodQuery>>,
    pub(crate) watched_services: watch::Sender<WatchedServices>,
    pub(crate) manager: WeederManager,
    published: Vec<(NamespacedName, Option<ServiceState>)>,
}

impl WeederState {
    /// `owns` says whether this replica owns a namespace.
    pub(crate) fn new(config: &WeederConfig, owns: impl Fn(&str) -> bool + Send + 'static) -> Self {
        let mut declared = Declared::default();
        declared.configure(config);
        let owned_namespaces = BTreeMap::new();
        Self {
            annotations_listed: false,
            slices_listing: false,
            pod_queries: watch::Sender::new(PodQuery::plan(&declared.selectors(), &owned_namespaces)),
            watched_services: watch::Sender::new(declared.watched_services(false)),
            declared,
            index: Index::default(),
            namespaces: Namespaces::default(),
            owns: Box::new(owns),
            owned_namespaces,
            manager: WeederManager::new(config),
            published: Vec::new(),
        }
    }

    /// The configuration has changed. Weeders of services that have no dependants any more stop, the others take
    /// their new dependants; new durations hold for weeders that start from now on.
    pub(crate) fn reconfigure(&mut self, config: &WeederConfig, now: UnixTime) {
        self.manager.reconfigure(config, now);
        // An annotation lets slices of a service be known that the file did not name: they are first seen now. A
        // weeder may outlive the slices of its service.
        let services = self.index.services().map(|(key, _)| key.clone());
        let known: BTreeSet<NamespacedName> = services.chain(self.manager.live()).collect();
        let had = |key: NamespacedName| (self.declared.has(&key), key);
        let known: Vec<(bool, NamespacedName)> = known.into_iter().map(had).collect();
        self.declared.configure(config);
        for (had, key) in known {
            self.redeclared(key, had, StopReason::NotConfigured, now);
        }
        self.plan_watches();
    }

    /// A service declares these dependants by its annotation, or none. One that is ready and had no dependants counts
    /// as first seen ready.
    pub(crate) fn set_dependants(&mut self, key: &NamespacedName, own: Option<Vec<Selector>>, now: UnixTime) {
        let had = self.declared.has(key);
        if self.declared.set_dependants(key, own) {
            self.redeclared(key.clone(), had, StopReason::NotAnnotated, now);
            self.plan_watches();
        }
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
        let has_services = |namespace: &str| self.index.services_in(namespace).next().is_some();
        self.owned_namespaces
            .retain(|namespace, _| has_services(namespace));
    }

    pub(crate) fn slice_applied(&mut self, slice: Slice, received_by: ReceivedBy, now: UnixTime) {
        self.slices_listing |= received_by == ReceivedBy::List;
        for change in self.index.apply(slice, now) {
            self.changed(change, received_by, now);
        }
    }

    pub(crate) fn slice_removed(&mut self, key: &NamespacedName, now: UnixTime) {
        if let Some(change) = self.index.remove(key, now) {
            self.changed(change, ReceivedBy::Watch, now);
        }
    }

    /// These slices exist and no others, of this service or of all of them.
    pub(crate) fn slices_synced(
        &mut self,
        service: Option<&str>,
        live: &BTreeSet<NamespacedName>,
        now: UnixTime,
    ) {
        for change in self.index.synced(service, live, now) {
            self.changed(change, ReceivedBy::List, now);
        }
        self.slices_listing = false;
        self.manager
            .endpoints_listed(|key| endpoint_proof(&self.index, key), now);
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
    pub(crate) fn ownership_changed(&mut self, now: UnixTime) {
        let mut moved = Vec::new();
        for (namespace, owned) in &mut self.owned_namespaces {
            let owns = (self.owns)(namespace);
            if std::mem::replace(owned, owns) != owns {
                moved.push((namespace.clone(), owns));
            }
        }
        // Not by `moved`: a paused weeder's namespace may have lost all its services.
        for key in self.manager.live() {
            if !(self.owns)(&key.namespace) {
                self.manager.cancel(&key, StopReason::NotOwned, now);
            }
        }
        for (namespace, owned) in moved {
            let services = self.index.services_in(&namespace);
            let services = services.filter(|(key, _)| self.declared.has(key));
            let services: Vec<_> = services.map(|(key, state)| (key.clone(), *state)).collect();
            for (key, state) in services {
                if owned {
                    self.found(key, state, now);
                } else {
                    self.published.push((key, None));
                }
            }
        }
        self.plan_watches();
    }

    /// Returns true if [`Self::ownership_changed`] would change nothing.
    pub(crate) fn follows_ownership(&self) -> bool {
        let mut namespaces = self.owned_namespaces.iter();
        namespaces.all(|(namespace, owned)| *owned == (self.owns)(namespace))
    }

    /// Returns true if the service has slices and dependants, whichever replica owns its namespace.
    pub(crate) fn has_service(&self, key: &NamespacedName) -> bool {
        self.index.get(key).is_some() && self.declared.has(key)
    }

    /// The changes of services since the last call; none stands for a removal.
    pub(crate) fn take_published(&mut self) -> Vec<(NamespacedName, Option<ServiceState>)> {
        std::mem::take(&mut self.published)
    }

    fn changed(&mut self, change: ServiceChange, received_by: ReceivedBy, now: UnixTime) {
        let namespace = change.key.namespace.clone();
        // A namespace that is seen for the first time may belong to any replica.
        let owned = match self.owned_namespaces.get(&namespace) {
            Some(owned) => *owned,
            None => {
                let owned = (self.owns)(&namespace);
                self.owned_namespaces.insert(namespace.clone(), owned);
                if received_by == ReceivedBy::Watch {
                    self.plan_watches();
                }
                owned
            }
        };
        if owned && change.became_ready() {
            self.start(&change.key, received_by, now);
        } else if !change.is_ready() {
            self.manager.pause(&change.key);
        }
        // A service of that name may have dependants in another namespace only.
        if owned && self.declared.has(&change.key) {
            self.published.push((change.key, change.after));
        }
        // A namespace that comes back is decided on anew.
        if self.index.services_in(&namespace).next().is_none() {
            self.owned_namespaces.remove(&namespace);
        }
    }

    /// A service with dependants belongs to this replica from now on. One that is ready counts as first seen ready.
    fn found(&mut self, key: NamespacedName, state: ServiceState, now: UnixTime) {
        if state.endpoints.is_ready() {
            self.start(&key, ReceivedBy::List, now);
        }
        self.published.push((key, Some(state)));
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
            self.manager.start(key.clone(), dependants, proof, now);
        }
    }

    /// The dependants of a service may have changed, which `had` some before.
    fn redeclared(&mut self, key: NamespacedName, had: bool, why: StopReason, now: UnixTime) {
        let is_owned = self.owned_namespaces.get(&key.namespace) == Some(&true);
        let state = self.index.get(&key).copied().filter(|_| is_owned);
        match (had, self.declared.of(&key)) {
            (true, Some(dependants)) => self.manager.reselect(&key, &dependants, now),
            (true, None) => {
                self.manager.cancel(&key, why, now);
                if state.is_some() {
                    self.published.push((key, None));
                }
            }
            (false, Some(_)) => {
                if let Some(state) = state {
                    self.found(key, state, now);
                }
            }
            (false, None) => {}
        }
    }

    fn namespace_ended(&mut self, name: &str, now: UnixTime) {
        self.manager
            .cancel_namespace(name, StopReason::NamespaceEnded, now);
    }

    fn plan_watches(&self) {
        let queries = PodQuery::plan(&self.declared.selectors(), &self.owned_namespaces);
        publish_if_changed(&self.pod_queries, &queries);
        let services = self.declared.watched_services(self.annotations_listed);
        publish_if_changed(&self.watched_services, &services);
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
