//! A queue of keys, ordered by the moment at which each is due.

use std::collections::{BTreeMap, BTreeSet};

use watchdog_api::unix_time::UnixTime;

/// Keys with the moment at which each is due; what is due at the same moment comes in the order in which it was put
/// in. A key is in it once.
#[derive(Debug)]
pub(crate) struct Schedule<K> {
    order: BTreeSet<(UnixTime, u64, K)>,
    due: BTreeMap<K, (UnixTime, u64)>,
    counter: u64,
}

impl<K> Default for Schedule<K> {
    fn default() -> Self {
        Self {
            order: BTreeSet::new(),
            due: BTreeMap::new(),
            counter: 0,
        }
    }
}

impl<K: Ord + Clone> Schedule<K> {
    /// Puts a key in, in place of where it was.
    pub(crate) fn insert(&mut self, key: K, due: UnixTime) {
        self.remove(&key);
        self.counter += 1;
        self.due.insert(key.clone(), (due, self.counter));
        self.order.insert((due, self.counter, key));
    }

    /// Puts a key in, or moves it forward; never back.
    pub(crate) fn expedite(&mut self, key: K, due: UnixTime) {
        if self.due.get(&key).is_none_or(|(already, _)| *already > due) {
            self.insert(key, due);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some((due, counter)) = self.due.remove(key) {
            self.order.remove(&(due, counter, key.clone()));
        }
    }

    /// Takes out the key that has been due for longest.
    pub(crate) fn pop_due(&mut self, now: UnixTime) -> Option<K> {
        let (_, _, key) = self.order.first().filter(|(due, _, _)| *due <= now)?;
        let key = key.clone();
        self.remove(&key);
        Some(key)
    }

    pub(crate) fn due(&self, key: &K) -> Option<UnixTime> {
        self.due.get(key).map(|(due, _)| *due)
    }

    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// When the next key is due.
    pub(crate) fn next_due(&self) -> Option<UnixTime> {
        self.order.first().map(|(due, _, _)| *due)
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
        assert_eq!(popped, ["b", "a", "moved"]);
        schedule.expedite("late", UnixTime(10));
        assert_eq!(schedule.next_due(), Some(UnixTime(9)), "never back");
        schedule.expedite("late", UnixTime(8));
        assert_eq!(schedule.pop_due(UnixTime(8)), Some("late"));
        assert_eq!(schedule.next_due(), None);
    }
}
