//! A queue of keys, ordered by the moment at which each is due.

use std::collections::{BTreeMap, BTreeSet};

use watchdog_api::unix_time::UnixTime;

/// Keys with the moment at which each is due, in the order of moments and then of keys. A key is in it once.
#[derive(Debug)]
pub(crate) struct Schedule<K> {
    order: BTreeSet<(UnixTime, K)>,
    due: BTreeMap<K, UnixTime>,
}

impl<K> Default for Schedule<K> {
    fn default() -> Self {
        Self {
            order: BTreeSet::new(),
            due: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone> Schedule<K> {
    /// Puts a key in, in place of where it was.
    pub(crate) fn insert(&mut self, key: K, due: UnixTime) {
        self.remove(&key);
        self.due.insert(key.clone(), due);
        self.order.insert((due, key));
    }

    /// Puts a key in, or moves it forward; never back.
    pub(crate) fn expedite(&mut self, key: K, due: UnixTime) {
        if self.due(&key).is_none_or(|already| already > due) {
            self.insert(key, due);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(due) = self.due.remove(key) {
            self.order.remove(&(due, key.clone()));
        }
    }

    /// Takes out the key that has been due for longest.
    pub(crate) fn pop_due(&mut self, now: UnixTime) -> Option<K> {
        self.next_due().filter(|due| *due <= now)?;
        let (_, key) = self.order.pop_first()?;
        self.due.remove(&key);
        Some(key)
    }

    pub(crate) fn due(&self, key: &K) -> Option<UnixTime> {
        self.due.get(key).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// When the next key is due.
    pub(crate) fn next_due(&self) -> Option<UnixTime> {
        self.order.first().map(|(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_what_is_due_in_order() {
        let mut schedule = Schedule::default();
        schedule.insert("late", UnixTime(9));
        schedule.insert("b", UnixTime(5));
        schedule.insert("a", UnixTime(5));
        schedule.insert("moved", UnixTime(1));
        schedule.insert("moved", UnixTime(7));
        schedule.insert("gone", UnixTime(1));
        schedule.remove(&"gone");
        assert_eq!(schedule.next_due(), Some(UnixTime(5)));
        let popped: Vec<_> = std::iter::from_fn(|| schedule.pop_due(UnixTime(8))).collect();
        assert_eq!(popped, ["a", "b", "moved"]);
        schedule.expedite("late", UnixTime(10));
        assert_eq!(schedule.next_due(), Some(UnixTime(9)), "never back");
        schedule.expedite("late", UnixTime(8));
        assert_eq!(schedule.pop_due(UnixTime(8)), Some("late"));
        assert_eq!(schedule.next_due(), None);
    }
}
