//! Watches: a position in a resource's history and a filter. The reader pulls, so a slow one costs nothing.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::watch as signal;

use super::{ListQuery, Store, log::LogEntry, object::Object};
use crate::{resource::ResourceKey, status::ApiError};

/// Most changes looked at per step: bounds the time under the lock and the size of one write.
const BATCH: usize = 256;

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

impl EventKind {
    /// The `type` of the watch event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One event of a watch.
#[derive(Debug, Clone)]
pub struct WatchEvent {
    /// The event.
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
    changed: signal::Receiver<u64>,
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
        let cursor =
            match revision {
                Some(revision) => {
                    if let Err(compacted) = table.log.since(revision, 0) {
                        return Err(ApiError::expired_watch(revision, compacted.oldest));
                    }
                    revision
                }
                None => {
                    initial.extend(table.objects.values().filter(|object| query.matches(object)).map(
                        |object| WatchEvent {
                            kind: EventKind::Added,
                            object: object.clone(),
                        },
                    ));
                    inner.revision
                }
            };
        let changed = table.changed.subscribe();
        drop(inner);
        Ok(StoreWatch {
            store: self.clone(),
            resource: resource.clone(),
            query,
            cursor,
            initial,
            changed,
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
        let table = match inner.table(&self.resource) {
            Ok(table) => table,
            Err(error) => return WatchStep::Gone(error),
        };
        loop {
            let entries = match table.log.since(self.cursor, BATCH) {
                Ok(entries) => entries,
                Err(compacted) => {
                    return WatchStep::Gone(ApiError::expired_watch(self.cursor, compacted.oldest));
                }
            };
            let mut events = Vec::new();
            let mut last = None;
            for entry in entries {
                last = Some(entry.revision);
                events.extend(event(entry, &self.query));
            }
            match last {
                Some(last) => self.cursor = last,
                None => {
                    // A watch may start in the future; its bookmarks must not take it back.
                    self.cursor = self.cursor.max(inner.revision);
                    return WatchStep::Idle(self.cursor);
                }
            }
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

/// The event that a change is to a watch with this filter, if it is one.
fn event(entry: &LogEntry, query: &ListQuery) -> Option<WatchEvent> {
    let before = entry.before.as_ref().filter(|object| query.matches(object));
    let after = (!entry.deleted && query.matches(&entry.after)).then_some(&entry.after);
    match (before, after) {
        (None, None) => None,
        (None, Some(after)) => Some(WatchEvent {
            kind: EventKind::Added,
            object: after.clone(),
        }),
        (Some(_), Some(after)) => Some(WatchEvent {
            kind: EventKind::Modified,
            object: after.clone(),
        }),
        // The last state that matched, at the revision of the change.
        (Some(before), None) => {
            let object = if entry.deleted {
                entry.after.clone()
            } else {
                Arc::new(before.at(entry.revision))
            };
            Some(WatchEvent {
                kind: EventKind::Deleted,
                object,
            })
        }
    }
}
