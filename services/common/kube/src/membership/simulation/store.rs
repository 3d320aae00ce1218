//! The API server of the simulation: Leases with versions, and the history that watches read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::membership::record::{Identity, LeaseVersion, MemberRecord, ObservedLease};

/// One change, as a watch reports it.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Applied(ObservedLease),
    Deleted,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    leases: BTreeMap<Identity, ObservedLease>,
    version: u64,
    pub(super) history: Vec<Event>,
}

impl Store {
    pub(super) fn list(&self) -> Vec<ObservedLease> {
        self.leases.values().cloned().collect()
    }

    pub(super) fn get(&self, identity: &str) -> Option<&ObservedLease> {
        self.leases.get(identity)
    }

    /// Creates without `base`, else replaces that version; none when the Lease is not like that.
    pub(super) fn write(
        &mut self,
        base: Option<&LeaseVersion>,
        record: MemberRecord,
    ) -> Option<LeaseVersion> {
        if self.leases.get(&record.identity).map(|seen| &seen.lease_version) != base {
            return None;
        }
        self.version += 1;
        let version: Arc<str> = self.version.to_string().into();
        let uid = base.map_or_else(|| Arc::clone(&version), |b| Arc::clone(&b.uid));
        let seen = ObservedLease {
            record,
            lease_version: LeaseVersion { uid, version },
        };
        self.history.push(Event::Applied(seen.clone()));
        let lease_version = seen.lease_version.clone();
        self.leases.insert(Arc::clone(&seen.record.identity), seen);
        Some(lease_version)
    }

    /// Deletes that version, or any.
    pub(super) fn delete(&mut self, identity: &str, lease_version: Option<&LeaseVersion>) {
        let fits = |seen: &ObservedLease| {
            lease_version.is_none_or(|lease_version| seen.lease_version == *lease_version)
        };
        if self.leases.get(identity).is_some_and(fits) && self.leases.remove(identity).is_some() {
            self.version += 1;
            self.history.push(Event::Deleted);
        }
    }
}
