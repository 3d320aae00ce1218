//! Which shoots are to be looked at again: what every watch and stream tells the engine.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue of shoots, each at most once: however often one is woken, it is looked at once. Bounded by the number of
/// shoots.
#[derive(Debug, Default)]
pub struct Wakes {
    queue: Mutex<Queue>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<Arc<str>>,
    queued: HashSet<Arc<str>>,
    all: bool,
}

/// What is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// This shoot.
    One(Arc<str>),
    /// Every shoot that is known.
    All,
}

impl Wakes {
    /// Something about this shoot may have changed.
    pub fn one(&self, shoot: &str) {
        let mut queue = self.queue.lock();
        if !queue.queued.contains(shoot) {
            let shoot: Arc<str> = shoot.into();
            queue.queued.insert(shoot.clone());
            queue.order.push_back(shoot);
            self.notify.notify_one();
        }
    }

    /// Something about all shoots may have changed.
    pub fn all(&self) {
        self.queue.lock().all = true;
        self.notify.notify_one();
    }

    /// What is to be looked at next. Safe to cancel. For one caller at a time.
    pub async fn next(&self) -> Wake {
        loop {
            if let Some(wake) = self.take() {
                return wake;
            }
            self.notify.notified().await;
        }
    }

    fn take(&self) -> Option<Wake> {
        let mut queue = self.queue.lock();
        if std::mem::take(&mut queue.all) {
            return Some(Wake::All);
        }
        let shoot = queue.order.pop_front()?;
        queue.queued.remove(&shoot);
        Some(Wake::One(shoot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_shoot_waits_once_however_often_it_is_woken() {
        let wakes = Wakes::default();
        for shoot in ["a", "b", "a"] {
            wakes.one(shoot);
        }
        assert_eq!(wakes.next().await, Wake::One("a".into()));
        wakes.one("a");
        wakes.all();
        assert_eq!(wakes.next().await, Wake::All);
        assert_eq!(wakes.next().await, Wake::One("b".into()));
        assert_eq!(wakes.next().await, Wake::One("a".into()));
        assert_eq!(wakes.take(), None);
    }
}
