//! Is a service ready? Over all of its slices, in whatever order they come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::namespaced_name::{NamespacedName, in_namespace};
use watchdog_api::unix_time::UnixTime;

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
    /// In a list, which ends with all slices: when it happened is not known.
    List,
    /// By a watch that was interrupted: when it happened is not known.
    ResumedWatch,
    /// By a watch, as it happened.
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

// === impl ServiceChange ===

impl ServiceChange {
    /// True when the service is ready now.
    pub fn is_ready(&self) -> bool {
        is_ready(self.after)
    }

    /// True when a weeder starts: the service is ready and was not, or was not known. Losing readiness, losing slices
    /// and changes among the endpoints of a ready service start nothing.
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
        let (key, service) = (slice.key.clone(), slice.service.clone());
        let old = self.slices.insert(key.clone(), slice).and_then(|old| old.service);
        let lost = old.filter(|old| Some(old) != service.as_ref());
        let services = lost.into_iter().chain(service);
        services
            .filter_map(|service| self.update(NamespacedName::new(key.namespace.clone(), service), now))
            .collect()
    }

    /// A slice is gone.
    pub fn remove(&mut self, key: &NamespacedName, now: UnixTime) -> Option<ServiceChange> {
        let service = self.slices.remove(key)?.service?;
        self.update(NamespacedName::new(key.namespace.clone(), service), now)
    }

    /// These slices exist and no others, of this service or of all of them.
    pub fn synced(
        &mut self,
        service: Option<&str>,
        live: &BTreeSet<NamespacedName>,
        now: UnixTime,
    ) -> Vec<ServiceChange> {
        self.remove_where(now, |key, slice| {
            let listed = service.is_none_or(|service| slice.service.as_deref() == Some(service));
            listed && !live.contains(key)
        })
    }

    /// Only these services matter from now on.
    pub fn keep_services(&mut self, configured: impl Fn(&str) -> bool, now: UnixTime) -> Vec<ServiceChange> {
        self.remove_where(now, |_, slice| !slice.service.as_deref().is_some_and(&configured))
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
        for slice in self.slices_of(key) {
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
        now: UnixTime,
        gone: impl Fn(&NamespacedName, &Slice) -> bool,
    ) -> Vec<ServiceChange> {
        let slices = self.slices.extract_if(.., |key, slice| gone(key, slice));
        let services: BTreeSet<_> = slices
            .filter_map(|(key, slice)| Some(NamespacedName::new(key.namespace, slice.service?)))
            .collect();
        services
            .into_iter()
            .filter_map(|service| self.update(service, now))
            .collect()
    }

    fn slices_of<'a>(&'a self, service: &'a NamespacedName) -> impl Iterator<Item = &'a Slice> {
        let slices = in_namespace(&self.slices, &service.namespace).map(|(_, slice)| slice);
        slices.filter(|slice| slice.service.as_ref() == Some(&service.name))
    }

    fn update(&mut self, key: NamespacedName, now: UnixTime) -> Option<ServiceChange> {
        let before = self.services.get(&key).copied();
        let endpoints = self.slices_of(&key).map(|slice| slice.endpoints);
        let after = endpoints.reduce(Endpoints::plus).map(|endpoints| {
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
        (before != after).then_some(ServiceChange { key, before, after })
    }
}

#[cfg(test)]
mod tests;
