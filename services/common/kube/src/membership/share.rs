//! The division of keys, for work that two replicas may do at one time: lease-probe probes its share of the shoots, the
//! weeder follows its share of the namespaces.
//!
//! The guarantee is a division, and no proof: replicas that see the same members agree on one owner for each key, and
//! a replica that comes or goes moves only its own share. While a key changes hands two replicas may own it for a
//! moment, or none. What two replicas must never do at one time takes a [`Permit`](super::Permit), as each deletion of
//! the weeder does ([`Share::act`], ADR 0004). Only where two processes with the same identity must not do it at one
//! time either, the share must be [`Exclusive`](super::Exclusive).

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::exclusive::Permits;
use super::record::Identity;
use super::rendezvous::RendezvousHasher;
use super::run::MembershipTask;
use super::{Membership, MembershipConfig, Ownership};

/// The share of this replica in the keys of its service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Share {
    pub(super) shared: Arc<Shared>,
}

/// State of the membership for its readers.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) ring: RendezvousHasher,
    /// True if this replica takes part: it is in the ring, or knows who leads.
    pub(crate) shares: bool,
    pub(crate) act_until: Option<Instant>,
}

/// Shared by the handles and the run loop.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) me: Identity,
    pub(super) snapshot: ArcSwap<Snapshot>,
    pub(super) permits: Mutex<Permits>,
    /// A permit was given back.
    pub(crate) returned: Notify,
    changes: watch::Sender<u64>,
}

impl Membership for Share {
    fn join(config: MembershipConfig, stop: CancellationToken) -> (Self, MembershipTask) {
        Self::join_as(Ownership::Overlapping, config, stop)
    }
}

// === impl Share ===

impl Share {
    pub(super) fn join_as(
        ownership: Ownership,
        config: MembershipConfig,
        stop: CancellationToken,
    ) -> (Self, MembershipTask) {
        let shared = Arc::new(Shared::new(config.identity.as_str().into()));
        let share = Self {
            shared: Arc::clone(&shared),
        };
        (share, MembershipTask::new(config, ownership, shared, stop))
    }

    /// The name of this replica.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.me
    }

    /// True if this replica should look after `key`, where it does no harm if two do for a moment. A replica that is
    /// cut off from the API server keeps what it has; one that never joined, or that is leaving, owns nothing.
    #[must_use]
    pub fn owns(&self, key: &str) -> bool {
        let snapshot = self.shared.snapshot.load();
        snapshot.ring.owner(key) == Some(&self.shared.me)
    }

    /// The owner of `key`, as far as this replica knows; none when there is no live member.
    #[must_use]
    pub fn owner(&self, key: &str) -> Option<Identity> {
        self.shared.snapshot.load().ring.owner(key).cloned()
    }

    /// The other members that this replica considers live.
    #[must_use]
    pub fn others(&self) -> Vec<Identity> {
        let snapshot = self.shared.snapshot.load();
        let members = snapshot.ring.members();
        members
            .filter(|member| **member != self.shared.me)
            .cloned()
            .collect()
    }

    /// True if this replica has joined: it takes part, though others may still have to acknowledge it.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.shared.snapshot.load().shares
    }

    /// Changes whenever the ownership of any key may have changed, also by the passing of time. The number has no
    /// meaning.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
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
}
