//! The server's side: the latest value of every key, and cursors over the changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::message::{Event, Message, Position};

/// A subscriber hears something at least this often. Three silent intervals mean a dead stream.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Removals are remembered up to so many, or up to the number of live keys if that is more: a reader that is
/// further behind starts anew, which costs it no more than the removals would.
const MIN_TOMBSTONES: usize = 1024;

/// Changes handed to a subscriber per visit to the lock.
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
    revision: u64,
    live: BTreeMap<K, Entry<V>>,
    // Every change that is still the latest of its key, removals included.
    changes: BTreeMap<u64, (K, Instant)>,
    // Removals: revision -> key, and the other way round for keys that come back.
    tombstones: BTreeMap<u64, K>,
    removed: BTreeMap<K, u64>,
    // Removals up to here are forgotten.
    compacted: u64,
}

#[derive(Debug)]
struct Entry<V> {
    revision: u64,
    value: Arc<V>,
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
            revision: 0,
            live: BTreeMap::new(),
            changes: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            removed: BTreeMap::new(),
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
        self.upsert_unless(key, value, |_, _| false);
    }

    /// Sets the value of a key; the subscribers are notified only if `same` says that it differs from the old one.
    /// Returns whether they were.
    pub fn upsert_unless(&self, key: K, value: V, same: impl FnOnce(&V, &V) -> bool) -> bool {
        let mut state = self.inner.state.lock();
        let previous = state.live.get(&key);
        if previous.is_some_and(|old| same(&old.value, &value)) {
            return false;
        }
        let old_revision = previous.map(|old| old.revision);
        let revision = state.next(old_revision, &key);
        state.live.insert(
            key,
            Entry {
                revision,
                value: Arc::new(value),
            },
        );
        drop(state);
        self.inner.newest.send_replace(revision);
        true
    }

    /// Removes a key and tells the subscribers; nothing happens when it is not there.
    pub fn remove(&self, key: &K) {
        let mut state = self.inner.state.lock();
        let Some(old) = state.live.remove(key) else {
            return;
        };
        let revision = state.next(Some(old.revision), key);
        state.tombstones.insert(revision, key.clone());
        state.removed.insert(key.clone(), revision);
        let keep = MIN_TOMBSTONES.max(state.live.len());
        while state.tombstones.len() > keep
            && let Some((forgotten, key)) = state.tombstones.pop_first()
        {
            state.removed.remove(&key);
            state.changes.remove(&forgotten);
            state.compacted = forgotten;
        }
        drop(state);
        self.inner.newest.send_replace(revision);
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.inner
            .state
            .lock()
            .live
            .get(key)
            .map(|entry| entry.value.clone())
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> Vec<K> {
        self.inner.state.lock().live.keys().cloned().collect()
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
        };
        for (key, entry) in &state.live {
            if !matches(key, &entry.value) {
                continue;
            }
            page.total += 1;
            if after.is_some_and(|after| key <= after) {
                continue;
            }
            if page.items.len() < limit {
                page.items.push((key.clone(), entry.value.clone()));
            } else {
                page.more = true;
            }
        }
        page
    }

    /// Subscribes to the keys that match. The snapshot is of this instant; nothing is lost between it and the first
    /// change.
    #[must_use]
    pub fn subscribe(&self, matches: impl Fn(&K) -> bool + Send + 'static) -> Subscription<K, V> {
        let state = self.inner.state.lock();
        let snapshot: Vec<_> = state
            .live
            .iter()
            .filter(|(key, _)| matches(key))
            .map(|(key, entry)| (entry.revision, key.clone(), entry.value.clone()))
            .collect();
        let cursor = state.revision;
        drop(state);
        Subscription {
            feed: self.clone(),
            newest: self.inner.newest.subscribe(),
            matches: Box::new(matches),
            cursor,
            items: snapshot.len() as u64,
            snapshot: Some(snapshot.into_iter()),
            batch: Vec::new().into_iter(),
            quiet_since: Instant::now(),
        }
    }
}

impl<K: Ord + Clone, V> State<K, V> {
    /// Notes a change of `key`, whose latest one so far was `previous`, and returns its revision.
    fn next(&mut self, previous: Option<u64>, key: &K) -> u64 {
        if let Some(previous) = previous {
            self.changes.remove(&previous);
        } else if let Some(gone) = self.removed.remove(key) {
            // The key is back: a reader that has not seen the removal need not.
            self.tombstones.remove(&gone);
            self.changes.remove(&gone);
        }
        self.revision += 1;
        self.changes.insert(self.revision, (key.clone(), Instant::now()));
        self.revision
    }
}

/// The reader was so far behind that removals it has not seen are forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagged;

/// A message together with the moment at which its change was published.
pub type Published<K, V> = (Message<K, Arc<V>>, Instant);

/// One reader of a feed.
pub struct Subscription<K, V> {
    feed: StateStore<K, V>,
    newest: watch::Receiver<u64>,
    matches: Box<dyn Fn(&K) -> bool + Send>,
    cursor: u64,
    items: u64,
    snapshot: Option<std::vec::IntoIter<(u64, K, Arc<V>)>>,
    batch: std::vec::IntoIter<Published<K, V>>,
    quiet_since: Instant,
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
        let published = self.wait().await?;
        self.quiet_since = Instant::now();
        Ok(published)
    }

    async fn wait(&mut self) -> Result<Published<K, V>, Lagged> {
        if let Some(snapshot) = &mut self.snapshot {
            if let Some((revision, key, value)) = snapshot.next() {
                return Ok(self.now(revision, Event::Upsert(key, value)));
            }
            self.snapshot = None;
            return Ok(self.now(self.cursor, Event::SnapshotComplete(self.items)));
        }
        loop {
            if let Some(published) = self.batch.next() {
                return Ok(published);
            }
            // Marked as seen before reading: a change in between wakes once more, and none is missed.
            self.newest.mark_unchanged();
            self.read_changes()?;
            if self.batch.len() > 0 {
                continue;
            }
            let heartbeat = self.quiet_since + HEARTBEAT_INTERVAL;
            tokio::select! {
                changed = self.newest.changed() => if changed.is_err() {
                    // Cannot happen: the sender lives in the feed that this subscription holds.
                    return Err(Lagged);
                },
                () = tokio::time::sleep_until(heartbeat) => return Ok(self.now(self.cursor, Event::Heartbeat)),
            }
        }
    }

    fn read_changes(&mut self) -> Result<(), Lagged> {
        let feed = self.feed.clone();
        let state = feed.inner.state.lock();
        if self.cursor < state.compacted {
            return Err(Lagged);
        }
        let mut batch = Vec::new();
        for (&revision, (key, at)) in state.changes.range(self.cursor + 1..) {
            self.cursor = revision;
            if !(self.matches)(key) {
                continue;
            }
            let event = match state.live.get(key) {
                Some(entry) => Event::Upsert(key.clone(), entry.value.clone()),
                None => Event::Removed(key.clone()),
            };
            batch.push((self.message(revision, event), *at));
            if batch.len() == BATCH {
                break;
            }
        }
        self.batch = batch.into_iter();
        Ok(())
    }

    fn now(&self, revision: u64, event: Event<K, Arc<V>>) -> Published<K, V> {
        (self.message(revision, event), Instant::now())
    }

    fn message(&self, revision: u64, event: Event<K, Arc<V>>) -> Message<K, Arc<V>> {
        let inner = &self.feed.inner;
        let position = Position {
            epoch: inner.epoch.clone(),
            revision,
            uptime: inner.started.elapsed(),
        };
        Message { position, event }
    }

    /// Sets the time of sending to now: called when the transport asks for the message.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp {
            started: self.feed.inner.started,
        }
    }
}

/// Sets the time of sending on messages of a feed.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    started: Instant,
}

impl Stamp {
    /// Sets the time of sending to now.
    pub fn sent<K, V>(&self, message: &mut Message<K, V>) {
        message.position.uptime = self.started.elapsed();
    }
}
