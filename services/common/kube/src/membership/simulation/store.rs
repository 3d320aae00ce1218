//! The API server of the simulation: Leases with versions, and the history that watches read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::membership::card::{Card, Identity, Seen, Stamp};

/// One change, as a watch reports it.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Applied(Seen),
    Deleted,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    leases: BTreeMap<Identity, Seen>,
    version: u64,
    pub(super) history: Vec<Event>,
}

impl Store {
    pub(super) fn list(&self) -> Vec<Seen> {
        self.leases.values().cloned().collect()
    }

    pub(super) fn get(&self, identity: &str) -> Option<&Seen> {
        self.leases.get(identity)
    }

    /// Creates without `base`, else replaces that version; none when the Lease is not like that.
    pub(super) fn write(&mut self, base: Option<&Stamp>, card: Card) -> Option<Stamp> {
        if self.leases.get(&card.identity).map(|seen| &seen.stamp) != base {
            return None;
        }
        self.version += 1;
        let version: Arc<str> = self.version.to_string().into();
        let uid = base.map_or_else(|| Arc::clone(&version), |b| Arc::clone(&b.uid));
        let seen = Seen {
            card,
            stamp: Stamp { uid, version },
        };
        self.history.push(Event::Applied(seen.clone()));
        let stamp = seen.stamp.clone();
        self.leases.insert(Arc::clone(&seen.card.identity), seen);
        Some(stamp)
    }

    /// Deletes that version, or any.
    pub(super) fn delete(&mut self, identity: &str, stamp: Option<&Stamp>) {
        let fits = |seen: &Seen| stamp.is_none_or(|stamp| seen.stamp == *stamp);
        if self.leases.get(identity).is_some_and(fits) && self.leases.remove(identity).is_some() {
            self.version += 1;
            self.history.push(Event::Deleted);
        }
    }
}
