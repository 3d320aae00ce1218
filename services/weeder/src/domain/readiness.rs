//! Is a service ready, and since when? Over all of its slices, in whatever order they come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

use super::namespaced_name::{NamespacedName, in_namespace};

/// Endpoints of a slice, or of a service over all its slices. Slices of different address types count alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// Those that are ready.
    pub ready: u32,
    /// All.
    pub total: u32,
}

/// A write of a slice, as the API server tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceWrite {
    /// When, by the API server's clock, in whole seconds.
    pub second: UnixTime,
    /// Its revision.
    pub version: u64,
}

/// A slice: an `EndpointSlice`, or the one Endpoints object of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name of the slice.
    pub key: NamespacedName,
    /// The service that it belongs to; none when it names none.
    pub service: Option<Arc<str>>,
    /// Its endpoints.
    pub endpoints: Endpoints,
    /// Its last write; none when managedFields have no time.
    pub write: Option<SliceWrite>,
    /// The `endpoints.kubernetes.io/last-change-trigger-time`: what made the endpoints change happened then, by the
    /// clock of a node or of the endpoints controller.
    pub triggered: Option<UnixTime>,
}

/// How a change of a slice was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedBy {
    /// In a list: when it happened, only the slice can say.
    List,
    /// In a watch, as it happened.
    Watch,
}

/// State of a service that has a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceState {
    /// Its endpoints over all slices.
    pub endpoints: Endpoints,
    /// When its readiness last changed, or when it was first seen.
    pub since: UnixTime,
}

/// A service before and after an event; none when it has no slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceChange {
    /// Key of the service.
    pub key: NamespacedName,
    /// The state before.
    pub before: Option<ServiceState>,
    /// The state after.
    pub after: Option<ServiceState>,
    /// The first of the last writes of its ready slices: the service has been ready since then at least.
    pub write: Option<SliceWrite>,
    /// When the first of its ready slices last changed: by its own date, but never later than it was written.
    pub last_change: Option<(UnixTime, SliceWrite)>,
}

/// The slices of all configured services, and the readiness that follows from them.
#[derive(Debug, Default)]
pub struct Index {
    slices: BTreeMap<NamespacedName, Slice>,
    services: BTreeMap<NamespacedName, ServiceState>,
}

// === impl Endpoints ===

impl Endpoints {
    /// Counts endpoints by whether they are ready.
    pub fn of(endpoints: impl IntoIterator<Item = bool>) -> Self {
        let one = |ready| Self {
            ready: u32::from(ready),
            total: 1,
        };
        endpoints.into_iter().map(one).fold(Self::default(), Self::plus)
    }

    /// The rule: one ready endpoint is enough, and none is none, no endpoint at all included.
    pub const fn is_ready(self) -> bool {
        self.ready > 0
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            ready: self.ready.saturating_add(other.ready),
            total: self.total.saturating_add(other.total),
        }
    }
}

// === impl Slice ===

impl Slice {
    /// When it last changed by its own date, but never later than it was written: that date may come from a clock that
    /// is ahead.
    fn last_change(&self) -> Option<(UnixTime, SliceWrite)> {
        let (triggered, write) = (self.triggered?, self.write?);
        if write.second <= triggered {
            return Some((write.second, write));
        }
        // It was written later, maybe for another reason, so its revision says nothing about that second.
        let second = triggered.at_multiple_of(Duration::from_secs(1));
        Some((triggered, SliceWrite { second, version: 0 }))
    }
}

// === impl ServiceChange ===

impl ServiceChange {
    /// True when the service is ready now.
    pub fn is_ready(&self) -> bool {
        is_ready(self.after)
    }

    /// True when the service is ready and was not, or was not known. Losing readiness, losing slices and changes among
    /// the endpoints of a ready service are no recoveries.
    pub fn became_ready(&self) -> bool {
        is_ready(self.after) && !is_ready(self.before)
    }
}

/// A service without a slice is not ready.
fn is_ready(state: Option<ServiceState>) -> bool {
    state.is_some_and(|state| state.endpoints.is_ready())
}

// === impl Index ===

impl Index {
    /// A slice is new, changed or seen again. Gives the services that changed by it: none, one, or two when the slice
    /// moved from one service to another.
    pub fn apply(&mut self, slice: Slice, now: UnixTime) -> Vec<ServiceChange> {
        let affected = self.insert(slice);
        self.update_all(affected, now)
    }

    /// A slice is gone.
    pub fn remove(&mut self, key: &NamespacedName, now: UnixTime) -> Vec<ServiceChange> {
        let slice = self.slices.remove(key);
        let service = slice.and_then(|slice| Some(NamespacedName::new(slice.key.namespace, slice.service?)));
        self.update_all(service.into_iter().collect(), now)
    }

    /// A list is complete: these slices exist and no others, of this service or of all of them.
    pub fn list(&mut self, service: Option<&str>, listed: Vec<Slice>, now: UnixTime) -> Vec<ServiceChange> {
        let live: BTreeSet<NamespacedName> = listed.iter().map(|slice| slice.key.clone()).collect();
        let mut affected = self.take(|slice| {
            let asked_for = service.is_none_or(|service| slice.service.as_deref() == Some(service));
            asked_for && !live.contains(&slice.key)
        });
        for slice in listed {
            affected.extend(self.insert(slice));
        }
        self.update_all(affected, now)
    }

    /// Only these services matter from now on.
    pub fn keep_services(&mut self, configured: impl Fn(&str) -> bool, now: UnixTime) -> Vec<ServiceChange> {
        let affected = self.take(|slice| !slice.service.as_deref().is_some_and(&configured));
        self.update_all(affected, now)
    }

    /// A service; none when it has no slice.
    pub fn get(&self, key: &NamespacedName) -> Option<&ServiceState> {
        self.services.get(key)
    }

    /// Gives the services that it belongs and belonged to.
    fn insert(&mut self, slice: Slice) -> BTreeSet<NamespacedName> {
        let (key, service) = (slice.key.clone(), slice.service.clone());
        let old = self.slices.insert(key.clone(), slice).and_then(|old| old.service);
        let services = old.into_iter().chain(service);
        services
            .map(|service| NamespacedName::new(key.namespace.clone(), service))
            .collect()
    }

    /// Removes slices. Gives the services that they belonged to.
    fn take(&mut self, gone: impl Fn(&Slice) -> bool) -> BTreeSet<NamespacedName> {
        let slices = self.slices.extract_if(.., |_, slice| gone(slice));
        slices
            .filter_map(|(key, slice)| Some(NamespacedName::new(key.namespace, slice.service?)))
            .collect()
    }

    fn update_all(&mut self, services: BTreeSet<NamespacedName>, now: UnixTime) -> Vec<ServiceChange> {
        let services = services.into_iter();
        services.filter_map(|service| self.update(service, now)).collect()
    }

    fn update(&mut self, key: NamespacedName, now: UnixTime) -> Option<ServiceChange> {
        let before = self.services.get(&key).copied();
        let slices = in_namespace(&self.slices, &key.namespace).map(|(_, slice)| slice);
        let slices: Vec<_> = slices
            .filter(|slice| slice.service.as_ref() == Some(&key.name))
            .collect();
        let ready = || slices.iter().filter(|slice| slice.endpoints.is_ready());
        // Without the date of one of them nobody can say since when the service is ready.
        let write = ready().map(|slice| slice.write).min().flatten();
        let last_change = ready().map(|slice| slice.last_change()).min().flatten();
        let after = slices.iter().map(|slice| slice.endpoints).reduce(Endpoints::plus);
        let after = after.map(|endpoints| {
            let unchanged = before.filter(|before| before.endpoints.is_ready() == endpoints.is_ready());
            ServiceState {
                endpoints,
                since: unchanged.map_or(now, |before| before.since),
            }
        });
        match after {
            Some(state) => self.services.insert(key.clone(), state),
            None => self.services.remove(&key),
        };
        (before != after).then_some(ServiceChange {
            key,
            before,
            after,
            write,
            last_change,
        })
    }
}

#[cfg(test)]
mod tests;
