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

/// The selection of a watch on pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodQuery {
    All,
    /// A label selector in kubectl's notation.
    Labels(Arc<str>),
}

// === impl Dependants ===

impl Dependants {
    pub(crate) fn new(selectors: &[Selector]) -> Self {
        let query = |selector: &Selector| (selector.clone(), selector.to_string().into());
        Self {
            selectors: selectors.iter().map(query).collect(),
        }
    }

    /// True when a pod with these labels is one of them.
    pub(crate) fn include(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selectors
            .iter()
            .any(|(selector, _)| selector.matches(labels))
    }

    /// The same by the selector with this notation alone.
    pub(crate) fn include_by(&self, query: &str, labels: &BTreeMap<String, String>) -> bool {
        let mut selectors = self.selectors.iter().filter(|(_, notation)| **notation == *query);
        selectors.any(|(selector, _)| selector.matches(labels))
    }

    /// The selectors in kubectl's notation, as the API server takes them.
    pub(crate) fn queries(&self) -> impl Iterator<Item = &Arc<str>> {
        self.selectors.iter().map(|(_, query)| query)
    }
}

// === impl PodQuery ===

impl PodQuery {
    /// The watches that see all pods with these selectors: one for each selector; beyond [`MAX_WATCHES`] one on all
    /// pods.
    pub(crate) fn plan(selectors: BTreeSet<Arc<str>>) -> BTreeSet<Self> {
        if selectors.len() > MAX_WATCHES {
            return BTreeSet::from([Self::All]);
        }
        selectors.into_iter().map(Self::Labels).collect()
    }
}

impl std::fmt::Display for PodQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Labels(labels) => f.write_str(labels),
        }
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

    #[test]
    fn watches_on_pods_are_bounded() {
        let selectors = |count: usize| (0..count).map(|i| Arc::from(format!("role in (r{i})"))).collect();
        assert_eq!(PodQuery::plan(selectors(2)).len(), 2);
        assert_eq!(PodQuery::plan(selectors(MAX_WATCHES)).len(), MAX_WATCHES);
        assert_eq!(
            PodQuery::plan(selectors(MAX_WATCHES + 1)),
            BTreeSet::from([PodQuery::All])
        );
    }
}
