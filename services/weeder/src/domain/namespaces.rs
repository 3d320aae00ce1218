//! Tracks which namespaces are terminating.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The namespaces of the seed.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    known: BTreeMap<Arc<str>, Namespace>,
}

/// A namespace, as far as the weeder needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Namespace {
    pub(crate) uid: String,
    pub(crate) terminating: bool,
}

impl Namespaces {
    /// A namespace was seen. Says whether it has begun to terminate, or has taken the place of one that ended unseen.
    pub(crate) fn applied(&mut self, name: &str, namespace: Namespace) -> bool {
        let (uid, terminating) = (namespace.uid.clone(), namespace.terminating);
        match self.known.insert(name.into(), namespace) {
            Some(was) => was.uid != uid || (terminating && !was.terminating),
            None => terminating,
        }
    }

    pub(crate) fn removed(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// These exist and no others: gives those that are gone. One that was never seen is not gone; the list may be
    /// older than what is known of its services.
    pub(crate) fn synced(&mut self, live: &BTreeSet<Arc<str>>) -> Vec<Arc<str>> {
        let gone = self.known.extract_if(.., |name, _| !live.contains(name));
        gone.map(|(name, _)| name).collect()
    }

    pub(crate) fn is_terminating(&self, name: &str) -> bool {
        self.known
            .get(name)
            .is_some_and(|namespace| namespace.terminating)
    }
}
