//! Who may make the next request: a rate for the seed's sake, and turns for the shoots' sake.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::Direction;

/// Scale-downs come first, because a meltdown waits for nobody; but every so many turns a scale-up gets one, so that
/// a long row of losses cannot keep a recovered shoot down.
const UP_EVERY: u32 = 4;

/// Shoots that wait for a request, each once and in the order in which they came. A shoot makes in its turn the
/// requests of one level that can go out together and then goes to the end: a thousand shoots advance side by side.
#[derive(Debug, Default)]
pub(super) struct Queue {
    down: VecDeque<Arc<str>>,
    up: VecDeque<Arc<str>>,
    queued: HashMap<Arc<str>, Direction>,
    turns: u32,
}

impl Queue {
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

/// A token bucket: so many requests a second, and a tenth of that at once.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    /// A full bucket; `rate` is in requests a second, at least 1.
    pub(super) fn new(rate: u32, now: Instant) -> Self {
        let rate = f64::from(rate.max(1));
        let burst = (rate / 10.0).max(1.0);
        Self {
            rate,
            burst,
            tokens: burst,
            filled: now,
        }
    }

    /// Whether a request may be made now.
    ///
    /// # Errors
    /// When it may not: the instant from which it may.
    pub(super) fn look(&mut self, now: Instant) -> Result<(), Instant> {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = passed.mul_add(self.rate, self.tokens).min(self.burst);
        self.filled = now;
        if self.tokens >= 1.0 {
            return Ok(());
        }
        // A timer fires a millisecond late rather than early; a little more is waited so that the token is there.
        let wait = (1.0 - self.tokens) / self.rate + 1e-6;
        Err(now + Duration::from_secs_f64(wait))
    }

    /// So many requests are made. What is missing for the last of them is waited for before the next.
    pub(super) fn take(&mut self, requests: u32) {
        self.tokens -= f64::from(requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: Direction = Direction::Down;
    const UP: Direction = Direction::Up;

    fn drain(queue: &mut Queue) -> Vec<String> {
        std::iter::from_fn(|| queue.pop())
            .map(|shoot| shoot.to_string())
            .collect()
    }

    #[test]
    fn shoots_take_turns_and_wait_once() {
        let mut queue = Queue::default();
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
        let mut queue = Queue::default();
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
        let mut queue = Queue::default();
        queue.push(&"a".into(), UP);
        queue.push(&"a".into(), DOWN);
        assert_eq!(queue.len(), 1);
        assert_eq!(drain(&mut queue), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_kept() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100, start);
        let (mut now, mut made) = (start, 0);
        while now < start + Duration::from_secs(10) {
            match bucket.look(now) {
                Ok(()) => {
                    let requests = 1 + made % 2;
                    bucket.take(requests);
                    made += requests;
                }
                Err(at) => now = at,
            }
        }
        assert!((1_000..=1_012).contains(&made), "{made} requests in 10 s");
    }
}
