//! All that the weeder knows, and what follows from what it hears.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::selector::Selector;
use watchdog_api::weeder::WeederConfig;

use super::declared::Declared;
use super::moment::Moment;
use super::namespaces::Namespaces;
use super::readiness::{Change, Index, Readiness, ServiceState, Slice, SliceKey};
use super::service::ServiceKey;
use super::weeder::{Stop, Weeder};
use super::weeding::Weeding;

/// Whether this replica owns a namespace.
pub type Owns<'a> = &'a dyn Fn(&str) -> bool;

/// Readiness of services, weeders, and whose namespaces they are in.
#[derive(Debug)]
pub struct Model {
    watch_duration: Duration,
    declared: Declared,
    index: Index,
    namespaces: Namespaces,
    // The namespaces with services, and whether they are ours.
    shares: BTreeMap<Arc<str>, bool>,
    /// The weeders.
    pub weeding: Weeding,
    published: Vec<(ServiceKey, Option<ServiceState>)>,
}

/// What is to be told since the last time; none is what is gone.
#[derive(Debug, Default)]
pub struct News {
    /// Readiness of services.
    pub services: Vec<(ServiceKey, Option<ServiceState>)>,
    /// Weeders.
    pub weeders: Vec<(ServiceKey, Option<Weeder>)>,
}

impl Model {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(config: &WeederConfig) -> Self {
        let mut declared = Declared::default();
        declared.configure(config);
        Self {
            watch_duration: config.watch_duration,
            declared,
            index: Index::default(),
            namespaces: Namespaces::default(),
            shares: BTreeMap::new(),
            weeding: Weeding::default(),
            published: Vec::new(),
        }
    }

    /// The configuration has changed. Weeders of services that have no dependants any more stop, the others take up
    /// their new dependants; a new `watchDuration` holds for weeders that start from now on.
    pub fn reconfigure(&mut self, config: &WeederConfig, now: Moment) {
        self.watch_duration = config.watch_duration;
        // An annotation lets slices of a service be known that the file did not name: they are first seen now.
        let known: Vec<(ServiceKey, bool)> = self
            .index
            .services()
            .map(|(key, _)| (key.clone(), self.declared.of(key).is_some()))
            .collect();
        self.declared.configure(config);
        for (key, before) in known {
            self.redeclared(&key, before, now);
        }
        self.declaration_lost(Stop::NotConfigured, now);
        for key in self.weeding.live() {
            self.reselect(&key, now);
        }
    }

    /// A service declares these dependants by its annotation, or none. One that is ready and had no dependants counts
    /// as first seen ready.
    pub fn service_annotated(&mut self, key: &ServiceKey, own: Option<Vec<Selector>>, now: Moment) {
        let before = self.declared.of(key).cloned();
        self.declared.annotate(key, own);
        if before.as_ref() == self.declared.of(key) {
            return;
        }
        self.redeclared(key, before.is_some(), now);
        if self.declared.of(key).is_none() {
            self.declaration_lost(Stop::NotAnnotated, now);
        } else {
            self.reselect(key, now);
        }
    }

    /// These services exist and no others.
    pub fn annotations_synced(&mut self, live: &BTreeSet<ServiceKey>, now: Moment) {
        let gone = self.declared.annotated().filter(|key| !live.contains(key));
        let gone: Vec<ServiceKey> = gone.cloned().collect();
        for key in gone {
            self.service_annotated(&key, None, now);
        }
    }

    /// Only slices of these services will be heard of from now on: those of others are forgotten. A service that nobody
    /// names (any more) may be among them. Its slices lead to nothing, but are known when it is named.
    pub fn follows(&mut self, followed: impl Fn(&str) -> bool, now: Moment) {
        // What is to be told of these was told when their declaration was lost.
        self.index.keep_services(followed, now);
        let Self { index, shares, .. } = self;
        shares.retain(|namespace, _| index.services_in(namespace).next().is_some());
    }

    /// The names of the services that declare their dependants by an annotation.
    #[must_use]
    pub fn annotated_names(&self) -> BTreeSet<Arc<str>> {
        self.declared.annotated_names()
    }

    /// A slice is new, changed or seen again.
    pub fn slice_applied(&mut self, slice: Slice, owns: Owns<'_>, now: Moment) {
        for change in self.index.apply(slice, now) {
            self.changed(change, owns, now);
        }
    }

    /// A slice is gone.
    pub fn slice_removed(&mut self, key: &SliceKey, owns: Owns<'_>, now: Moment) {
        if let Some(change) = self.index.remove(key, now) {
            self.changed(change, owns, now);
        }
    }

    /// These slices exist and no others, of this service or of all of them.
    pub fn slices_synced(
        &mut self,
        service: Option<&str>,
        live: &BTreeSet<SliceKey>,
        owns: Owns<'_>,
        now: Moment,
    ) {
        for change in self.index.synced(service, live, now) {
            self.changed(change, owns, now);
        }
    }

    /// A namespace was seen.
    pub fn namespace_applied(&mut self, name: &str, terminating: bool, now: Moment) {
        if self.namespaces.applied(name, terminating) {
            self.namespace_ended(name, now);
        }
    }

    /// A namespace is gone.
    pub fn namespace_removed(&mut self, name: &str, now: Moment) {
        self.namespaces.removed(name);
        self.namespace_ended(name, now);
    }

    /// These namespaces exist and no others.
    pub fn namespaces_synced(&mut self, live: &BTreeSet<String>, now: Moment) {
        for name in self.namespaces.synced(live) {
            self.namespace_ended(&name, now);
        }
    }

    /// The replicas share the namespaces in another way now. Of a namespace that comes over from another replica the
    /// services that are ready count as first seen ready.
    pub fn shares_changed(&mut self, owns: Owns<'_>, now: Moment) {
        let mut came = Vec::new();
        let mut went = BTreeSet::new();
        for (namespace, ours) in &mut self.shares {
            let is_ours = owns(namespace);
            if std::mem::replace(ours, is_ours) != is_ours {
                if is_ours {
                    came.push(namespace.clone());
                } else {
                    went.insert(namespace.clone());
                }
            }
        }
        self.weeding
            .cancel(Stop::NotOwned, now, |key| went.contains(&key.namespace));
        for namespace in &went {
            let gone = self
                .index
                .services_in(namespace)
                .filter(|(key, _)| self.declared.of(key).is_some())
                .map(|(key, _)| (key.clone(), None));
            self.published.extend(gone);
        }
        for namespace in &came {
            let services: Vec<_> = self
                .index
                .services_in(namespace)
                .filter(|(key, _)| self.declared.of(key).is_some())
                .map(|(key, state)| (key.clone(), *state))
                .collect();
            for (key, state) in services {
                if state.readiness() == Readiness::Ready {
                    self.start(&key, now);
                }
                self.published.push((key, Some(state)));
            }
        }
    }

    /// What is to be told since the last call.
    pub fn take_news(&mut self) -> News {
        News {
            services: std::mem::take(&mut self.published),
            weeders: self.weeding.take_changed(),
        }
    }

    fn changed(&mut self, change: Change, owns: Owns<'_>, now: Moment) {
        let namespace = &change.key.namespace;
        // A namespace that has just been heard of may be anybody's.
        let ours = *self
            .shares
            .entry(namespace.clone())
            .or_insert_with(|| owns(namespace));
        if ours && change.became_ready() {
            self.start(&change.key, now);
        } else if change.is_not_ready() {
            self.weeding.rest(&change.key);
        }
        let namespace = namespace.clone();
        self.tell(change.key, change.after);
        // Namespaces without services need no decision; one that comes back is looked at anew.
        if self.index.services_in(&namespace).next().is_none() {
            self.shares.remove(&namespace);
        }
    }

    fn start(&mut self, key: &ServiceKey, now: Moment) {
        if self.namespaces.is_terminating(&key.namespace) {
            return;
        }
        if let Some(dependants) = self.declared.of(key) {
            self.weeding
                .start(key.clone(), dependants.clone(), self.watch_duration, now);
        }
    }

    fn tell(&mut self, key: ServiceKey, state: Option<ServiceState>) {
        // A service of that name may be annotated in another namespace only.
        if self.is_ours(&key) && self.declared.of(&key).is_some() {
            self.published.push((key, state));
        }
    }

    fn is_ours(&self, key: &ServiceKey) -> bool {
        self.shares.get(&key.namespace) == Some(&true)
    }

    /// Somebody began or ceased to declare the dependants of a service.
    fn redeclared(&mut self, key: &ServiceKey, before: bool, now: Moment) {
        let after = self.declared.of(key).is_some();
        let Some(state) = self.index.get(key).copied() else {
            return;
        };
        if before == after || !self.is_ours(key) {
            return;
        }
        if after && state.readiness() == Readiness::Ready {
            self.start(key, now);
        }
        self.published.push((key.clone(), after.then_some(state)));
    }

    /// Ends what has no dependants any more.
    fn declaration_lost(&mut self, why: Stop, now: Moment) {
        let Self {
            declared, weeding, ..
        } = self;
        weeding.cancel(why, now, |key| declared.of(key).is_none());
    }

    fn reselect(&mut self, key: &ServiceKey, now: Moment) {
        if let Some(dependants) = self.declared.of(key) {
            self.weeding.reselect(key, dependants, now);
        }
    }

    fn namespace_ended(&mut self, name: &str, now: Moment) {
        self.weeding
            .cancel(Stop::NamespaceEnded, now, |key| *key.namespace == *name);
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
