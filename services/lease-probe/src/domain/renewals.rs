//! When each node of a shoot last renewed its lease, by the prober's own clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::lease::LeaseItem;
use watchdog_api::unix_time::{UnixTime, micros};

use super::answered::{AnsweredMark, AnsweredTime, STANDS_STILL, proof};
use super::lease_list::LeaseList;
use super::skew::NodeClock;

/// The default renew interval of a kubelet: a quarter of `nodeLeaseDurationSeconds`, which is 40 s by default.
pub const DEFAULT_RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// A kubelet that is silent for this many renew intervals is not connected, whenever the leases were listed.
const SILENT_INTERVALS: f64 = 1.5;

/// Leases that are missing in a list are remembered while they are at most this many: a shoot has at most some
/// thousands of nodes.
const MOST_MISSING: usize = 10_000;

/// A list whose answer took this much longer than twice the one before was held up: writes may have waited as long.
const HELD_UP: Duration = Duration::from_millis(250);

/// The renewals of one node, as observed so far.
#[derive(Debug, Clone)]
struct Renewal {
    // The newest.
    renew_time: UnixTime,
    revision: u64,
    // The one that the last list shows.
    shown: UnixTime,
    // When it arrived at the API server, by the prober's clock: at the latest, and at the earliest. They differ where
    // the node's clock is ahead of the prober's by an amount that is not known.
    arrived: UnixTime,
    earliest: UnixTime,
    // The answered time since then is the silence of the kubelet.
    mark: AnsweredMark,
    renew_interval: Duration,
    clock: NodeClock,
    // When the first list was asked for that has the lease, and the moment of the last one.
    first_listed: UnixTime,
    listed: UnixTime,
}

/// The age of one lease, and when it expires unless it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseAge {
    /// When it was renewed, by the prober's clock.
    pub renewed: UnixTime,
    /// From then on it is older than the expiry age.
    pub old_from: UnixTime,
    /// From then on it does not show that its node is connected.
    pub doubtful_from: UnixTime,
    /// False if this replica has not observed a renewal, so that only two clocks say how old the lease is, while a loss
    /// may stand.
    pub is_dated: bool,
    /// From then on seconds decide: a connected kubelet would have renewed it. They always do if its kubelet has had no
    /// time to renew it since the last outage of the API server.
    pub urgent_from: UnixTime,
    /// When its kubelet's silence is proven, if the API server takes writes until then.
    pub silence_proven_at: UnixTime,
    /// From then on it is expired: old, and its kubelet's silence is proven. An instant in the future holds only if the
    /// API server takes writes until then.
    pub expired_from: UnixTime,
}

/// The renewals of a shoot's nodes.
#[derive(Debug, Clone, Default)]
pub struct Renewals {
    nodes: HashMap<Arc<str>, Renewal>,
    // The moment of the last list, and how long its answer took.
    last: UnixTime,
    latency: Duration,
    was_held_up: bool,
    answered: AnsweredTime,
    renew_interval: Option<Duration>,
}

impl Renewals {
    /// Takes in a complete list. Of the time since the list before, at most `longest` counts as answered. A lease that
    /// is missing is remembered: absence neither erases a renewal nor the silence after it.
    ///
    /// Where etcd hangs, lists wait as renewals do, and both are worked on at its end. So a list that was held up is of
    /// the moment of its answer, and the renewals that it is the first to show arrived then.
    pub fn observe(&mut self, list: &LeaseList, longest: Duration) {
        self.renew_interval = median(list.leases.iter().map(renew_interval)).or(self.renew_interval);
        let interval = self.renew_interval();
        let before = self.answered;
        self.answered.record(list, interval, longest);
        for known in self.nodes.values_mut() {
            known.mark = self
                .answered
                .keep_proven(known.mark, known.renew_interval, &before);
        }
        let latency = list.received.since(list.sent);
        let usual = 2 * std::mem::replace(&mut self.latency, latency);
        let was_held_up = latency > usual + HELD_UP;
        self.was_held_up = was_held_up;
        let as_of = if was_held_up { list.received } else { list.sent };
        let previous = std::mem::replace(&mut self.last, as_of);
        // The revision of a renewal, when it was sent by the estimate of the node's clock, the earliest time at which
        // it can have been sent, and the lease.
        let mut renewed: Vec<(u64, UnixTime, UnixTime, &Arc<str>)> = Vec::new();
        for lease in &list.leases {
            let Some(renew_time) = lease.renew_time.map(UnixTime::from) else {
                if let Some(known) = self.nodes.get_mut(&lease.name) {
                    known.listed = as_of;
                }
                continue;
            };
            // In place: nearly every list has the leases of the list before it.
            let Some(known) = self.nodes.get_mut(&lease.name) else {
                let mark = self.answered.first_observed();
                let mut first = Renewal::first_seen(lease, renew_time, list, as_of, mark);
                // The node has just joined: its first renewal is observed like any other.
                if before.last_revision().is_some_and(|last| lease.revision > last) {
                    let arrived_from = if was_held_up { as_of } else { previous };
                    let (sent, earliest) = first.note(renew_time, arrived_from, list);
                    renewed.push((lease.revision, sent, earliest, &lease.name));
                }
                self.nodes.insert(lease.name.clone(), first);
                continue;
            };
            let last_listed = std::mem::replace(&mut known.listed, as_of);
            known.renew_interval = renew_interval(lease);
            let shown = std::mem::replace(&mut known.shown, renew_time);
            let is_written = lease.revision > known.revision && renew_time != known.renew_time;
            // A stale list, or data that were restored.
            let went_back = renew_time < known.renew_time && renew_time != shown;
            let was_missing = last_listed < previous;
            if renew_time > known.renew_time || is_written {
                known.revision = lease.revision;
                let arrived_from = if was_held_up { as_of } else { last_listed };
                let (sent, earliest) = known.note(renew_time, arrived_from, list);
                renewed.push((lease.revision, sent, earliest, &lease.name));
            } else if went_back || was_missing {
                // Silence begins anew.
                known.mark = match known.mark.first_observed {
                    true => self.answered.first_observed(),
                    false => self.answered.now(),
                };
            }
        }
        // Leases with a lower revision were written before, so a renewal arrived no earlier than they were sent.
        renewed.sort_unstable_by_key(|(revision, ..)| *revision);
        let mut newest = UnixTime(i64::MIN);
        for (_, sent, earliest, name) in renewed {
            newest = newest.max(earliest);
            if let Some(known) = self.nodes.get_mut(name) {
                known.arrived = newest.max(sent);
                known.earliest = newest;
                known.mark = self.answered.renewed(known.arrived);
            }
        }
        if self.nodes.len() > list.leases.len() + MOST_MISSING {
            self.forget_missing(|_| true);
        }
    }

    /// The answer to the last list was held up.
    #[must_use]
    pub(super) const fn was_held_up(&self) -> bool {
        self.was_held_up
    }

    /// Number of leases that are known.
    #[must_use]
    pub(super) fn remembered(&self) -> usize {
        self.nodes.len()
    }

    /// The leases that are known and that the last list does not have.
    pub fn missing(&self) -> impl Iterator<Item = &Arc<str>> {
        let missing = self.nodes.iter().filter(|(_, known)| known.listed != self.last);
        missing.map(|(name, _)| name)
    }

    /// Forgets the leases that are missing and `gone` for good.
    pub fn forget_missing(&mut self, gone: impl Fn(&str) -> bool) {
        let last = self.last;
        self.nodes
            .retain(|name, known| known.listed == last || !gone(name));
    }

    /// Returns true if the lease was first listed after `time`.
    #[must_use]
    pub fn is_newer_than(&self, name: &str, time: UnixTime) -> bool {
        self.nodes.get(name).is_some_and(|node| node.first_listed > time)
    }

    /// How old a lease is; none when it is unknown or never had a renewTime. `loss_may_stand` is true if this replica
    /// reported a loss, or another replica may have.
    #[must_use]
    pub fn age(&self, name: &str, expiry_age: Duration, loss_may_stand: bool) -> Option<LeaseAge> {
        let node = self.nodes.get(name)?;
        let old_from = node.arrived.after(expiry_age);
        let silence_proven_at = self.answered.proven_at(node.mark, node.renew_interval);
        let silent_from = node.arrived.after(node.renew_interval.mul_f64(SILENT_INTERVALS));
        // By when it was made, not by when it was observed: health rests on when the kubelet was alive. That is earlier
        // if the list is stale, or if the renewal arrived long after it was made.
        let skew = node.clock.skew(node.renew_interval);
        let shown = node.shown.shifted(skew.saturating_neg());
        let shown_old_from = node.earliest.min(shown).after(expiry_age);
        // A loss may have been reported since a connected kubelet would have renewed again, by this replica through the
        // external endpoint or by another one. Only a renewal ends it.
        let doubtful_from = match loss_may_stand {
            true => shown_old_from.min(silent_from),
            false => shown_old_from,
        };
        let urgent_from = match self.answered.outage_since(node.mark) {
            true => UnixTime::default(),
            false => silent_from,
        };
        Some(LeaseAge {
            renewed: node.arrived,
            old_from,
            doubtful_from,
            is_dated: !(loss_may_stand && node.mark.first_observed),
            urgent_from,
            silence_proven_at,
            expired_from: old_from.max(silence_proven_at),
        })
    }

    /// The time for which the API server has answered so far.
    #[must_use]
    pub const fn answered(&self) -> &AnsweredTime {
        &self.answered
    }

    /// The same, to record signs of an outage.
    pub const fn answered_mut(&mut self) -> &mut AnsweredTime {
        &mut self.answered
    }

    /// The clock skew that is furthest from zero, in microseconds; negative when the clock of that node runs behind.
    #[must_use]
    pub fn largest_skew(&self) -> i64 {
        let nodes = self.nodes.values();
        let skews = nodes.map(|node| node.clock.skew(node.renew_interval));
        skews.max_by_key(|skew| skew.saturating_abs()).unwrap_or(0)
    }

    /// The median renew interval of the shoot's kubelets.
    #[must_use]
    pub fn renew_interval(&self) -> Duration {
        self.renew_interval.unwrap_or(DEFAULT_RENEW_INTERVAL)
    }
}

impl Renewal {
    fn first_seen(
        lease: &LeaseItem,
        renew_time: UnixTime,
        list: &LeaseList,
        as_of: UnixTime,
        mark: AnsweredMark,
    ) -> Self {
        let mut clock = NodeClock::default();
        // The age of a renewal whose arrival was not observed is no evidence. But a time in the future proves that the
        // clock is ahead.
        if renew_time > list.received {
            clock.note(renew_time, list.sent, list.received);
        }
        Self {
            renew_time,
            revision: lease.revision,
            shown: renew_time,
            arrived: renew_time.min(list.received),
            earliest: renew_time.min(list.received),
            mark,
            renew_interval: renew_interval(lease),
            clock,
            first_listed: list.sent,
            listed: as_of,
        }
    }

    /// Takes in a new renewal and returns when it arrived, by the prober's clock, and the earliest time at which it can
    /// have: between `arrived_from` and the answer to this list. That is certain whatever clock the node has, so an
    /// estimate that contradicts it is wrong.
    fn note(
        &mut self,
        renew_time: UnixTime,
        arrived_from: UnixTime,
        list: &LeaseList,
    ) -> (UnixTime, UnixTime) {
        self.renew_time = renew_time;
        self.clock.note(renew_time, list.sent, list.received);
        let skew = self.clock.skew(self.renew_interval);
        let sent = renew_time.shifted(skew.saturating_neg());
        let sent = sent.max(arrived_from).min(list.received);
        // A clock that is ahead may make the estimate too late: it must not date the leases of other nodes.
        let earliest = if skew > 0 { arrived_from } else { sent };
        (sent, earliest)
    }
}

/// The upper median; `None` if there are no durations.
fn median(durations: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut all: Vec<Duration> = durations.collect();
    let middle = all.len() / 2;
    (!all.is_empty()).then(|| *all.select_nth_unstable(middle).1)
}

/// kubelet renews every quarter of the lease duration.
fn renew_interval(lease: &LeaseItem) -> Duration {
    match lease.lease_duration_seconds {
        Some(seconds @ 1..) => Duration::from_secs(u64::from(seconds.unsigned_abs())) / 4,
        _ => DEFAULT_RENEW_INTERVAL,
    }
}

/// A connected kubelet may be silent for a renew interval and this time: when NAT or a load balancer silently drops its
/// connection, two requests time out after 10 s each, and then it reconnects. With the default interval of 10 s it may
/// also fail to renew twice, 10.4 s each at most, and renew at the end of a third interval.
const TWO_TIMEOUTS: Duration = Duration::from_secs(23);

/// The least part of the grace period that must be left for the verdict and the scale-down of one shoot.
const DETECTION_RESERVE: Duration = Duration::from_secs(3);

/// How long it takes to scale one shoot down, in renew intervals: 3 s of 10 s.
const SCALE_DOWN_INTERVALS: f64 = 0.3;

/// The expiry age for a grace period of kube-controller-manager: three quarters of it, or the longest silence of a
/// connected kubelet if that is longer. It ends at the latest [`DETECTION_RESERVE`] before the end of the grace period,
/// because a later verdict is too late. That limit does not apply to kubelets that renew more slowly than by default:
/// connected ones may be silent for longer than the grace period, and a true verdict is better than a timely one.
#[must_use]
pub fn expiry_age(grace: Duration, renew_interval: Duration) -> Duration {
    let three_quarters = Duration::from_micros(micros(grace).unsigned_abs().saturating_mul(3) / 4);
    let connected_but_silent = renew_interval.saturating_add(TWO_TIMEOUTS);
    let room = if renew_interval > DEFAULT_RENEW_INTERVAL {
        Duration::MAX
    } else {
        grace.saturating_sub(DETECTION_RESERVE)
    };
    three_quarters.max(connected_but_silent.min(room))
}

/// The shortest grace period in which a loss can be proven and the shoot scaled down: 25.5 s where kubelets renew every
/// 10 s.
#[must_use]
pub fn shortest_grace(renew_interval: Duration) -> Duration {
    proof(renew_interval) + renew_interval.mul_f64(SCALE_DOWN_INTERVALS)
}

/// The longest pause between two lists of the leases, and the most of it that counts as answered: two lists fall into
/// three quarters of the grace period, and writes that pause for long show as a revision that stands still.
#[must_use]
pub fn longest_pause(grace: Duration) -> Duration {
    STANDS_STILL.min(grace.mul_f64(3.0 / 8.0))
}

#[cfg(test)]
mod tests;
