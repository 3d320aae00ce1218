//! The replicas whose items a complete answer has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_proto::stream::v1::Scope;

use crate::message::Completeness;

/// An answer waits at most this long for replicas that have not sent their items yet.
pub(super) const WAIT_FOR_REPLICAS: Duration = Duration::from_secs(10);

/// The replicas whose items a complete answer has, this one included.
#[derive(Debug, Clone)]
pub struct KnownReplicas {
    me: Arc<str>,
    started: Instant,
    /// True once the other replicas have been listed.
    pub(super) listed: bool,
    pub(super) states: BTreeMap<Arc<str>, PeerState>,
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
    /// Knows nothing but this one, which lacks items.
    pub(super) fn new(me: Arc<str>, started: Instant) -> Self {
        Self {
            states: BTreeMap::from([(me.clone(), PeerState::Joined(started))]),
            me,
            started,
            listed: false,
        }
    }

    /// Returns true if a replica other than this one answers: all of its items are here and up to date.
    #[must_use]
    pub fn answers(&self, replica: &str) -> bool {
        *replica != *self.me && self.states.get(replica) == Some(&PeerState::Synced)
    }

    /// This replica has all of its own items, or lacks some.
    pub(super) fn set_filled(&mut self, filled: bool) {
        let state = match filled {
            true => PeerState::Synced,
            false => PeerState::Joined(self.started),
        };
        self.states.insert(self.me.clone(), state);
    }

    /// The completeness of an answer of this scope that is given now, and when waiting for more ends; none when waiting
    /// is no use now.
    pub(super) fn completeness(&self, scope: Scope) -> (Completeness, Option<Instant>) {
        let of_all = scope != Scope::Replica;
        let listed = self.listed || !of_all;
        let mut wait = (!listed).then(|| self.started + WAIT_FOR_REPLICAS);
        let mut missing = Vec::new();
        for (replica, state) in self.states.iter().filter(|(of, _)| of_all || **of == self.me) {
            match state {
                PeerState::Synced => continue,
                PeerState::Outdated => {}
                PeerState::Joined(since) => wait = wait.max(Some(*since + WAIT_FOR_REPLICAS)),
            }
            missing.push(replica.to_string());
        }
        let completeness = Completeness {
            complete: listed && missing.is_empty(),
            missing_replicas: missing,
        };
        (completeness, wait)
    }
}
