//! The server's side: the latest value of every key, and the order of the changes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::message::Position;
use crate::wire::duration;

/// At least this many removals are remembered, or as many as there are live keys if that is more, and at most twice as
/// many: a reader that is further behind starts anew, which costs it no more than the removals would.
const MIN_TOMBSTONES: usize = 1024;

/// Keyed state with any number of subscribers. Cheap to clone.
#[derive(Debug)]
pub struct StreamStore<K, V> {
    epoch: Arc<str>,
    started: Instant,
    // Every change with a revision wakes the subscribers.
    pub(crate) state: watch::Sender<State<K, V>>,
}

impl<K, V> Clone for StreamStore<K, V> {
    fn clone(&self) -> Self {
        Self {
            epoch: self.epoch.clone(),
            state: self.state.clone(),
            ..*self
        }
    }
}

#[derive(Debug)]
pub(crate) struct State<K, V> {
    pub(crate) items: BTreeMap<K, LatestChange<V>>,
    pub(crate) changes: ChangeOrder<K>,
    // Removals up to here are forgotten.
    pub(crate) compacted: u64,
}

#[derive(Debug)]
pub(crate) struct ChangeOrder<K> {
    pub(crate) revision: u64,
    // Every change that is still the latest of its key.
    pub(crate) keys: BTreeMap<u64, K>,
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
pub(crate) struct LatestChange<V> {
    pub(crate) revision: u64,
    pub(crate) published: Instant,
    // None: the key was removed.
    pub(crate) value: Option<Arc<V>>,
}

/// A part of all items, in the order of their keys.
#[derive(Debug)]
pub struct ListingPage<K, V> {
    /// The items in the order of their keys.
    pub items: Vec<(K, Arc<V>)>,
    /// True if more follow.
    pub more: bool,
    /// How many match over all pages.
    pub total: usize,
    /// The position of the listing.
    pub position: Position,
}

impl<K: Ord + Clone, V> Default for StreamStore<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V> StreamStore<K, V> {
    /// An empty store of a new epoch.
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
            epoch: format!("{:016x}", rand::random::<u64>()).into(),
            started: Instant::now(),
            state: watch::Sender::new(state),
        }
    }

    /// Sets the value of a key and notifies the subscribers.
    pub fn upsert(&self, key: K, value: V) {
        self.update(key, |_| KeyUpdate::Changed(value));
    }

    /// Sets the value of a key; the subscribers are notified only if `same` says that it differs from the old one.
    /// Returns whether they were.
    pub fn upsert_unless(&self, key: K, value: V, same: impl FnOnce(&V, &V) -> bool) -> bool {
        self.update(key, |old| match old {
            Some(old) if same(old, &value) => KeyUpdate::None,
            _ => KeyUpdate::Changed(value),
        })
    }

    /// Updates the value of a key by what it is now. Returns whether the subscribers were notified. The map is searched
    /// once: with thousands of keys every step of a search waits for the memory.
    pub(crate) fn update(&self, key: K, decide: impl FnOnce(Option<&V>) -> KeyUpdate<V>) -> bool {
        self.state.send_if_modified(|state| {
            let mut entry = state.items.entry(key);
            let old = match &mut entry {
                Entry::Occupied(old) => Some(old.get_mut()).filter(|old| old.value.is_some()),
                Entry::Vacant(_) => None,
            };
            let value = match (decide(old.as_ref().and_then(|old| old.value.as_deref())), old) {
                (KeyUpdate::Changed(value), _) => value,
                (KeyUpdate::Renewed(value), Some(old)) => {
                    old.value = Some(Arc::new(value));
                    return false;
                }
                (KeyUpdate::None, _) | (KeyUpdate::Renewed(_), None) => return false,
            };
            state.changes.note(entry, Some(Arc::new(value)));
            true
        })
    }

    /// Removes a key and notifies the subscribers; nothing happens when it is not there.
    pub fn remove(&self, key: &K) {
        self.state.send_if_modified(|state| {
            if state.live(key).is_none() {
                return false;
            }
            let entry = state.items.entry(key.clone());
            state.changes.note(entry, None);
            state.forget_removals();
            true
        });
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.state.borrow().live(key).cloned()
    }

    /// Where an answer stands that is sent now.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position_at(self.state.borrow().changes.revision, None)
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> Vec<K> {
        let state = self.state.borrow();
        let live = state.items.iter().filter(|(_, item)| item.value.is_some());
        live.map(|(key, _)| key.clone()).collect()
    }

    /// All values, in the order of their keys.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(K, Arc<V>)> {
        self.page(None, usize::MAX, |_, _| true).items
    }

    /// Visits all values, in the order of their keys. Returns where an answer from them stands.
    pub fn visit(&self, visit: impl FnMut(&V)) -> Position {
        let state = self.state.borrow();
        let values = state.items.values();
        values.filter_map(|item| item.value.as_deref()).for_each(visit);
        self.position_at(state.changes.revision, None)
    }

    /// Lists up to `limit` items that match, from the first key after `after`.
    #[must_use]
    pub fn page(
        &self,
        after: Option<&K>,
        limit: usize,
        mut matches: impl FnMut(&K, &V) -> bool,
    ) -> ListingPage<K, V> {
        let state = self.state.borrow();
        let mut page = ListingPage {
            items: Vec::new(),
            more: false,
            total: 0,
            position: self.position_at(state.changes.revision, None),
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

    pub(crate) fn position_at(&self, revision: u64, item_age: Option<Duration>) -> Position {
        Position {
            epoch: self.epoch.to_string(),
            revision,
            uptime: Some(duration(self.started.elapsed())),
            item_age: item_age.map(duration),
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
    /// Notes a change.
    fn note<V>(&mut self, entry: Entry<'_, K, LatestChange<V>>, value: Option<Arc<V>>) {
        self.revision += 1;
        self.tombstones += usize::from(value.is_none());
        let latest = LatestChange {
            revision: self.revision,
            published: Instant::now(),
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
    }
}
