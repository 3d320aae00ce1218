//! The shoots that the controller must reconcile. Every watch and stream adds to this queue.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue of shoots without duplicates: several additions of a shoot lead to one reconciliation. Bounded by the number
/// of shoots.
#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    queue: Mutex<PendingShoots>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct PendingShoots {
    order: VecDeque<Arc<str>>,
    queued: HashSet<Arc<str>>,
    all: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkItem {
    One(Arc<str>),
    All,
}

impl WorkQueue {
    /// Something about this shoot may have changed.
    pub(crate) fn add(&self, shoot: &str) {
        let mut queue = self.queue.lock();
        if !queue.queued.contains(shoot) {
            let shoot: Arc<str> = shoot.into();
            queue.queued.insert(shoot.clone());
            queue.order.push_back(shoot);
            self.notify.notify_one();
        }
    }

    /// Something about all shoots may have changed.
    pub(crate) fn add_all(&self) {
        self.queue.lock().all = true;
        self.notify.notify_one();
    }

    /// Waits for the next item. Cancel-safe. Only one caller may wait at a time.
    pub(crate) async fn next(&self) -> WorkItem {
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
        let shoot = queue.order.pop_front()?;
        queue.queued.remove(&shoot);
        Some(WorkItem::One(shoot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_shoot_waits_once_however_often_it_is_woken() {
        let work_queue = WorkQueue::default();
        for shoot in ["a", "b", "a"] {
            work_queue.add(shoot);
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
