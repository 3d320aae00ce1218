//! The server's side: the latest value of every key, and cursors over the changes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound::{Excluded, Unbounded};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt as _};

use crate::message::{Completeness, Event, HEARTBEAT_INTERVAL, Message, Position};

/// At least this many removals are remembered, or as many as there are live keys if that is more, and at most twice as
/// many: a reader that is further behind starts anew, which costs it no more than the removals would.
const MIN_TOMBSTONES: usize = 1024;

/// Changes that a subscriber gets each time it takes the lock.
const BATCH: usize = 256;

/// Keyed state with any number of subscribers. Cheap to clone.
#[derive(Debug)]
pub struct StateStore<K, V> {
    inner: Arc<Inner<K, V>>,
}

impl<K, V> Clone for StateStore<K, V> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

#[derive(Debug)]
struct Inner<K, V> {
    epoch: Arc<str>,
    started: Instant,
    state: Mutex<State<K, V>>,
    // The revision of the newest change: wakes subscribers.
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct State<K, V> {
    items: BTreeMap<K, LatestChange<V>>,
    changes: ChangeOrder<K>,
    // Removals up to here are forgotten.
    compacted: u64,
}

/// The order of the changes.
#[derive(Debug)]
struct ChangeOrder<K> {
    revision: u64,
    // Every change that is still the latest of its key.
    keys: BTreeMap<u64, K>,
    // Keys without a value.
    tombstones: usize,
}

/// The effect of an update on the value of a key.
pub(crate) enum KeyUpdate<V> {
    /// Nothing.
    None,
    /// Those that read it from now on find the new one; there is no new revision, and no subscriber is notified.
    Renewed(V),
    /// The subscribers are notified.
    Changed(V),
}

/// The latest change of a key.
#[derive(Debug)]
struct LatestChange<V> {
    revision: u64,
    published: Instant,
    // When the owner of the item set the value: earlier than it was published here if the owner is another replica.
    set_at: Instant,
    // None: the key was removed.
    value: Option<Arc<V>>,
}

/// A page of a listing.
#[derive(Debug)]
pub struct Page<K, V> {
    /// The items in the order of their keys.
    pub items: Vec<(K, Arc<V>)>,
    /// True if more follow.
    pub more: bool,
    /// How many match over all pages.
    pub total: usize,
    /// Where the listing stands.
    pub position: Position,
}

impl<K: Ord + Clone, V> Default for StateStore<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V> StateStore<K, V> {
    /// An empty feed of a new epoch.
    #[must_use]
    pub fn new() -> Self {
        let state = State {
            items: BTreeMap::new(),
            changes: ChangeOrder {
                revision: 0,
                keys: BTreeMap::new(),
                tombstones: 0,
            },
            compacted: 0,
        };
        Self {
            inner: Arc::new(Inner {
                epoch: format!("{:016x}", rand::random::<u64>()).into(),
                started: Instant::now(),
                state: Mutex::new(state),
                newest: watch::Sender::new(0),
            }),
        }
    }

    /// Sets the value of a key and tells the subscribers.
    pub fn upsert(&self, key: K, value: V) {
        self.update(key, Instant::now(), |_| KeyUpdate::Changed(value));
    }

    /// Sets the value of a key; the subscribers are notified only if `same` says that it differs from the old one.
    /// Returns whether they were.
    pub fn upsert_unless(&self, key: K, value: V, same: impl FnOnce(&V, &V) -> bool) -> bool {
        self.update(key, Instant::now(), |old| match old {
            Some(old) if same(old, &value) => KeyUpdate::None,
            _ => KeyUpdate::Changed(value),
        })
    }

    /// Updates the value of a key, as its owner did at `set_at`, by what it is now. Returns whether the subscribers
    /// were notified. The map is searched once: with thousands of keys every step of a search waits for the memory.
    pub(crate) fn update(
        &self,
        key: K,
        set_at: Instant,
        decide: impl FnOnce(Option<&V>) -> KeyUpdate<V>,
    ) -> bool {
        let mut guard = self.inner.state.lock();
        let state = &mut *guard;
        let mut entry = state.items.entry(key);
        let old = match &mut entry {
            Entry::Occupied(old) => Some(old.get_mut()).filter(|old| old.value.is_some()),
            Entry::Vacant(_) => None,
        };
        let value = match (decide(old.as_ref().and_then(|old| old.value.as_deref())), old) {
            (KeyUpdate::Changed(value), _) => value,
            (KeyUpdate::Renewed(value), Some(old)) => {
                (old.value, old.set_at) = (Some(Arc::new(value)), set_at);
                return false;
            }
            (KeyUpdate::None, _) | (KeyUpdate::Renewed(_), None) => return false,
        };
        let revision = state.changes.note(entry, Some(Arc::new(value)), set_at);
        drop(guard);
        self.inner.newest.send_replace(revision);
        true
    }

    /// Removes a key and tells the subscribers; nothing happens when it is not there.
    pub fn remove(&self, key: &K) {
        let mut state = self.inner.state.lock();
        if state.live(key).is_none() {
            return;
        }
        let State { items, changes, .. } = &mut *state;
        let revision = changes.note(items.entry(key.clone()), None, Instant::now());
        state.forget_removals();
        drop(state);
        self.inner.newest.send_replace(revision);
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.inner.state.lock().live(key).cloned()
    }

    /// Returns true if the key has a value.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.inner.state.lock().live(key).is_some()
    }

    /// Where an answer stands that is sent now.
    #[must_use]
    pub fn position(&self) -> Position {
        self.inner
            .position(self.inner.state.lock().changes.revision, None)
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> Vec<K> {
        let state = self.inner.state.lock();
        let live = state.items.iter().filter(|(_, item)| item.value.is_some());
        live.map(|(key, _)| key.clone()).collect()
    }

    /// All values, in the order of their keys.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(K, Arc<V>)> {
        self.page(None, usize::MAX, |_, _| true).items
    }

    /// Lists up to `limit` items that match, from the first key after `after`.
    #[must_use]
    pub fn page(
        &self,
        after: Option<&K>,
        limit: usize,
        mut matches: impl FnMut(&K, &V) -> bool,
    ) -> Page<K, V> {
        let state = self.inner.state.lock();
        let mut page = Page {
            items: Vec::new(),
            more: false,
            total: 0,
            position: self.inner.position(state.changes.revision, None),
        };
        for (key, item) in &state.items {
            let Some(value) = item.value.as_ref().filter(|value| matches(key, value)) else {
                continue;
            };
            page.total += 1;
            if after.is_some_and(|after| key <= after) {
                continue;
            }
            if page.items.len() < limit {
                page.items.push((key.clone(), value.clone()));
            } else {
                page.more = true;
            }
        }
        page
    }

    /// Subscribes to the keys that match: a snapshot, each item as it is when it is read, then every later change.
    #[must_use]
    pub fn subscribe(&self, matches: impl Fn(&K) -> bool + Send + 'static) -> Subscription<K, V> {
        self.subscribe_after(matches, None)
    }

    /// The same on terms that another part sets.
    pub(crate) fn subscribe_after(
        &self,
        matches: impl Fn(&K) -> bool + Send + 'static,
        terms: Option<SnapshotTerms>,
    ) -> Subscription<K, V> {
        let terms = terms.map(|SnapshotTerms { gate, changes }| (gate, changes));
        let (gate, changes) = terms.unzip();
        Subscription {
            completeness: gate.is_none().then_some(Completeness::COMPLETE),
            gate,
            changes: changes.unwrap_or_else(|| Box::pin(futures::stream::pending())),
            feed: self.clone(),
            newest: self.inner.newest.subscribe(),
            matches: Box::new(matches),
            cursor: 0,
            snapshot: Some(SnapshotCursor {
                after: None,
                items: 0,
            }),
            batch: Vec::new().into_iter(),
            quiet_since: Instant::now(),
        }
    }
}

impl<K, V> Inner<K, V> {
    fn position(&self, revision: u64, item_age: Option<Duration>) -> Position {
        Position {
            epoch: self.epoch.clone(),
            revision,
            uptime: self.started.elapsed(),
            item_age,
        }
    }
}

impl<K: Ord + Clone, V> State<K, V> {
    fn live(&self, key: &K) -> Option<&Arc<V>> {
        self.items.get(key)?.value.as_ref()
    }

    /// Forgets the oldest removals once there are twice as many as are kept: finding them takes a pass over all
    /// changes.
    fn forget_removals(&mut self) {
        let keep = MIN_TOMBSTONES.max(self.items.len() - self.changes.tombstones);
        if self.changes.tombstones <= 2 * keep {
            return;
        }
        let oldest: Vec<_> = self
            .changes
            .keys
            .iter()
            .filter(|(_, key)| self.live(key).is_none())
            .take(self.changes.tombstones - keep)
            .map(|(revision, key)| (*revision, key.clone()))
            .collect();
        for (revision, key) in oldest {
            self.changes.keys.remove(&revision);
            self.items.remove(&key);
            self.compacted = revision;
        }
        self.changes.tombstones = keep;
    }
}

impl<K: Ord + Clone> ChangeOrder<K> {
    /// Notes a change and returns its revision.
    fn note<V>(
        &mut self,
        entry: Entry<'_, K, LatestChange<V>>,
        value: Option<Arc<V>>,
        set_at: Instant,
    ) -> u64 {
        self.revision += 1;
        self.tombstones += usize::from(value.is_none());
        let latest = LatestChange {
            revision: self.revision,
            published: Instant::now(),
            set_at,
            value,
        };
        let key = match entry {
            Entry::Vacant(entry) => entry.insert_entry(latest).key().clone(),
            Entry::Occupied(mut entry) => {
                let previous = entry.insert(latest);
                self.tombstones -= usize::from(previous.value.is_none());
                let key = self.keys.remove(&previous.revision);
                key.unwrap_or_else(|| entry.key().clone())
            }
        };
        self.keys.insert(self.revision, key);
        self.revision
    }
}

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
