//! The pods that depend on a service, and the watches that see them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use watchdog_api::selector::{Selector, SelectorExt};

/// Watches on pods at most. Gardener's file has two selectors; with more than eight, one watch on all pods takes the
/// place of all of them.
pub(crate) const MAX_WATCHES: usize = 8;

/// The selectors of a service's dependants; a pod that matches one of them depends on the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependants {
    selectors: Vec<(Selector, Arc<str>)>,
}

/// The restrictions of a watch on pods; none stands for no restriction.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodQuery {
    pub(crate) namespace: Option<Arc<str>>,
    /// A label selector in kubectl's notation.
    pub(crate) labels: Option<Arc<str>>,
}

// === impl Dependants ===

impl Dependants {
    pub(crate) fn new(selectors: &[Selector]) -> Self {
        let query = |selector: &Selector| (selector.clone(), selector.to_string().into());
        Self {
            selectors: selectors.iter().map(query).collect(),
        }
    }

    /// With more selectors; one that is there already does not count twice.
    pub(crate) fn and(&self, more: &Self) -> Self {
        let mut all = self.clone();
        for (selector, query) in &more.selectors {
            if !all.queries().any(|known| known == query) {
                all.selectors.push((selector.clone(), query.clone()));
            }
        }
        all
    }

    /// True when a pod with these labels is one of them.
    pub(crate) fn include(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selectors
            .iter()
            .any(|(selector, _)| selector.matches(labels))
    }

    /// The selectors in kubectl's notation, as the API server takes them.
    pub(crate) fn queries(&self) -> impl Iterator<Item = &Arc<str>> {
        self.selectors.iter().map(|(_, query)| query)
    }
}

// === impl PodQuery ===

impl PodQuery {
    /// The watches that see all pods with these selectors: one for each selector. Where the replica owns few of many
    /// namespaces, one for each namespace and selector, so that pods of others are neither sent nor decoded. Beyond
    /// [`MAX_WATCHES`] selectors, one over all pods.
    pub(crate) fn plan(
        selectors: &BTreeSet<Arc<str>>,
        namespaces: &BTreeMap<Arc<str>, bool>,
    ) -> BTreeSet<Self> {
        if selectors.len() > MAX_WATCHES {
            return BTreeSet::from([Self::default()]);
        }
        let owned = namespaces.iter().filter(|(_, owned)| **owned);
        let owned = owned.map(|(name, _)| Some(name.clone()));
        // One more than can be watched is enough to know: a replica may own thousands.
        let owned: Vec<_> = owned.take(MAX_WATCHES + 1).collect();
        let few = owned.len() * selectors.len() <= MAX_WATCHES && owned.len() < namespaces.len();
        let scopes = if few { owned } else { vec![None] };
        let mut queries = BTreeSet::new();
        for namespace in scopes {
            for labels in selectors {
                queries.insert(Self {
                    namespace: namespace.clone(),
                    labels: Some(labels.clone()),
                });
            }
        }
        queries
    }

    /// How the watch is restricted: a closed set of label values.
    pub(crate) const fn scope(&self) -> &'static str {
        match (&self.namespace, &self.labels) {
            (Some(_), _) => "namespace",
            (None, Some(_)) => "selector",
            (None, None) => "all",
        }
    }
}

impl std::fmt::Display for PodQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}: ")?;
        }
        f.write_str(self.labels.as_deref().unwrap_or("all"))
    }
}

#[cfg(test)]
mod tests {
    use watchdog_api::config::UnknownFields;

    use super::*;

    fn dependants(roles: &[&str]) -> Dependants {
        let selectors: String = roles
            .iter()
            .map(|role| format!("{{matchLabels: {{role: {role}}}}},"))
            .collect();
        let file = format!("servicesAndDependantSelectors: {{etcd: {{podSelectors: [{selectors}]}}}}");
        let parsed = watchdog_api::weeder::parse(file.as_bytes(), UnknownFields::Refused);
        Dependants::new(&parsed.unwrap().config.services["etcd"])
    }

    #[test]
    fn one_selector_of_several_is_enough() {
        let both = dependants(&["a", "b"]);
        let labels = |role: &str| BTreeMap::from([("role".to_owned(), role.to_owned())]);
        assert!(both.include(&labels("a")) && both.include(&labels("b")));
        assert!(!both.include(&labels("c")) && !both.include(&BTreeMap::new()));
    }

    fn scopes(selectors: usize, owned: usize, foreign: usize) -> (usize, BTreeSet<&'static str>) {
        let selectors = (0..selectors)
            .map(|i| Arc::from(format!("role in (r{i})")))
            .collect();
        let namespace = |i: usize| (Arc::from(format!("shoot--{i:05}")), i < owned);
        let queries = PodQuery::plan(&selectors, &(0..owned + foreign).map(namespace).collect());
        (queries.len(), queries.iter().map(PodQuery::scope).collect())
    }

    #[test]
    fn watches_are_shared_bounded_and_as_narrow_as_the_api_allows() {
        assert_eq!(scopes(2, 10_000, 0), (2, BTreeSet::from(["selector"])));
        assert_eq!(scopes(2, 5_000, 5_000), (2, BTreeSet::from(["selector"])));
        assert_eq!(
            scopes(MAX_WATCHES, 1, 0),
            (MAX_WATCHES, BTreeSet::from(["selector"]))
        );
        assert_eq!(scopes(2, 4, 100), (8, BTreeSet::from(["namespace"])));
        assert_eq!(scopes(2, 5, 100), (2, BTreeSet::from(["selector"])));
        assert_eq!(scopes(2, 0, 100), (0, BTreeSet::new()), "nothing to see");
        assert_eq!(scopes(2, 0, 0), (2, BTreeSet::from(["selector"])));
        assert_eq!(scopes(MAX_WATCHES + 1, 1, 100), (1, BTreeSet::from(["all"])));
    }
}
