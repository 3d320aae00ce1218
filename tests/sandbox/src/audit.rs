//! The requests to an API server: a bounded log and a counter that never forgets.

use std::collections::VecDeque;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;

/// One request.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    /// Number of the request, counted from 1 per API server.
    pub id: u64,
    /// When it came in.
    pub time: Timestamp,
    /// When its effect, if it has one, was there: right before the answer.
    pub done: Timestamp,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// Path without the query.
    pub path: String,
    /// Query as sent; empty when there is none.
    pub query: String,
    /// Authenticated user; empty when there is none.
    pub user: String,
    /// HTTP status answered; 0 when a fault left the request unanswered.
    pub code: u16,
    /// The body of a write, cut at [`AuditEntry::MAX_BODY`].
    pub body: Bytes,
}

impl AuditEntry {
    /// Bytes kept of a request's body.
    pub const MAX_BODY: usize = 4096;

    /// True if the request would change something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

/// The newest requests.
#[derive(Debug)]
pub(crate) struct AuditLog {
    /// And how many there were in all.
    inner: Mutex<(u64, VecDeque<AuditEntry>)>,
    capacity: usize,
}

impl AuditLog {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            inner: Mutex::default(),
            capacity,
        }
    }

    /// Appends an entry, numbering it.
    pub(crate) fn push(&self, mut entry: AuditEntry) {
        let (total, entries) = &mut *self.inner.lock();
        *total += 1;
        entry.id = *total;
        entry.done = Timestamp::now();
        entries.push_back(entry);
        if entries.len() > self.capacity {
            entries.pop_front();
        }
    }

    /// Entries after number `id`, oldest first.
    pub(crate) fn since(&self, id: u64) -> Vec<AuditEntry> {
        let (_, entries) = &*self.inner.lock();
        let new = entries.iter().filter(|entry| entry.id > id);
        new.cloned().collect()
    }

    /// Number of requests ever logged.
    pub(crate) fn total(&self) -> u64 {
        self.inner.lock().0
    }
}
