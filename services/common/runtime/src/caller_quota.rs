//! Limits on what callers share: connections, streams, scrapes. No caller takes what the others need.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The identity of a caller. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name in its certificate by which it is allowed to call; its IP address without TLS.
    pub(crate) name: Arc<str>,
    /// True for the services of the watchdog, for which a part is reserved.
    pub(crate) is_own_service: bool,
}

impl Caller {
    /// A caller of which only the address is known.
    #[must_use]
    pub(crate) fn at(address: IpAddr) -> Self {
        Self {
            name: address.to_string().into(),
            is_own_service: false,
        }
    }
}

/// The bounds of a quota.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotaLimits {
    /// For all callers together.
    pub(crate) total: usize,
    /// The part of it that only our own services get. One of them gets half of the total at most.
    pub(crate) reserved: usize,
    /// For each caller that is not one of them.
    pub(crate) per_caller: usize,
}

/// The bound that a caller has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaExceeded {
    /// The caller has all that one may have.
    Caller(usize),
    /// All callers together have all there is for them.
    Total(usize),
}

/// Permits for callers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct CallerQuota {
    limits: QuotaLimits,
    all: Arc<Semaphore>,
    others: Arc<Semaphore>,
    /// Those of the callers that have permits.
    callers: Arc<Mutex<HashMap<Arc<str>, Weak<Semaphore>>>>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaPermit {
    _of_caller: OwnedSemaphorePermit,
    _of_others: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

impl CallerQuota {
    /// Nothing is used yet.
    #[must_use]
    pub(crate) fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            all: Arc::new(Semaphore::new(limits.total)),
            others: Arc::new(Semaphore::new(limits.total - limits.reserved)),
            callers: Arc::default(),
        }
    }

    /// Takes a permit.
    ///
    /// # Errors
    /// When the caller has reached a bound. It then holds no more than before.
    pub(crate) fn acquire(&self, caller: &Caller) -> Result<QuotaPermit, QuotaExceeded> {
        self.acquire_many(caller, 1)
    }

    /// Takes a permit that counts as this many.
    ///
    /// # Errors
    /// When the caller would be beyond a bound. It then holds no more than before.
    pub(crate) fn acquire_many(&self, caller: &Caller, size: usize) -> Result<QuotaPermit, QuotaExceeded> {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let total = |_| QuotaExceeded::Total(self.limits.total);
        let most = if caller.is_own_service {
            self.limits.total / 2
        } else {
            self.limits.per_caller
        };
        let of_caller = self.permits_of(&caller.name, most);
        let of_caller = of_caller.try_acquire_many_owned(size);
        let of_caller = of_caller.map_err(|_| QuotaExceeded::Caller(most))?;
        let of_others = (!caller.is_own_service).then(|| self.others.clone().try_acquire_many_owned(size));
        Ok(QuotaPermit {
            _of_caller: of_caller,
            _of_others: of_others.transpose().map_err(total)?,
            _of_all: self.all.clone().try_acquire_many_owned(size).map_err(total)?,
        })
    }

    /// The permits of a caller. They are forgotten when it has given all of them back.
    fn permits_of(&self, name: &Arc<str>, most: usize) -> Arc<Semaphore> {
        let mut callers = self.callers.lock();
        if let Some(known) = callers.get(name).and_then(Weak::upgrade) {
            return known;
        }
        callers.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(most));
        callers.insert(name.clone(), Arc::downgrade(&permits));
        permits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str, is_own_service: bool) -> Caller {
        Caller {
            name: name.into(),
            is_own_service,
        }
    }

    #[test]
    fn no_caller_takes_what_the_others_need() {
        let quota = CallerQuota::new(QuotaLimits {
            total: 10,
            reserved: 4,
            per_caller: 3,
        });
        let (greedy, another, third) = (caller("a", false), caller("b", false), caller("c", false));
        let own = caller("coordinator", true);
        let take = |caller: &Caller| quota.acquire(caller);
        let mut held: Vec<_> = (0..3).map(|_| take(&greedy).unwrap()).collect();
        assert_eq!(take(&greedy).unwrap_err(), QuotaExceeded::Caller(3));
        held.extend((0..3).map(|_| take(&another).unwrap()));
        assert_eq!(
            take(&third).unwrap_err(),
            QuotaExceeded::Total(10),
            "the rest is reserved"
        );
        let own_permits: Vec<_> = (0..4).map(|_| take(&own).unwrap()).collect();
        assert_eq!(take(&own).unwrap_err(), QuotaExceeded::Total(10));
        drop(held.remove(0));
        assert_eq!(take(&another).unwrap_err(), QuotaExceeded::Caller(3));
        held.push(take(&third).unwrap());
        drop((held, own_permits));
        let own_permits: Vec<_> = (0..5).map(|_| take(&own).unwrap()).collect();
        assert_eq!(take(&own).unwrap_err(), QuotaExceeded::Caller(5), "half of all");
        drop(own_permits);
        let left = [&quota.all, &quota.others].map(|permits| permits.available_permits());
        assert_eq!(left, [10, 6]);
        let _held = take(&greedy).unwrap();
        assert_eq!(quota.callers.lock().len(), 1, "who has nothing is forgotten");
    }
}
