//! The services with dependants: those that the configuration names, in every namespace, and those that declare their
//! dependants by an annotation. If both do, the selectors of both count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use watchdog_api::selector::Selector;
use watchdog_api::weeder::WeederConfig;

use super::dependants::{Dependants, MAX_WATCHES};
use super::namespaced_name::NamespacedName;

/// Names in a selector at most: they take 4 kB, which every proxy lets through. With more names the endpoints of all
/// services are watched.
const MAX_NAMES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Declared {
    file: BTreeMap<Arc<str>, Arc<Dependants>>,
    annotated: BTreeMap<NamespacedName, Arc<Dependants>>,
    // The names of annotated Services and the selectors of all dependants, so that a change of one of thousands does
    // not go through all of them.
    annotated_names: UseCounts,
    selectors: UseCounts,
}

/// How often each text is in use.
#[derive(Debug, Default)]
struct UseCounts(BTreeMap<Arc<str>, usize>);

/// The services whose endpoints are watched, in all namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WatchedServices {
    Named(BTreeSet<Arc<str>>),
    All,
}

impl Declared {
    pub(crate) fn configure(&mut self, config: &WeederConfig) {
        for old in self.file.values() {
            old.queries().for_each(|query| self.selectors.remove(query));
        }
        let entry = |(service, selectors): (&String, &Vec<_>)| {
            (service.as_str().into(), Arc::new(Dependants::new(selectors)))
        };
        self.file = config.services.iter().map(entry).collect();
        for new in self.file.values() {
            new.queries().for_each(|query| self.selectors.add(query));
        }
    }

    /// A service declares these dependants by its annotation, or none. Returns true if that is new.
    pub(crate) fn set_dependants(&mut self, key: &NamespacedName, own: Option<Vec<Selector>>) -> bool {
        let new = own.map(|own| Arc::new(Dependants::new(&own)));
        if self.annotated.get(key) == new.as_ref() {
            return false;
        }
        if let Some(old) = self.annotated.remove(key) {
            self.annotated_names.remove(&key.name);
            old.queries().for_each(|query| self.selectors.remove(query));
        }
        if let Some(new) = new {
            self.annotated_names.add(&key.name);
            new.queries().for_each(|query| self.selectors.add(query));
            self.annotated.insert(key.clone(), new);
        }
        true
    }

    /// The dependants of a service; none when it has none.
    pub(crate) fn of(&self, key: &NamespacedName) -> Option<Arc<Dependants>> {
        match (self.file.get(&key.name), self.annotated.get(key)) {
            (Some(file), Some(annotated)) => Some(Arc::new(file.and(annotated))),
            (file, annotated) => file.or(annotated).cloned(),
        }
    }

    /// True when a service has dependants.
    pub(crate) fn has(&self, key: &NamespacedName) -> bool {
        self.annotated.contains_key(key) || self.file.contains_key(&key.name)
    }

    /// The services whose endpoints must be watched; those that are only annotated count when `annotated` is true.
    pub(crate) fn watched_services(&self, annotated: bool) -> WatchedServices {
        let annotations = self.annotated_names.0.keys().filter(|_| annotated);
        let mut names = BTreeSet::new();
        for name in self.file.keys().chain(annotations) {
            names.insert(name.clone());
            if names.len() > MAX_NAMES {
                return WatchedServices::All;
            }
        }
        WatchedServices::Named(names)
    }

    /// The selectors of all dependants, in kubectl's notation; of more than [`MAX_WATCHES`] one more than that.
    pub(crate) fn selectors(&self) -> BTreeSet<Arc<str>> {
        self.selectors.0.keys().take(MAX_WATCHES + 1).cloned().collect()
    }

    pub(crate) fn annotated(&self) -> impl Iterator<Item = &NamespacedName> {
        self.annotated.keys()
    }
}

impl UseCounts {
    fn add(&mut self, text: &Arc<str>) {
        *self.0.entry(text.clone()).or_default() += 1;
    }

    fn remove(&mut self, text: &Arc<str>) {
        if let Some(uses) = self.0.get_mut(text) {
            *uses -= 1;
            if *uses == 0 {
                self.0.remove(text);
            }
        }
    }
}

impl WatchedServices {
    pub(crate) fn includes(&self, service: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(service),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::config;

    #[test]
    fn with_many_names_all_services_are_watched_and_further_names_change_nothing() {
        let mut declared = Declared::default();
        declared.configure(&config());
        let selectors = watchdog_api::weeder::parse_dependants("[{matchLabels: {a: b}}]").unwrap();
        let mut watched = Vec::new();
        for n in 0..MAX_NAMES {
            declared.set_dependants(
                &NamespacedName::new("shoot", format!("s{n}")),
                Some(selectors.clone()),
            );
            watched.push(declared.watched_services(true));
        }
        let named = |watched: &WatchedServices| matches!(watched, WatchedServices::Named(_));
        // The file names two.
        assert!(watched[..MAX_NAMES - 2].iter().all(named));
        assert!(
            watched[MAX_NAMES - 2..]
                .iter()
                .all(|watched| *watched == WatchedServices::All)
        );
        assert!(named(&declared.watched_services(false)), "only those of the file");
    }
}
