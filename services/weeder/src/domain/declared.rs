//! The services with dependants: those that the configuration names, in every namespace, and those that declare their
//! dependants by an annotation. If both do, the selectors of both count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use watchdog_api::selector::Selector;
use watchdog_api::weeder::WeederConfig;

use super::dependants::Dependants;
use super::service::ServiceKey;

/// The dependants of all services.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    file: BTreeMap<Arc<str>, Arc<Dependants>>,
    annotated: BTreeMap<ServiceKey, Annotated>,
    // The names of those that are annotated, with how many each has.
    names: BTreeMap<Arc<str>, usize>,
}

#[derive(Debug)]
struct Annotated {
    own: Vec<Selector>,
    // With those of the file.
    all: Arc<Dependants>,
}

impl Declared {
    /// Takes up another configuration.
    pub(crate) fn configure(&mut self, config: &WeederConfig) {
        let entry = |(service, selectors): (&String, &Vec<_>)| {
            (service.as_str().into(), Arc::new(Dependants::new(selectors)))
        };
        self.file = config.services.iter().map(entry).collect();
        for (key, annotated) in &mut self.annotated {
            annotated.all = merged(&self.file, &key.service, &annotated.own);
        }
    }

    /// A service declares these dependants by its annotation, or none.
    pub(crate) fn set_dependants(&mut self, key: &ServiceKey, own: Option<Vec<Selector>>) {
        let old = match own {
            Some(own) => {
                let all = merged(&self.file, &key.service, &own);
                *self.names.entry(key.service.clone()).or_default() += 1;
                self.annotated.insert(key.clone(), Annotated { own, all })
            }
            None => self.annotated.remove(key),
        };
        if old.is_some()
            && let Some(count) = self.names.get_mut(&key.service)
        {
            *count -= 1;
            if *count == 0 {
                self.names.remove(&key.service);
            }
        }
    }

    /// The dependants of a service; none when it has none.
    pub(crate) fn of(&self, key: &ServiceKey) -> Option<&Arc<Dependants>> {
        match self.annotated.get(key) {
            Some(annotated) => Some(&annotated.all),
            None => self.file.get(&key.service),
        }
    }

    /// The names of the services that are annotated.
    pub(crate) fn annotated_names(&self) -> BTreeSet<Arc<str>> {
        self.names.keys().cloned().collect()
    }

    /// The selectors of all dependants, in kubectl's notation.
    pub(crate) fn selectors(&self) -> BTreeSet<Arc<str>> {
        let annotated = self.annotated.values().map(|annotated| &annotated.all);
        let all = self.file.values().chain(annotated);
        all.flat_map(|dependants| dependants.queries().cloned()).collect()
    }

    /// The services that are annotated.
    pub(crate) fn annotated(&self) -> impl Iterator<Item = &ServiceKey> {
        self.annotated.keys()
    }
}

fn merged(file: &BTreeMap<Arc<str>, Arc<Dependants>>, service: &str, own: &[Selector]) -> Arc<Dependants> {
    Arc::new(match file.get(service) {
        Some(dependants) => dependants.and(own),
        None => Dependants::new(own),
    })
}
