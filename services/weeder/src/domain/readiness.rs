//! Slices, and which endpoints of a service are ready over all of them.

use std::sync::Arc;
use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

use super::namespaced_name::NamespacedName;

/// Endpoints of a slice, or of a service over all its slices. Slices of different address types count alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Endpoints {
    pub(crate) ready: u32,
    pub(crate) total: u32,
}

/// A write of a slice, as the API server tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SliceWrite {
    /// When, by the API server's clock, in whole seconds; before Kubernetes 1.25, which updates it when only values
    /// change, it may be the time of an earlier write.
    pub(crate) second: UnixTime,
    /// Its revision; 0 if it cannot be compared.
    pub(crate) version: u64,
}

/// A slice: an `EndpointSlice`, or the one Endpoints object of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Namespace and name of the slice.
    pub(crate) key: NamespacedName,
    /// The service that it belongs to; none when it names none.
    pub(crate) service: Option<Arc<str>>,
    pub(crate) endpoints: Endpoints,
    /// Its last write; none when managedFields have no time.
    pub(crate) write: Option<SliceWrite>,
    /// The `endpoints.kubernetes.io/last-change-trigger-time`: what made the endpoints change happened then, by the
    /// clock of a node or of the endpoints controller.
    pub(crate) triggered: Option<UnixTime>,
}

/// A service that has a slice, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServiceState {
    pub(crate) endpoints: Endpoints,
    /// When its readiness last changed, or when it was first seen.
    pub(crate) since: UnixTime,
}

impl ServiceState {
    /// The state before a list, if the list does not hide how it was: a service that was ready and is may not have been
    /// in between, unless a slice [stayed ready](Slice::stayed_ready_since).
    pub(crate) fn known_before_list(self, stayed_ready: bool) -> Option<Self> {
        (stayed_ready || !self.endpoints.is_ready()).then_some(self)
    }
}

impl Endpoints {
    /// Counts endpoints by whether they are ready.
    pub(crate) fn of(endpoints: impl IntoIterator<Item = bool>) -> Self {
        let one = |ready| Self {
            ready: u32::from(ready),
            total: 1,
        };
        endpoints.into_iter().map(one).fold(Self::default(), Self::plus)
    }

    /// The rule: one ready endpoint is enough, and none is none, no endpoint at all included.
    pub(crate) const fn is_ready(self) -> bool {
        self.ready > 0
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            ready: self.ready.saturating_add(other.ready),
            total: self.total.saturating_add(other.total),
        }
    }
}

impl Slice {
    /// True if its service was ready by it before and it shows no later change: its date moves whenever an endpoint
    /// becomes ready or not.
    pub(crate) fn stayed_ready_since(&self, before: &Self) -> bool {
        let stayed_ready = before.endpoints.is_ready() && self.endpoints.is_ready();
        stayed_ready && before.service == self.service && self.triggered <= before.triggered
    }

    /// When it last changed by its own date, and the write of that change. The date may come from a clock that is
    /// ahead, so the write has the time of the API server if that is earlier.
    pub(crate) fn last_change(&self) -> Option<(UnixTime, SliceWrite)> {
        let (triggered, mut write) = (self.triggered?, self.write?);
        if triggered < write.second {
            // It was written later, maybe for another reason, so its revision says nothing about that second.
            let second = triggered.at_multiple_of(Duration::from_secs(1));
            write = SliceWrite { second, version: 0 };
        }
        Some((triggered, write))
    }
}
