//! The bounded history of one resource, and watches: a position in it and a filter. The reader pulls, so a slow one
//! costs nothing.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::watch as signal;

use super::{ListQuery, Store, object::Object};
use crate::{resource::ResourceKey, status::ApiError};

/// Most changes looked at per step: bounds the time under the lock and the size of one write.
const BATCH: usize = 256;

/// One change.
#[derive(Debug, Clone)]
pub(super) struct LogEntry {
    pub(super) revision: u64,
    /// The object before; `None` for a creation.
    pub(super) before: Option<Arc<Object>>,
    /// The object after. For a deletion: its last state at the revision of the deletion.
    pub(super) after: Arc<Object>,
    /// True if the object is gone after this change.
    pub(super) deleted: bool,
}

/// Changes of one resource in revision order, at most `capacity` of them.
#[derive(Debug)]
pub(super) struct Log {
    entries: VecDeque<LogEntry>,
    capacity: usize,
    /// Every change after this revision is in `entries`.
    compacted: u64,
}

/// An event of an object, as a watch with its selectors sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It exists now or matches now.
    Added,
    /// It changed.
    Modified,
    /// It is gone or matches no more.
    Deleted,
}

/// One event of a watch.
#[derive(Debug, Clone)]
pub struct WatchEvent {
    pub kind: EventKind,
    /// The object at the revision of the event.
    pub object: Arc<Object>,
}

/// The result of [`StoreWatch::step`].
#[derive(Debug)]
pub enum WatchStep {
    /// Events in order, never empty.
    Events(Vec<WatchEvent>),
    /// Nothing left up to this revision; wait with [`StoreWatch::changed`].
    Idle(u64),
    /// The history was compacted past the watch: it must end with this 410.
    Gone(ApiError),
}

/// A running watch.
#[derive(Debug)]
pub struct StoreWatch {
    store: Arc<Store>,
    resource: ResourceKey,
    query: ListQuery,
    /// Everything up to this revision was delivered or did not match.
    cursor: u64,
    initial: VecDeque<WatchEvent>,
    changed: signal::Receiver<()>,
}

impl Log {
    pub(super) fn new(capacity: usize, compacted: u64) -> Self {
        Self {
            entries: VecDeque::new(),
            capacity,
            compacted,
        }
    }

    pub(super) fn push(&mut self, entry: LogEntry) {
        self.entries.push_back(entry);
        if self.entries.len() > self.capacity
            && let Some(dropped) = self.entries.pop_front()
        {
            self.compacted = dropped.revision;
        }
    }

    /// The changes after `revision`; 410 if they are forgotten.
    fn since(&self, revision: u64) -> Result<impl Iterator<Item = &LogEntry>, ApiError> {
        if revision < self.compacted {
            return Err(ApiError::expired_watch(revision, self.compacted));
        }
        let start = self.entries.partition_point(|entry| entry.revision <= revision);
        Ok(self.entries.range(start..))
    }
}

impl LogEntry {
    /// The event that the change is to a watch with this filter, if it is one.
    fn event(&self, query: &ListQuery) -> Option<WatchEvent> {
        let before = self.before.as_ref().filter(|object| query.matches(object));
        let after = (!self.deleted && query.matches(&self.after)).then_some(&self.after);
        let (kind, object) = match (before, after) {
            (None, None) => return None,
            (None, Some(after)) => (EventKind::Added, after.clone()),
            (Some(_), Some(after)) => (EventKind::Modified, after.clone()),
            (Some(_), None) if self.deleted => (EventKind::Deleted, self.after.clone()),
            // The last state that matched, at the revision of the change.
            (Some(before), None) => (EventKind::Deleted, Arc::new(before.at(self.revision))),
        };
        Some(WatchEvent { kind, object })
    }
}

impl Store {
    /// Starts a watch after `revision`; `None` starts with the current objects as ADDED events.
    ///
    /// # Errors
    /// 404 for an unknown resource; 410 for a revision older than the history kept.
    pub fn watch(
        self: &Arc<Self>,
        resource: &ResourceKey,
        query: ListQuery,
        revision: Option<u64>,
    ) -> Result<StoreWatch, ApiError> {
        let inner = self.inner.lock();
        let table = inner.table(resource)?;
        let mut initial = VecDeque::new();
        match revision {
            Some(revision) => drop(table.log.since(revision)?),
            None => {
                let existing = table.objects.values().filter(|object| query.matches(object));
                initial.extend(existing.cloned().map(|object| WatchEvent {
                    kind: EventKind::Added,
                    object,
                }));
            }
        }
        Ok(StoreWatch {
            store: self.clone(),
            resource: resource.clone(),
            query,
            cursor: revision.unwrap_or(inner.revision),
            initial,
            changed: table.changed.subscribe(),
        })
    }
}

impl StoreWatch {
    /// The next events, without waiting.
    pub fn step(&mut self) -> WatchStep {
        if !self.initial.is_empty() {
            let count = self.initial.len().min(BATCH);
            return WatchStep::Events(self.initial.drain(..count).collect());
        }
        let inner = self.store.inner.lock();
        loop {
            let table = inner.table(&self.resource);
            let entries = match table.and_then(|table| table.log.since(self.cursor)) {
                Ok(entries) => entries.take(BATCH),
                Err(error) => return WatchStep::Gone(error),
            };
            let mut events = Vec::new();
            let mut last = None;
            for entry in entries {
                last = Some(entry.revision);
                events.extend(entry.event(&self.query));
            }
            let Some(last) = last else {
                // A watch may start in the future; its bookmarks must not take it back.
                self.cursor = self.cursor.max(inner.revision);
                return WatchStep::Idle(self.cursor);
            };
            self.cursor = last;
            if !events.is_empty() {
                return WatchStep::Events(events);
            }
        }
    }

    /// Waits until the resource has changed since the last call; false when it is served no more.
    pub async fn changed(&mut self) -> bool {
        self.changed.changed().await.is_ok()
    }
}
