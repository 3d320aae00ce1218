//! When each node of a shoot last renewed its lease, by the prober's own clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::host;
use super::moment::{Moment, micros};
use super::skew::{Arrival, Arrivals};

/// Lease duration where a Lease does not name one: kubelet's default `nodeLeaseDurationSeconds`.
const DEFAULT_LEASE_DURATION_SECONDS: i32 = 40;

/// A lease that is seen for the first time testifies after so many renew intervals: a kubelet that is alive renews within
/// one; its timer, the request and a retry may take a quarter of that on top.
const AT_FIRST_SIGHT: f64 = 1.25;

/// And after so many when the API server failed to answer before. A kubelet that could not renew pauses for up to 0.7
/// renew intervals (`maxBackoff` of 7 s in component-helpers, `apimachinery/lease/controller.go`). If it fails once more
/// then, a whole one passes: until its next turn, or until a request that hangs is given up (kubelet's heartbeat client).
/// Half an interval is left for the requests.
const AFTER_A_FAILURE: f64 = 2.25;

/// A renewal may appear so much outside of the time in which it was observed without refuting the estimated skew:
/// clocks of one site differ by milliseconds, and so do their rates.
const TOLERANCE: Duration = Duration::from_secs(1);

/// One successful list of the leases.
#[derive(Debug, Clone, Copy)]
pub struct Listing {
    /// When the request was sent.
    pub sent: Moment,
    /// When the answer was there.
    pub received: Moment,
}

impl Listing {
    fn age(self, renew_time: Moment) -> Arrival {
        let at = |moment: Moment| moment.0.saturating_sub(renew_time.0);
        Arrival {
            asked: at(self.sent),
            answered: at(self.received),
        }
    }
}

/// A lease as listed.
#[derive(Debug, Clone)]
pub struct ListedLease {
    /// Name of the lease, which is that of the node.
    pub name: Arc<str>,
    /// By the node's clock; none when the lease has none.
    pub renew_time: Option<Moment>,
    /// As in the Lease.
    pub duration_seconds: Option<i32>,
}

/// What is known of one node's renewals.
#[derive(Debug, Clone)]
struct Renewal {
    renew_time: Moment,
    // When it was made, by the prober's clock.
    made: Moment,
    // From when on its age testifies against the node: before, it is only what a foreign clock says, or says more about
    // the API server.
    testifies: Moment,
    renew_interval: Duration,
    arrivals: Arrivals,
}

/// What can be said of one lease now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Renewed recently enough; expires at that moment unless it is renewed.
    Fresh(Moment),
    /// Not renewed for the expiry age, which ended at that moment.
    Expired(Moment),
    /// Looks expired, but this prober has not watched it for long enough to rule out that only the node's clock is
    /// behind, or that its kubelet had no API server to renew it at; it is known at that moment.
    Unconfirmed(Moment),
}

/// The renewals of a shoot's nodes.
#[derive(Debug, Clone, Default)]
pub struct Renewals {
    nodes: HashMap<Arc<str>, Renewal>,
    previous: Option<Listing>,
    // The API server failed to answer since the previous list.
    interrupted: bool,
}

impl Renewals {
    /// The API server did not answer: perhaps it did not answer the kubelets either.
    pub fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Takes in a complete list. Leases that are not in it are forgotten. After an interruption in which a live kubelet
    /// may have missed a renewal, all get the time to renew before their silence counts, also those that were renewed
    /// since the previous list, for that was perhaps before the interruption: it is the API server that was silent.
    pub fn observe(&mut self, listing: Listing, leases: &[ListedLease]) {
        let before = std::mem::replace(&mut self.nodes, HashMap::with_capacity(leases.len()));
        let interrupted = std::mem::take(&mut self.interrupted);
        let since_previous = |previous: Listing| listing.received.since(previous.sent);
        let gap = self.previous.map_or(Duration::MAX, since_previous);
        for lease in leases {
            let Some(renew_time) = lease.renew_time else {
                continue;
            };
            let interval = renew_interval(lease.duration_seconds);
            let renewal = match (before.get(&lease.name), self.previous) {
                (Some(known), _) if known.renew_time == renew_time => Renewal {
                    renew_interval: interval,
                    ..known.clone()
                },
                (Some(known), Some(previous)) => known.renewed(renew_time, interval, previous, listing),
                _ => Renewal::first_seen(renew_time, interval, listing),
            };
            // Shorter than an interval, it delays a renewal by no more than that.
            let renewal = match interrupted && gap > interval {
                true => renewal.watched_anew(listing.received),
                false => renewal,
            };
            self.nodes.insert(lease.name.clone(), renewal);
        }
        self.previous = Some(listing);
    }

    /// Whether a lease is expired at `now`; none when it is unknown or has no renewTime. `expiry_age` is 0.75 x the
    /// grace period of kube-controller-manager.
    #[must_use]
    pub fn freshness(&self, name: &str, now: Moment, expiry_age: Duration) -> Option<Freshness> {
        Some(self.nodes.get(name)?.freshness(now, expiry_age))
    }

    /// By how much the clocks of the nodes are off, in microseconds.
    pub fn skews(&self) -> impl Iterator<Item = i64> {
        self.nodes
            .values()
            .map(|node| node.arrivals.skew(node.renew_interval))
    }

    /// The skew that is furthest from zero, in microseconds; negative when that node's clock runs behind.
    #[must_use]
    pub fn largest_skew(&self) -> i64 {
        self.skews().max_by_key(|skew| skew.saturating_abs()).unwrap_or(0)
    }

    /// The median skew of the nodes, in microseconds: zero where some clock or other is off, but most are right.
    #[must_use]
    pub fn typical_skew(&self) -> i64 {
        // Hardly ever: the largest is looked at first so that a healthy fleet pays nothing.
        if !is_notable(self.largest_skew()) {
            return 0;
        }
        host::median(&mut self.skews().collect::<Vec<_>>()).unwrap_or(0)
    }

    /// The shortest time in which a live kubelet renews: the shoot's own pace.
    #[must_use]
    pub fn shortest_interval(&self) -> Duration {
        let shortest = self.nodes.values().map(|node| node.renew_interval).min();
        shortest.unwrap_or_else(|| renew_interval(None))
    }
}

/// kubelet renews every quarter of the lease duration.
fn renew_interval(duration_seconds: Option<i32>) -> Duration {
    let seconds = duration_seconds
        .filter(|s| *s > 0)
        .unwrap_or(DEFAULT_LEASE_DURATION_SECONDS);
    Duration::from_secs(u64::from(seconds.unsigned_abs())) / 4
}

impl Renewal {
    fn first_seen(renew_time: Moment, renew_interval: Duration, listing: Listing) -> Self {
        let received = listing.received;
        let mut arrivals = Arrivals::default();
        // How old a renewal was that was not seen to arrive says nothing. But a time in the future proves a clock that
        // is ahead.
        if renew_time > received {
            arrivals.note(listing.age(renew_time));
        }
        Self {
            renew_time,
            // From the future: as if made now.
            made: renew_time.min(received),
            testifies: received.after(renew_interval.mul_f64(AT_FIRST_SIGHT)),
            renew_interval,
            arrivals,
        }
    }

    fn watched_anew(self, received: Moment) -> Self {
        Self {
            testifies: received.after(self.renew_interval.mul_f64(AFTER_A_FAILURE)),
            ..self
        }
    }

    /// The lease was renewed after the answer to the previous list was made and before the answer to this one: that
    /// much is certain whatever clock the node has, and an estimate that says otherwise is wrong.
    fn renewed(
        &self,
        renew_time: Moment,
        renew_interval: Duration,
        previous: Listing,
        listing: Listing,
    ) -> Self {
        let mut arrivals = self.arrivals;
        arrivals.note(listing.age(renew_time));
        let earliest = previous.sent.before(TOLERANCE);
        // A clock that is called ahead, but was so no more when this renewal was made. One that is called behind, by too
        // little, is no contradiction: that estimate falls short on purpose.
        let skew = arrivals.skew(renew_interval);
        if skew > 0 && renew_time.shifted(skew.saturating_neg()) < earliest {
            arrivals.keep_newest();
        }
        let made = renew_time.shifted(arrivals.skew(renew_interval).saturating_neg());
        let made = made.max(previous.sent).min(listing.received);
        Self {
            renew_time,
            made,
            testifies: made,
            renew_interval,
            arrivals,
        }
    }

    fn freshness(&self, now: Moment, expiry_age: Duration) -> Freshness {
        let expires = self.made.after(expiry_age);
        if now < expires {
            return Freshness::Fresh(expires);
        }
        if now >= self.testifies {
            Freshness::Expired(expires)
        } else {
            Freshness::Unconfirmed(self.testifies)
        }
    }
}

/// Microseconds as a duration and whether it is negative, for evidence.
#[must_use]
pub const fn magnitude(skew: i64) -> Duration {
    Duration::from_micros(skew.unsigned_abs())
}

/// Skews below this are not worth a word: time service keeps hosts closer than that.
pub const NOTABLE_SKEW: i64 = 2_000_000;

/// Whether a skew is worth a word.
#[must_use]
pub fn is_notable(skew: i64) -> bool {
    skew.saturating_abs() >= NOTABLE_SKEW
}

/// The expiry age for a grace period of kube-controller-manager: a quarter is left for the verdict and the scale-down.
#[must_use]
pub fn expiry_age(grace: Duration) -> Duration {
    Duration::from_micros(micros(grace).unsigned_abs().saturating_mul(3) / 4)
}

#[cfg(test)]
#[path = "renewals_tests.rs"]
mod tests;
