//! The rules of the leader election, those of client-go: no I/O and no clock.
//!
//! One Lease has the name of the leader. The leader renews it; another candidate takes it once it was released or did
//! not change for the duration that its leader wrote, by the candidate's own clock. A leader acts for
//! [`LeaseTimes::renew_deadline`] from the *start* of its last renewal that succeeded. Every write replaces exactly
//! the version that was read.
//!
//! The duration is short, so that a crash costs little, while the API server answers fast, and long while it does not,
//! be it only to writes: nobody could renew a short one there, or no write would end before it does. From the moment
//! when a leader sends a shorter duration it acts no longer than that, because it may never learn whether the write was
//! applied.
//!
//! Only the program that leads can release its Lease. A Lease that is absent, or that somebody emptied, changed or
//! restored from a backup, is no evidence that its last leader has stopped: it is held for the long duration from when
//! it was first seen so. A candidate that has seen nothing newer cannot tell a backup; and where it finds no Lease when
//! it starts, it waits for the short duration, because that is a new installation.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::Leader;

/// A point in time, by the own monotonic clock: the time since the process began.
pub(crate) type Moment = Duration;

/// Annotation: where the gRPC API of the leader is reached.
pub(crate) const ADDRESS_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/address";

/// Annotation: `leaseDurationSeconds` as the leader wrote it. Another value there is somebody else's.
const DURATION_ANNOTATION: &str = "dependency-watchdog.gardener.cloud/lease-duration-seconds";

/// Characters of the name and of the address of another leader at most: those of a DNS name and a port.
const MAX_CHARACTERS: usize = 260;

/// The largest ratio of two clocks: each is up to 10 % off.
const CLOCK_DIFFERENCE: f64 = 1.1 / 0.9;

/// `leaseDurationSeconds` of a Lease that its leader released, as client-go writes it.
const RELEASED_SECONDS: i32 = 1;

/// After a conflict the Lease is read again after this part of the retry period.
const CONFLICT_FRACTION: u32 = 20;

/// Deadline of a request of the election while the API server is slow.
const LONGEST_REQUEST: Duration = Duration::from_secs(5);

/// An API server counts as slow for this time after its last slow answer.
const SLOW_FOR: Duration = Duration::from_secs(10);

/// The durations of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElectionTiming {
    /// While the API server answers fast.
    pub usual: LeaseTimes,
    /// While it answers slowly.
    pub slow: LeaseTimes,
}

/// A Lease, and how its leader renews it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Candidates take a Lease that did not change for this time.
    pub lease_duration: Duration,
    /// The leader acts for this time from its last renewal.
    pub renew_deadline: Duration,
    /// From one renewal, or one read of a candidate, to the next.
    pub retry_period: Duration,
}

impl LeaseTimes {
    /// The defaults of client-go. With clocks that are 10 % off, a leader stops after at most 11.1 s and another begins
    /// after at least 13.6 s.
    pub const CLIENT_GO: Self = Self {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    /// All requests may take 5 s, renewals and other writes of the leader alike: even right before a renewal ends, the
    /// leader may act for another 5 s. With clocks that are 10 % off, a leader stops after at most 16.7 s and another
    /// begins after at least 18.1 s.
    pub const SLOW: Self = Self {
        lease_duration: Duration::from_secs(20),
        renew_deadline: Duration::from_secs(15),
        retry_period: Duration::from_secs(2),
    };

    /// Checks that the durations fit together.
    ///
    /// # Errors
    /// When they do not.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.retry_period.is_zero(), "the retry period must be above 0");
        ensure!(
            self.renew_deadline.mul_f64(CLOCK_DIFFERENCE) < self.lease_duration,
            "the lease duration must be above 1.25 times the renew deadline, because clocks differ"
        );
        ensure!(
            self.retry_period * 2 < self.renew_deadline,
            "the renew deadline must be above twice the retry period, so that one renewal may fail"
        );
        Ok(())
    }

    /// Deadline of one request, that of client-go: two fit into the renew deadline. A leader whose requests all take
    /// this long renews its Lease in time, and so does one that loses a single request.
    pub(crate) fn request_timeout(&self) -> Duration {
        LONGEST_REQUEST.min(self.renew_deadline / 2)
    }
}

impl ElectionTiming {
    /// A request that takes longer is slow: three quarters of the time between two renewals. At this pace a write
    /// that waits for the right moment still ends before the leadership does.
    fn slow_from(&self) -> Duration {
        self.usual.retry_period.mul_f64(0.75)
    }
}

impl Default for ElectionTiming {
    /// Those of our own Deployments: a change of leader costs nothing, and a crash in the middle of a loss must not
    /// make it late. A verdict comes 33 s after the last renewal, and 40 s after it kube-controller-manager acts; 5.2 s
    /// after a crash the next replica does. With clocks that are 10 % off, a leader stops after at most 3.3 s and
    /// another begins after at least 3.6 s.
    fn default() -> Self {
        let usual = LeaseTimes {
            lease_duration: Duration::from_secs(4),
            renew_deadline: Duration::from_secs(3),
            retry_period: Duration::from_secs(1),
        };
        let slow = LeaseTimes::SLOW;
        Self { usual, slow }
    }
}

impl From<LeaseTimes> for ElectionTiming {
    /// The same whatever the API server does: what other programs expect, which know nothing else.
    fn from(times: LeaseTimes) -> Self {
        Self {
            usual: times,
            slow: times,
        }
    }
}

/// The next request of a candidate, and when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElectionStep {
    Read(Moment),
    Write(Moment),
}

/// A candidate, and what it knows of the Lease.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// In `spec.holderIdentity`. It differs for every process, so that none takes the Lease of its predecessor for its
    /// own.
    holder: Arc<str>,
    /// Where others reach this process, if they can.
    address: Option<Arc<str>>,
    timing: ElectionTiming,
    /// The version that a write replaces; none where it creates the Lease.
    base: Option<Lease>,
    /// The last leader that was observed, or that there was none; none before the first answer.
    leader: Option<ObservedLeader>,
    act_until: Option<Moment>,
    /// The `renewTime` that was seen last.
    renewed: Option<Timestamp>,
    /// Until when the API server counts as slow.
    slow_until: Moment,
    step: ElectionStep,
}

#[derive(Debug)]
struct ObservedLeader {
    /// Empty when the Lease was released or emptied, or does not exist.
    holder: Arc<str>,
    address: Option<Arc<str>>,
    expires_at: Moment,
}

// === impl ElectionStep ===

impl ElectionStep {
    pub(crate) const fn due(self) -> Moment {
        match self {
            Self::Read(at) | Self::Write(at) => at,
        }
    }
}

// === impl Candidate ===

impl Candidate {
    pub(crate) const fn new(holder: Arc<str>, address: Option<Arc<str>>, timing: ElectionTiming) -> Self {
        Self {
            holder,
            address,
            timing,
            base: None,
            leader: None,
            act_until: None,
            renewed: None,
            slow_until: Moment::ZERO,
            step: ElectionStep::Read(Moment::ZERO),
        }
    }

    /// The durations that hold now.
    pub(crate) fn times(&self, now: Moment) -> &LeaseTimes {
        match now < self.slow_until {
            true => &self.timing.slow,
            false => &self.timing.usual,
        }
    }

    /// A request has ended, with or without an answer.
    fn on_ended(&mut self, started: Moment, now: Moment) {
        self.on_acted(now, now.saturating_sub(started));
    }

    /// A request of any kind, which took this long, has just ended. Writes alone may be slow, for example by a webhook,
    /// and a short leadership would end before they do.
    pub(crate) fn on_acted(&mut self, now: Moment, took: Duration) {
        if took > self.timing.slow_from() {
            self.slow_until = now + SLOW_FOR;
        }
    }

    pub(crate) const fn step(&self) -> ElectionStep {
        self.step
    }

    /// Until when this process may act, if it may now.
    pub(crate) fn act_until(&self, now: Moment) -> Option<Moment> {
        self.act_until.filter(|until| now < *until)
    }

    /// The holder that was seen last, empty if the Lease has none; none before the first answer.
    pub(crate) fn leader(&self) -> Option<&Arc<str>> {
        self.leader.as_ref().map(|leader| &leader.holder)
    }

    /// The leader that was seen last, if the Lease has a holder.
    pub(crate) fn found(&self) -> Option<Leader> {
        let leader = self.leader.as_ref().filter(|leader| !leader.holder.is_empty())?;
        // The name of a Pod has no underscore, and client-go ends a holder as we do.
        let name = leader
            .holder
            .rsplit_once('_')
            .map_or(&*leader.holder, |(name, _)| name);
        Some(Leader {
            name: name.into(),
            address: leader.address.clone(),
        })
    }

    /// True from the first write until the Lease is seen without this holder, also while the Lease cannot be renewed.
    pub(crate) fn is_leader(&self) -> bool {
        self.leader() == Some(&self.holder)
    }

    /// For how long another process holds the Lease, from what it wrote; zero if none does.
    pub(crate) fn held_for(&self, now: Moment) -> Duration {
        let others = |leader: &&ObservedLeader| !leader.holder.is_empty() && leader.holder != self.holder;
        let leader = self.leader.as_ref().filter(others);
        leader.map_or(Duration::ZERO, |leader| leader.expires_at.saturating_sub(now))
    }

    /// The Lease was read by a request that began at `started`; none when it does not exist. The time to the next read
    /// is `spread` times the retry period.
    pub(crate) fn on_read(&mut self, started: Moment, now: Moment, lease: Option<Lease>, spread: f64) {
        self.on_ended(started, now);
        let poll = self.times(now).retry_period.mul_f64(spread);
        let changed = lease.as_ref().map(version) != self.base.as_ref().map(version);
        if changed || self.leader.is_none() {
            self.observe(now, lease.as_ref());
        }
        self.base = lease;
        self.step = match &self.leader {
            Some(leader) if leader.holder != self.holder && now < leader.expires_at => {
                ElectionStep::Read((now + poll).min(leader.expires_at))
            }
            _ => ElectionStep::Write(now),
        };
    }

    /// The Lease changed, or does not exist any more.
    fn observe(&mut self, now: Moment, lease: Option<&Lease>) {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref());
        let address = annotations.and_then(|annotations| annotations.get(ADDRESS_ANNOTATION));
        let address = address.filter(|address| address.len() <= MAX_CHARACTERS);
        let holder = spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .unwrap_or_default();
        let seconds = spec
            .and_then(|spec| spec.lease_duration_seconds)
            .unwrap_or_default();
        let written = u64::try_from(seconds).map_or(Duration::ZERO, Duration::from_secs);
        let intended = annotations.and_then(|annotations| annotations.get(DURATION_ANNOTATION));
        let is_intended = intended.is_some_and(|intended| *intended == seconds.to_string());
        let renewed = renew_time(lease);
        // Each write of a leader has a later time. This one is an edit, a backup, one of both after the other, or of a
        // leader whose clock is behind that of the last one.
        let is_not_later = self.renewed.is_some() && renewed <= self.renewed;
        self.renewed = renewed.or(self.renewed);
        let ElectionTiming { usual, slow } = self.timing;
        let lasts = match (holder, seconds) {
            ("", RELEASED_SECONDS) if !is_not_later => Duration::ZERO,
            // Where this process has seen none, most likely nobody ever led.
            ("", _) if lease.is_none() && self.leader.is_none() => usual.lease_duration,
            // A duration that somebody wrote to keep others out ends with its holder.
            ("", _) => slow.lease_duration,
            _ if written == usual.lease_duration && is_intended && !is_not_later => written,
            // Somebody may have shortened it under its holder, who may act by a longer one that it wrote before.
            _ => written.max(slow.lease_duration),
        };
        if holder != &*self.holder {
            self.act_until = None;
        }
        self.leader = Some(ObservedLeader {
            holder: holder.chars().take(MAX_CHARACTERS).collect::<String>().into(),
            address: address.map(|address| address.as_str().into()),
            expires_at: now + lasts,
        });
    }

    /// The Lease as this process writes it now, at this time of the clock on the wall, to lead or to go on.
    pub(crate) fn claim(&mut self, now: Moment, name: &str, at: Timestamp) -> Lease {
        let times = *self.times(now);
        let at_most = now + times.renew_deadline;
        self.act_until = self.act_until.map(|until| until.min(at_most));
        let mut lease = self.base.clone().unwrap_or_default();
        lease.metadata.name = Some(name.to_owned());
        lease.metadata.managed_fields = None;
        // The cast saturates, and the longest lease is some minutes.
        let seconds = (times.lease_duration.as_secs_f64().ceil() as i32).max(1);
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(DURATION_ANNOTATION.to_owned(), seconds.to_string());
        if let Some(address) = &self.address {
            annotations.insert(ADDRESS_ANNOTATION.to_owned(), address.to_string());
        }
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_deref() != Some(&*self.holder) {
            spec.acquire_time = Some(MicroTime(at));
            let transitions = spec.lease_transitions.map_or(0, |count| count.saturating_add(1));
            spec.lease_transitions = Some(transitions);
        }
        spec.holder_identity = Some(self.holder.to_string());
        spec.lease_duration_seconds = Some(seconds);
        spec.renew_time = Some(MicroTime(at));
        lease
    }

    /// The Lease as this process leaves it to others, if it leads.
    pub(crate) fn release(&self, at: Timestamp) -> Option<Lease> {
        let mut lease = self.base.clone().filter(|_| self.is_leader())?;
        lease.metadata.managed_fields = None;
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(RELEASED_SECONDS);
        spec.renew_time = Some(MicroTime(at));
        Some(lease)
    }

    /// True if a write replaces a Lease, false if it creates one.
    pub(crate) const fn replaces(&self) -> bool {
        self.base.is_some()
    }

    /// A write that began at `started` succeeded.
    pub(crate) fn on_written(&mut self, started: Moment, now: Moment, lease: Lease) {
        // Those of the claim.
        let times = *self.times(started);
        self.on_ended(started, now);
        self.leader = Some(ObservedLeader {
            holder: Arc::clone(&self.holder),
            address: self.address.clone(),
            expires_at: now + times.lease_duration,
        });
        self.renewed = renew_time(Some(&lease)).or(self.renewed);
        self.base = Some(lease);
        self.act_until = Some(started + times.renew_deadline);
        self.step = ElectionStep::Write(started + times.retry_period);
    }

    /// A request that began at `started` failed. After a `conflict`, the Lease is not what it was believed to be:
    /// somebody deleted or changed it, and another process may lead.
    pub(crate) fn on_failed(&mut self, started: Moment, now: Moment, conflict: bool) {
        if conflict {
            self.act_until = None;
        }
        self.on_ended(started, now);
        let period = self.times(now).retry_period;
        // From the start of the request: after one that got no answer, the leader has no time to lose.
        let retry = now.max(started + period);
        self.step = if conflict {
            ElectionStep::Read(now + period / CONFLICT_FRACTION)
        } else if self.is_leader() {
            ElectionStep::Write(retry)
        } else {
            ElectionStep::Read(retry)
        };
    }
}

/// The renewTime of the next write. Two that are equal are one renewal for client-go, which compares whole seconds: a
/// clock that was set back goes on from the last one by a second each time.
pub(crate) fn next_renew_time(last: Timestamp, clock: Timestamp) -> Timestamp {
    if last < clock {
        return clock;
    }
    last.checked_add(SignedDuration::from_secs(1)).unwrap_or(last)
}

fn renew_time(lease: Option<&Lease>) -> Option<Timestamp> {
    Some(lease?.spec.as_ref()?.renew_time.as_ref()?.0)
}

/// Another object under the same name is another version too.
fn version(lease: &Lease) -> (Option<&String>, Option<&String>) {
    (
        lease.metadata.uid.as_ref(),
        lease.metadata.resource_version.as_ref(),
    )
}

#[cfg(test)]
mod tests;
