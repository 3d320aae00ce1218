//! The replicas whose items a complete answer has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::message::{COMPLETE, Completeness};

/// An answer waits at most this long for replicas that have not sent their items yet.
pub(super) const WAIT_FOR_REPLICAS: Duration = Duration::from_secs(10);

/// The replicas whose items a complete answer has.
#[derive(Debug, Clone)]
pub struct KnownReplicas {
    started: Instant,
    /// True once the other replicas have been listed.
    pub(super) listed: bool,
    /// True once this replica has all of its own items.
    pub(super) filled: bool,
    pub(super) others: BTreeMap<Arc<str>, PeerState>,
}

/// How much is known of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// It is known since then and has not sent its items yet.
    Joined(Instant),
    /// Its items are up to date.
    Synced,
    /// Its items are those that it sent before its stream was lost, or before it had all of them.
    Outdated,
}

// === impl KnownReplicas ===

impl KnownReplicas {
    /// None yet.
    pub(super) const fn new(started: Instant) -> Self {
        Self {
            started,
            listed: false,
            filled: false,
            others: BTreeMap::new(),
        }
    }

    /// Returns true if a replica other than this one answers: all of its items are here and up to date.
    #[must_use]
    pub fn answers(&self, replica: &str) -> bool {
        self.others.get(replica) == Some(&PeerState::Synced)
    }

    /// The completeness of an answer that is given now, and when waiting for more ends; none when waiting is no use
    /// now.
    pub(super) fn completeness(&self, me: &str) -> (Completeness, Option<Instant>) {
        let (own, mut wait) = self.own_completeness(me);
        let mut missing = own.missing_replicas;
        if !self.listed {
            wait = Some(self.started + WAIT_FOR_REPLICAS);
        }
        for (replica, state) in &self.others {
            match state {
                PeerState::Synced => continue,
                PeerState::Outdated => {}
                PeerState::Joined(since) => wait = wait.max(Some(*since + WAIT_FOR_REPLICAS)),
            }
            missing.push(replica.to_string());
        }
        let completeness = Completeness {
            complete: self.listed && missing.is_empty(),
            missing_replicas: missing,
        };
        (completeness, wait)
    }

    /// The same for the items of this replica alone.
    pub(super) fn own_completeness(&self, me: &str) -> (Completeness, Option<Instant>) {
        if self.filled {
            return (COMPLETE, None);
        }
        let completeness = Completeness {
            complete: false,
            missing_replicas: vec![me.to_owned()],
        };
        (completeness, Some(self.started + WAIT_FOR_REPLICAS))
    }

    /// How much is known of each replica, this one included.
    pub(super) fn states(&self, me: &Arc<str>) -> BTreeMap<Arc<str>, PeerState> {
        let own = match self.filled {
            true => PeerState::Synced,
            false => PeerState::Joined(self.started),
        };
        let mut states = self.others.clone();
        states.insert(me.clone(), own);
        states
    }
}
