//! Takes over the items of the other replicas.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::known_replicas::PeerState;
use super::{OwnItems, SeedView};
use crate::client::{Received, Update};
use crate::item::StreamItem;
use crate::replicas::ReplicaHandler;
use crate::reports::ReplicaReport;

/// Receives the items of the other replicas for a view.
pub(super) struct PeerHandler<M: StreamItem, O> {
    pub(super) view: SeedView<M>,
    pub(super) own: Arc<O>,
}

impl<M: StreamItem, O: OwnItems<M>> ReplicaHandler<M> for PeerHandler<M, O> {
    fn on_listed(&self) {
        self.view
            .replicas
            .send_if_modified(|replicas| !std::mem::replace(&mut replicas.listed, true));
    }

    fn on_join(&self, replica: &Arc<str>) {
        let joined = PeerState::Joined(Instant::now());
        self.view.replicas.send_modify(|replicas| {
            replicas.others.insert(replica.clone(), joined);
        });
    }

    fn on_leave(&self, replica: &Arc<str>) {
        // Before the replica stops being missing.
        self.view.forget(replica, |_| false, |key| self.own.exists(key));
        self.view.replicas.send_modify(|replicas| {
            replicas.others.remove(replica);
        });
        self.view.note_answering();
    }

    fn on_update(&self, replica: &Arc<str>, update: Update<M::Key, M>) {
        let view = &self.view;
        let keep = |key: &M::Key| self.own.exists(key);
        match update {
            Update::Snapshot(items, completeness) => {
                let keys: BTreeSet<M::Key> = items.keys().cloned().collect();
                for (key, received) in items {
                    view.set(replica, key, report(received));
                }
                view.forget(replica, |key| keys.contains(key), keep);
                let complete = completeness.complete;
                let state = if complete {
                    PeerState::Synced
                } else {
                    PeerState::Outdated
                };
                view.note(replica, state);
            }
            Update::Upsert(key, received) => view.set(replica, key, report(received)),
            Update::Removed(key) => view.unset(replica, &key, keep(&key)),
            // Of its own items, a replica has all from its snapshot on.
            Update::Completeness(_) | Update::Skipped(_) => {}
            // Its items stay until it sends others or leaves.
            Update::Lost(_) => {
                let joined = matches!(
                    view.replicas.borrow().others.get(replica),
                    Some(PeerState::Joined(_))
                );
                if !joined {
                    view.note(replica, PeerState::Outdated);
                }
            }
        }
    }
}

fn report<M>(received: Received<M>) -> ReplicaReport<M> {
    ReplicaReport {
        item: Arc::new(received.value),
        as_of: received.sent_at,
        set_at: received.set_at,
    }
}
