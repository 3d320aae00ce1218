//! Gives shoots turns to make requests, so that no shoot starves the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::domain::Direction;

/// Scale-downs come first, because a meltdown waits for nobody; but every so many turns a scale-up gets one, so that
/// a long row of losses cannot keep a recovered shoot down.
const UP_EVERY: u32 = 4;

/// Shoots that wait for a request, each once and in the order in which they came. A shoot makes in its turn the
/// requests of one level that can go out together and then goes to the end: a thousand shoots advance side by side.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    down: VecDeque<Arc<str>>,
    up: VecDeque<Arc<str>>,
    queued: HashMap<Arc<str>, Direction>,
    turns: u32,
}

impl RequestQueue {
    /// Number of shoots that wait.
    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }

    /// Puts a shoot at the end. One that waits already keeps its place, unless its direction has turned.
    pub(super) fn push(&mut self, shoot: &Arc<str>, direction: Direction) {
        if self.queued.get(shoot) == Some(&direction) {
            return;
        }
        self.remove(shoot);
        self.queued.insert(shoot.clone(), direction);
        self.row(direction).push_back(shoot.clone());
    }

    /// Takes a shoot out.
    pub(super) fn remove(&mut self, shoot: &str) {
        if let Some(direction) = self.queued.remove(shoot) {
            self.row(direction).retain(|waiting| **waiting != *shoot);
        }
    }

    /// Whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Arc<str>> {
        self.turns = self.turns.wrapping_add(1);
        let first = if self.turns.is_multiple_of(UP_EVERY) {
            Direction::Up
        } else {
            Direction::Down
        };
        let second = if first == Direction::Up {
            Direction::Down
        } else {
            Direction::Up
        };
        let shoot = match self.row(first).pop_front() {
            Some(shoot) => shoot,
            None => self.row(second).pop_front()?,
        };
        self.queued.remove(&shoot);
        Some(shoot)
    }

    const fn row(&mut self, direction: Direction) -> &mut VecDeque<Arc<str>> {
        match direction {
            Direction::Down => &mut self.down,
            Direction::Up | Direction::Release => &mut self.up,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: Direction = Direction::Down;
    const UP: Direction = Direction::Up;

    fn drain(queue: &mut RequestQueue) -> Vec<String> {
        std::iter::from_fn(|| queue.pop())
            .map(|shoot| shoot.to_string())
            .collect()
    }

    #[test]
    fn shoots_take_turns_and_wait_once() {
        let mut queue = RequestQueue::default();
        for shoot in ["a", "b", "a", "c"] {
            queue.push(&shoot.into(), DOWN);
        }
        assert_eq!(queue.len(), 3);
        let first = queue.pop().unwrap();
        queue.push(&first, DOWN);
        queue.remove("c");
        assert_eq!(drain(&mut queue), ["b", "a"]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn losses_come_first_but_recoveries_are_not_starved() {
        let mut queue = RequestQueue::default();
        for shoot in ["u1", "u2"] {
            queue.push(&shoot.into(), UP);
        }
        for shoot in ["d1", "d2", "d3", "d4", "d5"] {
            queue.push(&shoot.into(), DOWN);
        }
        assert_eq!(drain(&mut queue), ["d1", "d2", "d3", "u1", "d4", "d5", "u2"]);
    }

    #[test]
    fn a_shoot_that_turned_round_waits_in_its_new_row() {
        let mut queue = RequestQueue::default();
        queue.push(&"a".into(), UP);
        queue.push(&"a".into(), DOWN);
        assert_eq!(queue.len(), 1);
        assert_eq!(drain(&mut queue), ["a"]);
    }
}
