//! The pods that depend on a service, and the watches that see them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use watchdog_api::selector::{Selector, SelectorExt};

/// Watches on pods at most. Seeds have two or three selectors; should there be more than so many at once, one watch on
/// all pods takes the place of all of them.
pub const MAX_WATCHES: usize = 8;

/// The selectors of a service's dependants; a pod that matches one of them depends on the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependants {
    selectors: Vec<(Selector, Arc<str>)>,
}

/// What a watch on pods, over all namespaces, asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    /// All pods.
    All,
    /// Those that match this label selector.
    Labels(Arc<str>),
}

/// The queries of the weeders that live, each with the number of them.
#[derive(Debug, Default)]
pub struct Queries {
    wanted: BTreeMap<Arc<str>, usize>,
}

// === impl Dependants ===

impl Dependants {
    /// By their selectors.
    #[must_use]
    pub fn new(selectors: &[Selector]) -> Self {
        Self {
            selectors: selectors
                .iter()
                .map(|s| (s.clone(), s.to_string().into()))
                .collect(),
        }
    }

    /// These and those that more selectors name.
    #[must_use]
    pub fn and(&self, more: &[Selector]) -> Self {
        let mut all = self.clone();
        for (selector, query) in Self::new(more).selectors {
            if !all.queries().any(|known| *known == query) {
                all.selectors.push((selector, query));
            }
        }
        all
    }

    /// Whether a pod with these labels is one of them.
    #[must_use]
    pub fn include(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selectors
            .iter()
            .any(|(selector, _)| selector.matches(labels))
    }

    /// The selectors in kubectl's notation, as the API server takes them.
    pub fn queries(&self) -> impl Iterator<Item = &Arc<str>> {
        self.selectors.iter().map(|(_, query)| query)
    }

    /// Whether a watch may see some of them.
    #[must_use]
    pub fn are_seen_by(&self, query: &Query) -> bool {
        match query {
            Query::All => true,
            Query::Labels(labels) => self.queries().any(|own| own == labels),
        }
    }
}

// === impl Queries ===

impl Queries {
    /// A weeder begins to live.
    pub fn add(&mut self, dependants: &Dependants) {
        for query in dependants.queries() {
            *self.wanted.entry(query.clone()).or_default() += 1;
        }
    }

    /// A weeder has ended.
    pub fn remove(&mut self, dependants: &Dependants) {
        for query in dependants.queries() {
            if let Some(count) = self.wanted.get_mut(query) {
                *count -= 1;
                if *count == 0 {
                    self.wanted.remove(query);
                }
            }
        }
    }

    /// The watches that see all dependants of all weeders that live: none when none lives, and never more than
    /// [`MAX_WATCHES`].
    #[must_use]
    pub fn watches(&self) -> BTreeSet<Query> {
        if self.wanted.len() > MAX_WATCHES {
            return BTreeSet::from([Query::All]);
        }
        self.wanted.keys().cloned().map(Query::Labels).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependants(roles: &[&str]) -> Dependants {
        let selectors: String = roles
            .iter()
            .map(|role| format!("{{matchLabels: {{role: {role}}}}},"))
            .collect();
        let file = format!("servicesAndDependantSelectors: {{etcd: {{podSelectors: [{selectors}]}}}}");
        let config = watchdog_api::weeder::parse(file.as_bytes()).unwrap();
        Dependants::new(&config.services["etcd"])
    }

    #[test]
    fn one_selector_of_several_is_enough() {
        let both = dependants(&["a", "b"]);
        let labels = |role: &str| BTreeMap::from([("role".to_owned(), role.to_owned())]);
        assert!(both.include(&labels("a")) && both.include(&labels("b")));
        assert!(!both.include(&labels("c")) && !both.include(&BTreeMap::new()));
    }

    #[test]
    fn watches_are_shared_and_bounded() {
        let mut queries = Queries::default();
        let (a, b) = (dependants(&["a"]), dependants(&["a", "b"]));
        for _ in 0..1000 {
            queries.add(&a);
        }
        assert_eq!(
            queries.watches(),
            BTreeSet::from([Query::Labels("role in (a)".into())])
        );
        queries.add(&b);
        assert_eq!(queries.watches().len(), 2);
        assert!(queries.watches().iter().all(|query| b.are_seen_by(query)));
        assert!(queries.watches().iter().any(|query| !a.are_seen_by(query)));
        queries.remove(&b);
        assert_eq!(queries.watches().len(), 1);
        for role in 0..MAX_WATCHES {
            queries.add(&dependants(&[&format!("r{role}")]));
        }
        assert_eq!(queries.watches(), BTreeSet::from([Query::All]));
        assert!(a.are_seen_by(&Query::All));
        for _ in 0..1000 {
            queries.remove(&a);
        }
        assert_eq!(queries.watches().len(), MAX_WATCHES);
    }
}
