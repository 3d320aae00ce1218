//! Is a service ready? Over all of its slices, in whatever order they come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::moment::Moment;
use super::namespaced_name::{NamespacedName, in_namespace};

/// Readiness of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// At least one endpoint over all slices is ready.
    Ready,
    /// No endpoint is.
    NotReady,
}

/// Endpoints of a slice, or of a service over all its slices. Slices of different address types count alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// Those that are ready.
    pub ready: u32,
    /// All.
    pub total: u32,
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
    /// The names of the pods behind the endpoints; none when one of them has no pod.
    pub pods: Option<Vec<Arc<str>>>,
}

/// How a change of a slice was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceivedBy {
    /// In a list, or by a watch that was interrupted: when it happened is not known.
    List,
    /// By a watch, as it happened.
    Watch,
}

/// State of a service that has a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceState {
    /// Its endpoints over all slices.
    pub endpoints: Endpoints,
    /// When its readiness last changed, or when it was first seen.
    pub since: Moment,
    slices: u32,
}

/// A service before and after an event; none when it has no slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Key of the service.
    pub key: NamespacedName,
    /// The state before.
    pub before: Option<ServiceState>,
    /// The state after.
    pub after: Option<ServiceState>,
}

/// The slices of all configured services, and the readiness that follows from them.
#[derive(Debug, Default)]
pub struct Index {
    slices: BTreeMap<NamespacedName, IndexedSlice>,
    services: BTreeMap<NamespacedName, ServiceState>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct IndexedSlice {
    service: Arc<str>,
    endpoints: Endpoints,
    pods: Option<Vec<Arc<str>>>,
}

// === impl Endpoints ===

impl Endpoints {
    /// Counts endpoints by whether they are ready.
    pub fn of(endpoints: impl IntoIterator<Item = bool>) -> Self {
        endpoints.into_iter().fold(Self::default(), |sum, ready| Self {
            ready: sum.ready.saturating_add(u32::from(ready)),
            total: sum.total.saturating_add(1),
        })
    }

    /// The rule: one ready endpoint is enough, and none is none, no endpoint at all included.
    pub const fn readiness(self) -> Readiness {
        if self.ready > 0 {
            Readiness::Ready
        } else {
            Readiness::NotReady
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            ready: self.ready.saturating_add(other.ready),
            total: self.total.saturating_add(other.total),
        }
    }

    const fn minus(self, other: Self) -> Self {
        Self {
            ready: self.ready.saturating_sub(other.ready),
            total: self.total.saturating_sub(other.total),
        }
    }
}

// === impl ServiceState ===

impl ServiceState {
    /// Readiness over all slices.
    pub const fn readiness(&self) -> Readiness {
        self.endpoints.readiness()
    }
}

// === impl Change ===

impl Change {
    /// True when the service is not ready, or has no slice.
    pub fn is_not_ready(&self) -> bool {
        self.after
            .as_ref()
            .is_none_or(|state| state.readiness() == Readiness::NotReady)
    }

    /// True when a weeder starts: the service is ready and was not, or was not known. Losing readiness, losing slices
    /// and changes among the endpoints of a ready service start nothing.
    pub fn became_ready(&self) -> bool {
        let ready = |state: &ServiceState| state.readiness() == Readiness::Ready;
        self.after.as_ref().is_some_and(ready) && !self.before.as_ref().is_some_and(ready)
    }
}

// === impl Index ===

impl Index {
    /// A slice is new, changed or seen again. Gives the services that changed by it: none, one, or two when the slice
    /// moved from one service to another.
    pub fn apply(&mut self, slice: Slice, now: Moment) -> Vec<Change> {
        let Slice {
            key,
            service,
            endpoints,
            pods,
        } = slice;
        let namespace = key.namespace.clone();
        let new = service.map(|service| IndexedSlice {
            service,
            endpoints,
            pods,
        });
        let old = match &new {
            Some(slice) => self.slices.insert(key, slice.clone()),
            None => self.slices.remove(&key),
        };
        match (old, new) {
            (Some(old), Some(new)) if old.service == new.service => {
                let key = NamespacedName::new(namespace, new.service);
                let replace = |sum: Endpoints| sum.minus(old.endpoints).plus(new.endpoints);
                self.update(key, now, replace, 0).into_iter().collect()
            }
            (old, new) => {
                let lost = old.and_then(|old| self.lose(&namespace, &old, now));
                let gained = new.and_then(|new| {
                    let key = NamespacedName::new(namespace, new.service);
                    self.update(key, now, |sum| sum.plus(new.endpoints), 1)
                });
                lost.into_iter().chain(gained).collect()
            }
        }
    }

    /// A slice is gone.
    pub fn remove(&mut self, key: &NamespacedName, now: Moment) -> Option<Change> {
        let slice = self.slices.remove(key)?;
        self.lose(&key.namespace, &slice, now)
    }

    /// These slices exist and no others, of this service or of all of them.
    pub fn synced(
        &mut self,
        service: Option<&str>,
        live: &BTreeSet<NamespacedName>,
        now: Moment,
    ) -> Vec<Change> {
        self.remove_where(now, |key, slice| {
            service.is_none_or(|service| *slice.service == *service) && !live.contains(key)
        })
    }

    /// Only these services matter from now on.
    pub fn keep_services(&mut self, configured: impl Fn(&str) -> bool, now: Moment) -> Vec<Change> {
        self.remove_where(now, |_, slice| !configured(&slice.service))
    }

    /// All services that have a slice.
    pub fn services(&self) -> impl Iterator<Item = (&NamespacedName, &ServiceState)> {
        self.services.iter()
    }

    /// A service; none when it has no slice.
    pub fn get(&self, key: &NamespacedName) -> Option<&ServiceState> {
        self.services.get(key)
    }

    /// The names of the pods behind all endpoints of a service; none when one of them has no pod.
    pub fn endpoint_pods(&self, key: &NamespacedName) -> Option<BTreeSet<Arc<str>>> {
        let mut pods = BTreeSet::new();
        let slices = in_namespace(&self.slices, &key.namespace);
        for (_, slice) in slices.filter(|(_, slice)| slice.service == key.name) {
            pods.extend(slice.pods.as_ref()?.iter().cloned());
        }
        Some(pods)
    }

    /// The services of a namespace that have a slice.
    pub fn services_in<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a NamespacedName, &'a ServiceState)> {
        in_namespace(&self.services, namespace)
    }

    fn remove_where(
        &mut self,
        now: Moment,
        gone: impl Fn(&NamespacedName, &IndexedSlice) -> bool,
    ) -> Vec<Change> {
        let keys: Vec<NamespacedName> = self
            .slices
            .iter()
            .filter(|(key, slice)| gone(key, slice))
            .map(|(key, _)| key.clone())
            .collect();
        keys.iter().filter_map(|key| self.remove(key, now)).collect()
    }

    fn lose(&mut self, namespace: &Arc<str>, slice: &IndexedSlice, now: Moment) -> Option<Change> {
        let key = NamespacedName::new(namespace.clone(), slice.service.clone());
        self.update(key, now, |sum| sum.minus(slice.endpoints), -1)
    }

    fn update(
        &mut self,
        key: NamespacedName,
        now: Moment,
        endpoints: impl FnOnce(Endpoints) -> Endpoints,
        slices: i32,
    ) -> Option<Change> {
        let before = self.services.get(&key).copied();
        let slices = before
            .map_or(0, |state| state.slices)
            .saturating_add_signed(slices);
        let endpoints = endpoints(before.map(|state| state.endpoints).unwrap_or_default());
        let since = match before {
            Some(before) if before.readiness() == endpoints.readiness() => before.since,
            _ => now,
        };
        let after = (slices > 0).then_some(ServiceState {
            endpoints,
            since,
            slices,
        });
        match after {
            Some(state) => self.services.insert(key.clone(), state),
            None => self.services.remove(&key),
        };
        let shown = |state: Option<ServiceState>| state.map(|state| (state.endpoints, state.since));
        (shown(before) != shown(after)).then_some(Change { key, before, after })
    }
}

#[cfg(test)]
mod tests;
