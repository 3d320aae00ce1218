//! The cursor of a reader over the changes of a [`StateStore`].

use std::ops::Bound::{Excluded, Unbounded};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt as _};

use crate::message::{Completeness, Event, HEARTBEAT_INTERVAL, Message};
use crate::server::StateStore;

/// Changes that a subscriber gets each time it takes the lock.
const BATCH: usize = 256;

/// The reader was so far behind that removals it has not seen are forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagged;

/// A message together with the moment at which its change was published.
pub type Published<K, V> = (Message<K, Arc<V>>, Instant);

/// Ends when a snapshot may be read, with what it lacks then.
pub(crate) type SnapshotGate = Pin<Box<dyn Future<Output = Completeness> + Send>>;

/// The completeness, whenever it may have changed.
pub(crate) type CompletenessChanges = Pin<Box<dyn Stream<Item = Completeness> + Send>>;

/// When a snapshot is read, and its completeness from then on.
pub(crate) struct SnapshotTerms {
    pub(crate) gate: SnapshotGate,
    pub(crate) changes: CompletenessChanges,
}

/// A change that was read and not sent yet.
#[derive(Debug)]
struct PendingChange<K, V> {
    revision: u64,
    event: Event<K, Arc<V>>,
    published: Instant,
    set_at: Option<Instant>,
}

/// One reader of a feed. It holds no state but where it is, and at most one batch: however slowly it reads, it costs
/// neither the writer nor other readers anything, and finds the newest values when it goes on.
pub struct Subscription<K, V> {
    feed: StateStore<K, V>,
    newest: watch::Receiver<u64>,
    matches: Box<dyn Fn(&K) -> bool + Send>,
    gate: Option<SnapshotGate>,
    changes: CompletenessChanges,
    // As the reader knows it; none before the snapshot.
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

impl<K, V> std::fmt::Debug for Subscription<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

impl<K: Ord + Clone, V> Subscription<K, V> {
    pub(crate) fn new(
        feed: &StateStore<K, V>,
        matches: Box<dyn Fn(&K) -> bool + Send>,
        terms: Option<SnapshotTerms>,
    ) -> Self {
        let terms = terms.map(|SnapshotTerms { gate, changes }| (gate, changes));
        let (gate, changes) = terms.unzip();
        Self {
            completeness: gate.is_none().then_some(Completeness::COMPLETE),
            gate,
            changes: changes.unwrap_or_else(|| Box::pin(futures::stream::pending())),
            feed: feed.clone(),
            newest: feed.inner.newest.subscribe(),
            matches,
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
            if let Some(gate) = &mut self.gate {
                tokio::select! {
                    completeness = gate => self.completeness = Some(completeness),
                    () = tokio::time::sleep_until(heartbeat) => return Ok(self.heartbeat()),
                }
                self.gate = None;
            }
            if let Some(snapshot) = self.snapshot.take() {
                self.read_snapshot(snapshot);
                continue;
            }
            // Marked as seen before reading: a change in between wakes once more, and none is missed.
            self.newest.mark_unchanged();
            self.read_changes()?;
            if self.batch.len() > 0 {
                continue;
            }
            tokio::select! {
                changed = self.newest.changed() => if changed.is_err() {
                    // Cannot happen: the sender lives in the feed that this subscription holds.
                    return Err(Lagged);
                },
                Some(completeness) = self.changes.next() => {
                    let completeness = Some(completeness);
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
        let feed = self.feed.clone();
        let state = feed.inner.state.lock();
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
                    set_at: Some(item.set_at),
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
                    completeness: self.completeness.clone().unwrap_or(Completeness::COMPLETE),
                },
                published: now,
                set_at: None,
            }),
        }
        self.batch = batch.into_iter();
    }

    fn read_changes(&mut self) -> Result<(), Lagged> {
        let feed = self.feed.clone();
        let state = feed.inner.state.lock();
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
                Some(value) => (Event::Upsert(key.clone(), value.clone()), Some(item.set_at)),
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
            position: self.feed.inner.position(change.revision, item_age),
            event: change.event,
        }
    }
}
