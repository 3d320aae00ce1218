//! A queue of the keys that a controller must reconcile. Every watch and stream adds to it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue of keys without duplicates: several additions of a key lead to one reconciliation. Bounded by the number of
/// keys.
#[derive(Debug, Default)]
pub struct WorkQueue {
    queue: Mutex<PendingKeys>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct PendingKeys {
    order: VecDeque<Arc<str>>,
    queued: HashSet<Arc<str>>,
    all: bool,
}

/// One key, or all, to reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkItem {
    /// This key.
    One(Arc<str>),
    /// All that the controller knows.
    All,
}

impl WorkQueue {
    /// Something about this key may have changed.
    pub fn add(&self, key: &str) {
        let mut queue = self.queue.lock();
        if !queue.queued.contains(key) {
            let key: Arc<str> = key.into();
            queue.queued.insert(key.clone());
            queue.order.push_back(key);
            self.notify.notify_one();
        }
    }

    /// Something about all keys may have changed.
    pub fn add_all(&self) {
        self.queue.lock().all = true;
        self.notify.notify_one();
    }

    /// Waits for the next item. Cancel-safe. Only one caller may wait at a time.
    pub async fn next(&self) -> WorkItem {
        loop {
            if let Some(wake) = self.take() {
                return wake;
            }
            self.notify.notified().await;
        }
    }

    fn take(&self) -> Option<WorkItem> {
        let mut queue = self.queue.lock();
        if std::mem::take(&mut queue.all) {
            return Some(WorkItem::All);
        }
        let key = queue.order.pop_front()?;
        queue.queued.remove(&key);
        Some(WorkItem::One(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_waits_once_however_often_it_is_woken() {
        let work_queue = WorkQueue::default();
        for key in ["a", "b", "a"] {
            work_queue.add(key);
        }
        assert_eq!(work_queue.next().await, WorkItem::One("a".into()));
        work_queue.add("a");
        work_queue.add_all();
        assert_eq!(work_queue.next().await, WorkItem::All);
        assert_eq!(work_queue.next().await, WorkItem::One("b".into()));
        assert_eq!(work_queue.next().await, WorkItem::One("a".into()));
        assert_eq!(work_queue.take(), None);
    }
}
