//! Limits on what callers share: connections, streams, scrapes. No caller takes what the others need.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// The identity of a caller. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// The name in its certificate by which it is allowed to call; its IP address without TLS.
    pub(crate) name: Arc<str>,
    /// How it is known.
    pub(crate) kind: CallerKind,
}

/// How a caller is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CallerKind {
    /// A service of the watchdog, by its certificate. A part of all is reserved for these.
    OwnService,
    /// Another client, by its certificate.
    Client,
    /// Without TLS: all programs of a host are one caller.
    Address,
}

impl Caller {
    /// A caller of which only the address is known.
    #[must_use]
    pub(crate) fn at(address: IpAddr) -> Self {
        Self {
            name: address.to_string().into(),
            kind: CallerKind::Address,
        }
    }
}

/// The bounds of a quota.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotaLimits {
    /// Of what, for the text of a refusal.
    pub(crate) what: &'static str,
    /// For all callers together.
    pub(crate) total: usize,
    /// The part of it that only our own services get. One of them gets half of the total at most.
    pub(crate) reserved: usize,
    /// For each other client.
    pub(crate) per_client: usize,
    /// For each IP address without TLS.
    pub(crate) per_address: usize,
}

/// Permits for callers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct CallerQuota {
    limits: QuotaLimits,
    /// How much each caller holds; one that holds nothing is not there.
    held: Arc<Mutex<HashMap<Caller, usize>>>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaPermit {
    quota: CallerQuota,
    caller: Caller,
    size: usize,
}

impl CallerQuota {
    /// Nothing is used yet.
    #[must_use]
    pub(crate) fn new(limits: QuotaLimits) -> Self {
        Self {
            limits,
            held: Arc::default(),
        }
    }

    /// Takes a permit that counts as this many.
    ///
    /// # Errors
    /// When the caller would be beyond a bound: which one, and what to do, for the caller. It then holds no more than
    /// before.
    pub(crate) fn acquire(&self, caller: &Caller, size: usize) -> Result<QuotaPermit, String> {
        let QuotaLimits {
            what,
            total,
            reserved,
            per_client,
            per_address,
        } = self.limits;
        let most = match caller.kind {
            CallerKind::OwnService => total / 2,
            CallerKind::Client => per_client,
            CallerKind::Address => per_address,
        };
        let is_own = |caller: &Caller| caller.kind == CallerKind::OwnService;
        let mut held = self.held.lock();
        let sum = |is_counted: &dyn Fn(&Caller) -> bool| {
            let counted = held.iter().filter(|(caller, _)| is_counted(caller));
            size + counted.map(|(_, size)| size).sum::<usize>()
        };
        if sum(&|other| other == caller) > most {
            return Err(format!(
                "you already have {most} {what} to this replica: close some, or try another replica"
            ));
        }
        let is_full = sum(&|_| true) > total;
        let is_rest_reserved = sum(&|other| !is_own(other)) > total - reserved;
        if is_full || !is_own(caller) && is_rest_reserved {
            return Err(format!(
                "all {total} {what} of this replica are in use or reserved: try another replica"
            ));
        }
        *held.entry(caller.clone()).or_default() += size;
        Ok(QuotaPermit {
            quota: self.clone(),
            caller: caller.clone(),
            size,
        })
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut held = self.quota.held.lock();
        if let Some(of_caller) = held.get_mut(&self.caller) {
            *of_caller -= self.size;
            if *of_caller == 0 {
                held.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str, kind: CallerKind) -> Caller {
        Caller {
            name: name.into(),
            kind,
        }
    }

    #[test]
    fn no_caller_takes_what_the_others_need() {
        let quota = CallerQuota::new(QuotaLimits {
            what: "streams",
            total: 10,
            reserved: 4,
            per_client: 3,
            per_address: 1,
        });
        let [greedy, another, third] = ["a", "b", "c"].map(|name| caller(name, CallerKind::Client));
        let own = caller("coordinator", CallerKind::OwnService);
        let address = Caller::at([192, 0, 2, 1].into());
        let take = |caller: &Caller| quota.acquire(caller, 1);
        let all_taken = "all 10 streams of this replica are in use or reserved: try another replica";
        let has = |most| {
            format!("you already have {most} streams to this replica: close some, or try another replica")
        };
        let mut held: Vec<_> = (0..3).map(|_| take(&greedy).unwrap()).collect();
        assert_eq!(take(&greedy).unwrap_err(), has(3));
        held.extend((0..3).map(|_| take(&another).unwrap()));
        assert_eq!(take(&third).unwrap_err(), all_taken, "the rest is reserved");
        assert_eq!(take(&address).unwrap_err(), all_taken);
        let own_permits: Vec<_> = (0..4).map(|_| take(&own).unwrap()).collect();
        assert_eq!(take(&own).unwrap_err(), all_taken);
        drop(held.remove(0));
        assert_eq!(take(&another).unwrap_err(), has(3));
        held.push(take(&third).unwrap());
        drop((held, own_permits));
        let large = quota.acquire(&own, 3).unwrap();
        let own_permits: Vec<_> = (0..2).map(|_| take(&own).unwrap()).collect();
        assert_eq!(take(&own).unwrap_err(), has(5), "half of all");
        let of_address = take(&address).unwrap();
        assert_eq!(take(&address).unwrap_err(), has(1));
        drop((large, own_permits, of_address));
        assert!(
            quota.held.lock().is_empty(),
            "all is given back, and who has nothing is forgotten"
        );
    }
}
