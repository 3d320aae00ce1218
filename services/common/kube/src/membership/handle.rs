//! The handles of the membership for the parts of a service: who owns a key, who may act, and permits for actions.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::record::Identity;
use super::rendezvous::RendezvousHasher;

/// Membership of this replica. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Membership {
    shared: Arc<Shared>,
}

/// A replica of the service, as this one sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub identity: Identity,
    /// Where its gRPC API is reached.
    pub address: Arc<str>,
    /// True if its lease was seen to be renewed in time. One that is not live keeps what it owns until a list of all
    /// Leases has confirmed that it is gone.
    pub live: bool,
    /// True if it acknowledges this replica's current session; without that this replica may not act.
    pub acknowledges: bool,
    /// True if it is this replica.
    pub me: bool,
}

/// Leave to act on a key. As long as one exists, this replica lets no new member take the key over, and does not
/// release its own lease. Held while a write is on its way, and no longer.
#[derive(Debug)]
#[must_use = "the action is only covered while the permit exists"]
pub struct Permit {
    shared: Arc<Shared>,
    number: u64,
    until: Instant,
}

/// State of the membership for its readers.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) ring: RendezvousHasher,
    /// True if this replica takes part in sharing keys that may overlap.
    pub(crate) shares: bool,
    pub(crate) act_until: Option<Instant>,
    pub(crate) members: Vec<PublishedMember>,
}

/// A member, with the time until which it counts as live without further signs.
#[derive(Debug)]
pub(crate) struct PublishedMember {
    pub(crate) member: Member,
    pub(crate) live_until: Instant,
}

/// Shared by the handles and the run loop.
#[derive(Debug)]
pub(crate) struct Shared {
    me: Identity,
    snapshot: ArcSwap<Snapshot>,
    permits: Mutex<Permits>,
    /// A permit was given back.
    pub(crate) returned: Notify,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Permits {
    last: u64,
    held: BTreeMap<u64, (Arc<str>, Instant)>,
}

// === impl Membership ===

impl Membership {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The name of this replica.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.me
    }

    /// True if this replica alone may act on `key` now: it owns the key, its own lease is valid, and every live member
    /// knows of it. False on every doubt. Exclusive for [`super::Ownership::Exclusive`] only.
    ///
    /// The answer holds at this instant. For a write, which takes time, use [`Self::act`].
    #[must_use]
    pub fn may_act(&self, key: &str) -> bool {
        self.shared.act_until(&self.shared.snapshot.load(), key).is_some()
    }

    /// Leave to act on `key`, if this replica may. The action (a request, with its answer) must end before
    /// [`Permit::until`]; give it that as its deadline if its own is later. While the permit is held, a new member
    /// that would own the key waits.
    #[must_use]
    pub fn act(&self, key: &str) -> Option<Permit> {
        // The run loop stores a snapshot before it looks at the permits, so under this lock either the snapshot is
        // the new one, or the run loop will see this permit.
        let mut permits = self.shared.permits.lock();
        let until = self.shared.act_until(&self.shared.snapshot.load(), key)?;
        permits.last += 1;
        let number = permits.last;
        permits.held.insert(number, (key.into(), until));
        drop(permits);
        Some(Permit {
            shared: Arc::clone(&self.shared),
            number,
            until,
        })
    }

    /// True if this replica should look after `key`, where it does no harm if two do for a moment. A replica that is
    /// cut off from the API server keeps what it has; one that never joined, or that is leaving, owns nothing.
    #[must_use]
    pub fn owns(&self, key: &str) -> bool {
        let snapshot = self.shared.snapshot.load();
        snapshot.shares && snapshot.ring.owner(key) == Some(&self.shared.me)
    }

    /// The owner of `key`, as far as this replica knows; none when there is no live member.
    #[must_use]
    pub fn owner(&self, key: &str) -> Option<Identity> {
        self.shared.snapshot.load().ring.owner(key).cloned()
    }

    /// All members that this replica counts, itself always included, by name.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let now = Instant::now();
        let snapshot = self.shared.snapshot.load();
        let listed = snapshot.members.iter();
        listed
            .map(|l| Member {
                live: now < l.live_until,
                ..l.member.clone()
            })
            .collect()
    }

    /// True if this replica has joined: it takes part, though others may still have to acknowledge it.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.shared.snapshot.load().shares
    }

    /// Waits until this replica has joined. Never returns when the run loop does not run, so wait for it together with
    /// the stop token.
    pub async fn joined(&self) {
        let mut changes = self.subscribe();
        while !self.has_joined() {
            // The sender lives in `self`.
            let _ = changes.changed().await;
        }
    }

    /// Changes whenever the ownership of any key may have changed, also by the passing of time. The number has no
    /// meaning.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
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
        self.shared.permits.lock().held.remove(&self.number);
        self.shared.returned.notify_one();
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(me: Identity) -> Self {
        Self {
            me,
            snapshot: ArcSwap::default(),
            permits: Mutex::default(),
            returned: Notify::new(),
            changes: watch::Sender::new(0),
        }
    }

    fn act_until(&self, snapshot: &Snapshot, key: &str) -> Option<Instant> {
        let until = snapshot.act_until.filter(|until| Instant::now() < *until)?;
        (snapshot.ring.owner(key) == Some(&self.me)).then_some(until)
    }

    /// Makes a snapshot the current one. Says whether ownership may have changed by that, and tells the subscribers.
    pub(crate) fn show(&self, snapshot: Snapshot) -> bool {
        let essence = |s: &Snapshot| (s.ring.clone(), s.shares, s.act_until.is_some());
        let new = essence(&snapshot);
        let changed = essence(&self.snapshot.swap(Arc::new(snapshot))) != new;
        if changed {
            self.changes.send_modify(|generation| *generation += 1);
        }
        changed
    }

    /// The latest instant at which an action can end that is in progress on a key that this replica does not own by
    /// the current snapshot, or, with `all`, on any; none when there is no such action.
    pub(crate) fn busy_until(&self, all: bool) -> Option<Instant> {
        let now = Instant::now();
        let permits = self.permits.lock();
        let snapshot = self.snapshot.load();
        let lost = |key: &str| snapshot.ring.owner(key) != Some(&self.me);
        let held = permits
            .held
            .values()
            .filter(|(key, until)| now < *until && (all || lost(key)));
        held.map(|(_, until)| *until).max()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn snapshot(members: &[&str], act_until: Option<Instant>) -> Snapshot {
        let ring = RendezvousHasher::new(members.iter().map(|m| Arc::from(*m)));
        Snapshot {
            ring,
            shares: true,
            act_until,
            members: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn acting_ends_by_time_and_is_told() {
        let shared = Arc::new(Shared::new("a".into()));
        let membership = Membership::new(Arc::clone(&shared));
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
        let membership = Membership::new(Arc::clone(&shared));
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
