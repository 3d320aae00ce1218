//! The bounded history of one resource: what watches resume from and what consistent paging goes back to.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::object::{Object, StoreKey};

/// One change.
#[derive(Debug, Clone)]
pub(crate) struct LogEntry {
    /// The revision of the change.
    pub(crate) revision: u64,
    /// The object before; `None` for a creation.
    pub(crate) before: Option<Arc<Object>>,
    /// The object after. For a deletion: its last state at the revision of the deletion.
    pub(crate) after: Arc<Object>,
    /// True if the object is gone after this change.
    pub(crate) deleted: bool,
}

/// The history is older than what is kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// The oldest revision that can be resumed from.
    pub(crate) oldest: u64,
}

/// Changes of one resource in revision order, at most `capacity` of them.
#[derive(Debug)]
pub(crate) struct Log {
    entries: VecDeque<LogEntry>,
    capacity: usize,
    /// Every change after this revision is in `entries`.
    compacted: u64,
}

impl Log {
    pub(crate) fn new(capacity: usize, compacted: u64) -> Self {
        Self {
            entries: VecDeque::new(),
            capacity: capacity.max(1),
            compacted,
        }
    }

    pub(crate) fn push(&mut self, entry: LogEntry) {
        if self.entries.len() >= self.capacity
            && let Some(dropped) = self.entries.pop_front()
        {
            self.compacted = dropped.revision;
        }
        self.entries.push_back(entry);
    }

    /// Forgets everything up to `revision`, which must be the newest.
    pub(crate) fn compact(&mut self, revision: u64) {
        self.entries.clear();
        self.compacted = revision;
    }

    /// Up to `max` changes after `revision`.
    pub(crate) fn since(
        &self,
        revision: u64,
        max: usize,
    ) -> Result<impl Iterator<Item = &LogEntry>, Compacted> {
        if revision < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        let start = self.entries.partition_point(|entry| entry.revision <= revision);
        Ok(self.entries.range(start..).take(max))
    }

    /// Takes `objects` (the newest state) back to `revision`.
    pub(crate) fn roll_back(
        &self,
        objects: &mut BTreeMap<StoreKey, Arc<Object>>,
        revision: u64,
    ) -> Result<(), Compacted> {
        if revision < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        for entry in self
            .entries
            .iter()
            .rev()
            .take_while(|entry| entry.revision > revision)
        {
            match &entry.before {
                Some(before) => objects.insert(before.key().clone(), before.clone()),
                None => objects.remove(entry.after.key()),
            };
        }
        Ok(())
    }
}
