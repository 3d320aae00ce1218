//! The proof that this replica alone acts on a key: the coordinator writes by it, and the weeder deletes.
//!
//! At no instant do two replicas hold a [`Permit`] for one key, however their clocks drift, whichever of their requests
//! are lost or late, and whenever they stop or start. The module [`membership`](super) says why. Where there is a
//! doubt, nobody acts: a key that changes hands rests for a moment, and after the death of its owner for up to
//! [`Timing::peer_ttl`](super::Timing::peer_ttl).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::run::MembershipTask;
use super::share::{Share, Shared, Snapshot};
use super::{Membership, MembershipConfig, Ownership};

/// The share of this replica in the keys of its service, in which nobody else acts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Exclusive {
    share: Share,
}

/// The right to act on a key. As long as one exists, this replica lets no new member take the key over, and does not
/// release its own lease. Held while a write is on its way, and no longer.
#[derive(Debug)]
#[must_use = "the action is only covered while the permit exists"]
pub struct Permit {
    shared: Arc<Shared>,
    number: u64,
    until: Instant,
}

/// The permits that exist: the key, and until when.
pub(super) type Permits = BTreeMap<u64, (Arc<str>, Instant)>;

impl Membership for Exclusive {
    fn join(config: MembershipConfig, stop: CancellationToken) -> (Self, MembershipTask) {
        let (share, task) = Share::join_as(Ownership::Exclusive, config, stop);
        (Self { share }, task)
    }
}

impl Deref for Exclusive {
    type Target = Share;

    fn deref(&self) -> &Share {
        &self.share
    }
}

// === impl Exclusive ===

impl Exclusive {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self {
            share: Share { shared },
        }
    }
}

// === impl Share ===

impl Share {
    /// True if this replica may act on `key` now: it owns the key, its own lease is valid, and every live member knows
    /// of it. False on every doubt. Of an [`Exclusive`] share no other process may act then; of another one only a
    /// process with the same identity.
    ///
    /// The answer holds at this instant. For a write, which takes time, use [`Self::act`].
    #[must_use]
    pub fn may_act(&self, key: &str) -> bool {
        self.shared.act_until(&self.shared.snapshot.load(), key).is_some()
    }

    /// The right to act on `key`, if this replica has it. The action (a request, with its answer) must end before
    /// [`Permit::until`]; give it that as its deadline if its own is later. While the permit is held, a new member
    /// that would own the key waits.
    #[must_use]
    pub fn act(&self, key: &str) -> Option<Permit> {
        // The run loop stores a snapshot before it looks at the permits, so under this lock either the snapshot is
        // the new one, or the run loop will see this permit.
        let mut permits = self.shared.permits.lock();
        let until = self.shared.act_until(&self.shared.snapshot.load(), key)?;
        let number = permits.last_key_value().map_or(0, |(last, _)| last + 1);
        permits.insert(number, (key.into(), until));
        drop(permits);
        Some(Permit {
            shared: Arc::clone(&self.shared),
            number,
            until,
        })
    }
}

// === impl Permit ===

impl Permit {
    /// When the action must have ended: from then on somebody else may act.
    #[must_use]
    pub const fn until(&self) -> Instant {
        self.until
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.permits.lock().remove(&self.number);
        self.shared.returned.notify_one();
    }
}

// === impl Shared ===

impl Shared {
    fn act_until(&self, snapshot: &Snapshot, key: &str) -> Option<Instant> {
        let until = snapshot.act_until.filter(|until| Instant::now() < *until)?;
        (snapshot.ring.owner(key) == Some(&self.me)).then_some(until)
    }

    /// The latest instant at which an action can end that is in progress on a key that this replica does not own by
    /// the current snapshot, or, with `all`, on any; none when there is no such action.
    pub(crate) fn busy_until(&self, all: bool) -> Option<Instant> {
        let now = Instant::now();
        let permits = self.permits.lock();
        let snapshot = self.snapshot.load();
        let lost = |key: &str| snapshot.ring.owner(key) != Some(&self.me);
        let held = permits
            .values()
            .filter(|(key, until)| now < *until && (all || lost(key)));
        held.map(|(_, until)| *until).max()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::rendezvous::RendezvousHasher;
    use super::*;

    fn snapshot(members: &[&str], act_until: Option<Instant>) -> Snapshot {
        let ring = RendezvousHasher::new(members.iter().map(|m| Arc::from(*m)));
        Snapshot {
            ring,
            shares: true,
            act_until,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn acting_ends_by_time_and_is_told() {
        let shared = Arc::new(Shared::new("a".into()));
        let membership = Exclusive::new(Arc::clone(&shared));
        assert!(!membership.owns("key") && !membership.may_act("key") && membership.owner("key").is_none());
        let mut changes = membership.subscribe();
        let until = Instant::now() + Duration::from_secs(1);
        assert!(shared.show(snapshot(&["a"], Some(until))));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(membership.owns("key") && membership.may_act("key"));
        assert!(
            !shared.show(snapshot(&["a"], Some(until + Duration::from_millis(1)))),
            "a renewal is no change"
        );
        tokio::time::advance(Duration::from_millis(1001)).await;
        assert!(!membership.may_act("key"), "time alone ends it");
        assert!(membership.owns("key"), "reading goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_holds_back_who_takes_over() {
        let shared = Arc::new(Shared::new("a".into()));
        let membership = Exclusive::new(Arc::clone(&shared));
        let until = Instant::now() + Duration::from_secs(1);
        shared.show(snapshot(&["a"], Some(until)));
        let keys: Vec<_> = (0..50).map(|i| format!("key-{i}")).collect();
        let permits: Vec<_> = keys.iter().map(|key| membership.act(key).unwrap()).collect();
        assert_eq!(shared.busy_until(false), None, "nobody else wants them");
        assert_eq!(shared.busy_until(true), Some(until));
        shared.show(snapshot(&["a", "b"], Some(until)));
        assert_eq!(shared.busy_until(false), Some(until));
        let kept = keys.iter().filter(|key| membership.act(key).is_some()).count();
        assert!(
            kept > 0 && kept < keys.len(),
            "the new member got all or nothing: {kept} kept"
        );
        drop(permits);
        assert_eq!(shared.busy_until(false), None);
        let forgotten = keys.iter().find_map(|key| membership.act(key)).unwrap();
        assert_eq!(shared.busy_until(true), Some(until));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(
            shared.busy_until(true),
            None,
            "a permit that is held too long holds nobody back"
        );
        drop(forgotten);
    }
}
