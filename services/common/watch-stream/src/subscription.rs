//! The cursor of a reader over the changes of a [`StreamStore`].

use std::ops::Bound::{Excluded, Unbounded};
use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt as _};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::message::{COMPLETE, Completeness, Event, HEARTBEAT_INTERVAL, Message};
use crate::server::{State, StreamStore};

/// Changes that a subscriber gets each time it takes the lock.
const BATCH: usize = 256;

/// The reader was so far behind that removals it has not seen are forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagged;

/// A message together with the moment at which its change was published.
pub type Published<K, V> = (Message<K, Arc<V>>, Instant);

/// The completeness of a snapshot, once it may be read, and then whenever it may have changed. Never ends.
pub(crate) type CompletenessChanges = Pin<Box<dyn Stream<Item = Completeness> + Send>>;

/// A change that was read and not sent yet.
#[derive(Debug)]
struct PendingChange<K, V> {
    revision: u64,
    event: Event<K, Arc<V>>,
    published: Instant,
    /// When the value of the key was published.
    set_at: Option<Instant>,
}

/// One reader of a store. It holds only its position and at most one batch. A slow reader costs neither the writer nor
/// other readers anything, and finds the newest values when it goes on.
pub struct Subscription<K, V> {
    store: StreamStore<K, V>,
    state: watch::Receiver<State<K, V>>,
    matches: Box<dyn Fn(&K) -> bool + Send>,
    completeness_changes: CompletenessChanges,
    // As the reader knows it; none until the snapshot may be read.
    completeness: Option<Completeness>,
    // Changes up to here were read.
    cursor: u64,
    snapshot: Option<SnapshotCursor<K>>,
    batch: std::vec::IntoIter<PendingChange<K, V>>,
    quiet_since: Instant,
}

/// How far a snapshot was read.
struct SnapshotCursor<K> {
    // The last key that was read.
    after: Option<K>,
    items: u64,
}

impl<K: Ord + Clone, V> StreamStore<K, V> {
    /// Subscribes to the keys that match: a snapshot, each item as it is when it is read, then every later change.
    #[must_use]
    pub fn subscribe(&self, matches: impl Fn(&K) -> bool + Send + 'static) -> Subscription<K, V> {
        let complete = stream::iter([COMPLETE]).chain(stream::pending());
        Subscription::new(self, matches, Box::pin(complete))
    }
}

impl<K: Ord + Clone, V> Subscription<K, V> {
    pub(crate) fn new(
        store: &StreamStore<K, V>,
        matches: impl Fn(&K) -> bool + Send + 'static,
        completeness_changes: CompletenessChanges,
    ) -> Self {
        Self {
            store: store.clone(),
            state: store.state.subscribe(),
            matches: Box::new(matches),
            completeness_changes,
            completeness: None,
            cursor: 0,
            snapshot: Some(SnapshotCursor {
                after: None,
                items: 0,
            }),
            batch: Vec::new().into_iter(),
            quiet_since: Instant::now(),
        }
    }

    /// The next message; a heartbeat after 5 s of silence. Safe to cancel: nothing is lost.
    ///
    /// # Errors
    /// When the reader is too far behind; it has to subscribe anew.
    pub async fn next(&mut self) -> Result<Published<K, V>, Lagged> {
        loop {
            if let Some(change) = self.batch.next() {
                let published = change.published;
                return Ok((self.message(change), published));
            }
            let heartbeat = self.quiet_since + HEARTBEAT_INTERVAL;
            if self.completeness.is_none() {
                tokio::select! {
                    // A reader that comes late gets the snapshot and no heartbeat.
                    biased;
                    completeness = self.completeness_changes.next() => self.completeness = completeness,
                    () = tokio::time::sleep_until(heartbeat) => return Ok(self.heartbeat()),
                }
            }
            if let Some(snapshot) = self.snapshot.take() {
                self.read_snapshot(snapshot);
                continue;
            }
            self.read_changes()?;
            if self.batch.len() > 0 {
                continue;
            }
            tokio::select! {
                changed = self.state.changed() => if changed.is_err() {
                    // Cannot happen: the sender lives in the store that this subscription holds.
                    return Err(Lagged);
                },
                completeness = self.completeness_changes.next() => {
                    if self.completeness != completeness {
                        self.completeness = completeness;
                        return Ok(self.heartbeat());
                    }
                }
                () = tokio::time::sleep_until(heartbeat) => return Ok(self.heartbeat()),
            }
        }
    }

    fn read_snapshot(&mut self, mut snapshot: SnapshotCursor<K>) {
        let state = self.state.borrow();
        let now = Instant::now();
        if snapshot.after.is_none() {
            // What changes from now on is read after the snapshot.
            self.cursor = state.changes.revision;
        }
        let rest = (snapshot.after.as_ref().map_or(Unbounded, Excluded), Unbounded);
        let mut batch: Vec<_> = state
            .items
            .range::<K, _>(rest)
            .filter(|(key, _)| (self.matches)(key))
            .filter_map(|(key, item)| {
                Some(PendingChange {
                    revision: item.revision,
                    event: Event::Upsert(key.clone(), item.value.clone()?),
                    published: now,
                    set_at: Some(item.published),
                })
            })
            .take(BATCH)
            .collect();
        drop(state);
        snapshot.items += batch.len() as u64;
        match batch.last().map(|change| &change.event) {
            Some(Event::Upsert(key, _)) if batch.len() == BATCH => {
                snapshot.after = Some(key.clone());
                self.snapshot = Some(snapshot);
            }
            _ => batch.push(PendingChange {
                revision: self.cursor,
                event: Event::SnapshotComplete {
                    items: snapshot.items,
                    completeness: self.completeness.clone().unwrap_or(COMPLETE),
                },
                published: now,
                set_at: None,
            }),
        }
        self.batch = batch.into_iter();
    }

    fn read_changes(&mut self) -> Result<(), Lagged> {
        // Marks the state as seen: a change from now on wakes once more, and none is missed.
        let state = self.state.borrow_and_update();
        if self.cursor < state.compacted {
            return Err(Lagged);
        }
        let mut batch = Vec::new();
        for (&revision, key) in state.changes.keys.range(self.cursor + 1..) {
            self.cursor = revision;
            let Some(item) = state.items.get(key).filter(|_| (self.matches)(key)) else {
                continue;
            };
            let (event, set_at) = match &item.value {
                Some(value) => (Event::Upsert(key.clone(), value.clone()), Some(item.published)),
                None => (Event::Removed(key.clone()), None),
            };
            batch.push(PendingChange {
                revision,
                event,
                published: item.published,
                set_at,
            });
            if batch.len() == BATCH {
                break;
            }
        }
        self.batch = batch.into_iter();
        Ok(())
    }

    fn heartbeat(&mut self) -> Published<K, V> {
        let published = Instant::now();
        let message = self.message(PendingChange {
            revision: self.cursor,
            event: Event::Heartbeat {
                completeness: self.completeness.clone(),
            },
            published,
            set_at: None,
        });
        (message, published)
    }

    /// A message that is sent now.
    fn message(&mut self, change: PendingChange<K, V>) -> Message<K, Arc<V>> {
        self.quiet_since = Instant::now();
        let item_age = change.set_at.map(|at| at.elapsed());
        Message {
            position: self.store.position_at(change.revision, item_age),
            event: change.event,
        }
    }
}
