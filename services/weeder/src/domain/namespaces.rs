//! Tracks which namespaces are terminating.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The namespaces of the seed, and whether each is terminating.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    terminating: BTreeMap<Arc<str>, bool>,
}

impl Namespaces {
    /// A namespace was seen. Says whether it has begun to terminate.
    pub(crate) fn applied(&mut self, name: &str, terminating: bool) -> bool {
        let was = self.terminating.insert(name.into(), terminating);
        terminating && was != Some(true)
    }

    pub(crate) fn removed(&mut self, name: &str) {
        self.terminating.remove(name);
    }

    /// These exist and no others: gives those that are gone. One that was never seen is not gone; the list may be
    /// older than what is known of its services.
    pub(crate) fn synced(&mut self, live: &BTreeSet<Arc<str>>) -> Vec<Arc<str>> {
        let gone: Vec<_> = self
            .terminating
            .keys()
            .filter(|name| !live.contains(*name))
            .cloned()
            .collect();
        for name in &gone {
            self.terminating.remove(name);
        }
        gone
    }

    pub(crate) fn is_terminating(&self, name: &str) -> bool {
        self.terminating.get(name) == Some(&true)
    }
}
