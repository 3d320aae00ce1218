//! Limits on what callers share: connections, streams, scrapes. No caller takes what the others need.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// The identity of a caller. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The name in its certificate by which it is allowed to call; its IP address without TLS.
    pub name: Arc<str>,
    /// True for the services of the watchdog, for which a part is reserved.
    pub is_own_service: bool,
}

impl Caller {
    /// A caller of which only the address is known.
    #[must_use]
    pub fn at(address: IpAddr) -> Self {
        Self {
            name: address.to_string().into(),
            is_own_service: false,
        }
    }
}

/// The bounds of a quota.
#[derive(Debug, Clone, Copy)]
pub struct QuotaLimits {
    /// For all callers together.
    pub total: usize,
    /// The part of it that only our own services get. One of them gets half of the total at most.
    pub reserved: usize,
    /// For each caller that is not one of them.
    pub per_caller: usize,
}

/// The bound that a caller has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// The caller has all that one may have.
    Caller(usize),
    /// All callers together have all there is for them.
    Total(usize),
}

/// Permits for callers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CallerQuota {
    limits: QuotaLimits,
    used: Arc<Mutex<UsedPermits>>,
}

#[derive(Debug, Default)]
struct UsedPermits {
    total: usize,
    by_others: usize,
    by_caller: HashMap<Arc<str>, usize>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    caller: Caller,
    size: usize,
    used: Arc<Mutex<UsedPermits>>,
}

impl CallerQuota {
    /// Nothing is used yet.
    #[must_use]
    pub fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            used: Arc::default(),
        }
    }

    /// Takes a permit.
    ///
    /// # Errors
    /// When the caller has reached a bound. It then holds no more than before.
    pub fn acquire(&self, caller: &Caller) -> Result<QuotaPermit, QuotaExceeded> {
        self.acquire_many(caller, 1)
    }

    /// Takes a permit that counts as this many.
    ///
    /// # Errors
    /// When the caller would be beyond a bound. It then holds no more than before.
    pub fn acquire_many(&self, caller: &Caller, size: usize) -> Result<QuotaPermit, QuotaExceeded> {
        let QuotaLimits {
            total,
            reserved,
            per_caller,
        } = self.limits;
        let mut used = self.used.lock();
        let own = used.by_caller.get(&caller.name).copied().unwrap_or_default();
        let (most, is_full) = if caller.is_own_service {
            (total / 2, used.total + size > total)
        } else {
            let full = used.by_others + size > total - reserved || used.total + size > total;
            (per_caller, full)
        };
        if own + size > most {
            return Err(QuotaExceeded::Caller(most));
        }
        if is_full {
            return Err(QuotaExceeded::Total(total));
        }
        used.total += size;
        if !caller.is_own_service {
            used.by_others += size;
        }
        *used.by_caller.entry(caller.name.clone()).or_default() += size;
        Ok(QuotaPermit {
            caller: caller.clone(),
            size,
            used: self.used.clone(),
        })
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut used = self.used.lock();
        used.total -= self.size;
        if !self.caller.is_own_service {
            used.by_others -= self.size;
        }
        if let Some(own) = used.by_caller.get_mut(&self.caller.name) {
            *own -= self.size;
            if *own == 0 {
                used.by_caller.remove(&self.caller.name);
            }
        }
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
        let used = quota.used.lock();
        assert_eq!((used.total, used.by_others, used.by_caller.len()), (0, 0, 0));
    }
}
