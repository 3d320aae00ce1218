//! Gives shoots turns to make requests, so that no shoot starves the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::inputs::OwnershipEpoch;
use crate::domain::Direction;
use crate::domain::flow::Action;

/// Scale-downs come first, because a meltdown waits for nobody. Every fourth turn is a scale-up's, so that a long row
/// of losses cannot keep a recovered shoot down.
const UP_EVERY: u32 = 4;

/// The requests that a shoot makes in its turn: those of one level that can go out together.
#[derive(Debug)]
pub(super) struct RequestBatch {
    pub(super) actions: Vec<Action>,
    pub(super) direction: Direction,
    /// The epoch in which the requests were decided on.
    pub(super) epoch: OwnershipEpoch,
    /// The reason for the direction.
    pub(super) reason: String,
}

/// Shoots that wait for their turn, each once and in the order in which they came. After its turn a shoot goes to the
/// end: a thousand shoots advance side by side.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    down: VecDeque<Arc<str>>,
    up: VecDeque<Arc<str>>,
    batches: HashMap<Arc<str>, RequestBatch>,
    taken: u32,
}

impl RequestQueue {
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Replaces the turn of a shoot. The shoot keeps its place if its direction is the same, and otherwise goes to the
    /// end.
    pub(super) fn push(&mut self, shoot: &Arc<str>, batch: RequestBatch) {
        let direction = batch.direction;
        let before = self.batches.insert(shoot.clone(), batch);
        match before.map(|before| before.direction) {
            Some(same) if same == direction => return,
            Some(other) => self.row(other).retain(|waiting| waiting != shoot),
            None => {}
        }
        self.row(direction).push_back(shoot.clone());
    }

    /// Takes the turn of a shoot away, if it has one.
    pub(super) fn remove(&mut self, shoot: &str) -> Option<RequestBatch> {
        let batch = self.batches.remove(shoot)?;
        self.row(batch.direction).retain(|waiting| **waiting != *shoot);
        Some(batch)
    }

    /// Takes the next turn.
    pub(super) fn pop(&mut self) -> Option<(Arc<str>, RequestBatch)> {
        self.taken = self.taken.wrapping_add(1);
        let (first, second) = if self.taken.is_multiple_of(UP_EVERY) {
            (&mut self.up, &mut self.down)
        } else {
            (&mut self.down, &mut self.up)
        };
        let shoot = first.pop_front().or_else(|| second.pop_front())?;
        let batch = self.batches.remove(&shoot)?;
        Some((shoot, batch))
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
    use crate::domain::Direction::{Down as DOWN, Up as UP};

    fn batch(direction: Direction, reason: &str) -> RequestBatch {
        RequestBatch {
            actions: Vec::new(),
            direction,
            epoch: OwnershipEpoch::default(),
            reason: reason.to_owned(),
        }
    }

    fn queue(turns: &[(&str, Direction)]) -> RequestQueue {
        let mut queue = RequestQueue::default();
        for (shoot, direction) in turns {
            queue.push(&(*shoot).into(), batch(*direction, "old"));
        }
        queue
    }

    fn drain(queue: &mut RequestQueue) -> Vec<String> {
        std::iter::from_fn(|| queue.pop())
            .map(|(shoot, _)| shoot.to_string())
            .collect()
    }

    #[test]
    fn shoots_take_turns_and_wait_once() {
        let mut queue = queue(&[("a", DOWN), ("b", DOWN), ("a", DOWN), ("c", DOWN)]);
        assert_eq!(queue.len(), 3);
        let (first, batch) = queue.pop().unwrap();
        queue.push(&first, batch);
        queue.remove("c");
        assert_eq!(drain(&mut queue), ["b", "a"]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_shoot_that_waits_keeps_its_place_and_makes_its_newest_requests() {
        let mut queue = queue(&[("a", DOWN), ("b", DOWN)]);
        queue.push(&"a".into(), batch(DOWN, "new"));
        let (first, batch) = queue.pop().unwrap();
        assert_eq!((&*first, &*batch.reason), ("a", "new"));
    }

    #[test]
    fn losses_come_first_but_recoveries_are_not_starved() {
        let (ups, downs) = (["u1", "u2"], ["d1", "d2", "d3", "d4", "d5"]);
        let ups = ups.map(|shoot| (shoot, UP)).into_iter();
        let turns: Vec<_> = ups.chain(downs.map(|shoot| (shoot, DOWN))).collect();
        assert_eq!(
            drain(&mut queue(&turns)),
            ["d1", "d2", "d3", "u1", "d4", "d5", "u2"]
        );
    }

    #[test]
    fn a_shoot_whose_direction_changed_waits_in_its_new_row() {
        let mut queue = queue(&[("a", UP), ("a", DOWN)]);
        assert_eq!(queue.len(), 1);
        assert_eq!(drain(&mut queue), ["a"]);
    }
}
