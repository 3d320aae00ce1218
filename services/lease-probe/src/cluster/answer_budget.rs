//! The memory that answers of API servers take: while they are read, and for what is kept of them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::start_limiter::StartLimiter;
use super::transport::{AnswerKind, Budget};
use crate::domain::outcome::ProbeFailure;
use crate::metrics::{ANSWERS_REFUSED, RefusalReason};

/// A handshake takes milliseconds with a server that answers.
pub const CONNECT_HELD_FOR: Duration = Duration::from_secs(1);

/// As many lists of nodes and Machines begin at once. More of them only wait for each other, with buffers that are
/// full: 10,000 shoots lost at once had their verdicts 30 s after the crossing, with 2.4 GiB, and now 3 s and 1 GiB
/// (ADR 0008).
const NODE_LISTS_AT_ONCE: usize = 128;

/// Such a list takes some 100 ms while this many share two cores. Those of 1,000 shoots whose servers take longer begin
/// within 2 s all the same.
const NODE_LIST_HELD_FOR: Duration = Duration::from_millis(250);

/// An answer grows to this size without a place: 130 leases, or 6 nodes.
pub(super) const SMALL_ANSWER: usize = 64 * 1024;

/// And to this one with a place: 500 leases are 250 KB in Protobuf and 430 KB in JSON, 100 nodes are 1 MB.
pub(super) const LARGEST_ANSWER: usize = 2 * 1024 * 1024;

/// An answer may hold a place for this long while others wait for one. The largest one takes 0.4 s over a way of 50 ms.
const PLACE_HELD_FOR: Duration = Duration::from_secs(1);

/// After that time it is checked this often if others may wait.
const PLACE_CHECKED_EVERY: Duration = Duration::from_millis(250);

/// A shoot keeps this much whatever the others keep: 100 leases. It is less than its connection takes.
const FREE_BYTES: usize = 100 * BYTES_PER_LEASE;

/// The memory of a lease that is remembered: its name, its renewals, and its node while the shoot is suspicious.
const BYTES_PER_LEASE: usize = 512;

/// The most objects of a list. Kubernetes is made for 5,000 nodes.
const MOST_OBJECTS: usize = 10_000;

/// Beyond [`FREE_BYTES`], a shoot keeps at most one part in this many of what is free after that. So however many
/// shoots keep as much as they may, there is room for another one.
const FREE_TO_KEPT: usize = 8;

/// The limits that all connections of the process share.
#[derive(Debug)]
pub struct SharedLimits {
    /// How many connections begin to open at once.
    pub connect: StartLimiter,
    /// How many lists of nodes and Machines begin at once.
    pub node_lists: StartLimiter,
    // The places for answers of more than SMALL_ANSWER, first come, first served.
    free_places: Arc<Semaphore>,
    places: usize,
    most_kept: usize,
    // By all shoots, beyond FREE_BYTES of each.
    kept: Mutex<usize>,
}

/// An answer that is being read, or whose bytes are used.
#[derive(Debug)]
pub struct AnswerBuffer {
    // Freed before its place is: fields are dropped in this order.
    text: Vec<u8>,
    // And when it must be given up if others wait.
    place: Option<(OwnedSemaphorePermit, Instant)>,
    limits: Arc<SharedLimits>,
    kind: AnswerKind,
}

/// The part that is kept of the lists of one shoot. Gives the memory back when it is dropped.
#[derive(Debug)]
pub struct KeptLists {
    limits: Arc<SharedLimits>,
    remembered: usize,
    // What it has of `SharedLimits::kept`.
    counted: usize,
}

fn refused(reason: RefusalReason, failure: ProbeFailure) -> ProbeFailure {
    ANSWERS_REFUSED.inc(reason);
    failure
}

fn too_many(most: usize) -> ProbeFailure {
    refused(RefusalReason::TooManyLeases, ProbeFailure::TooManyLeases(most))
}

// === impl SharedLimits ===

impl SharedLimits {
    /// With this many permits to connect, and bytes for large answers. Lists may keep twice as many bytes.
    #[must_use]
    pub fn new(permits: usize, bytes: usize) -> Self {
        let places = (bytes / LARGEST_ANSWER).max(1);
        Self {
            connect: StartLimiter::new(permits, CONNECT_HELD_FOR),
            node_lists: StartLimiter::new(NODE_LISTS_AT_ONCE, NODE_LIST_HELD_FOR),
            free_places: Arc::new(Semaphore::new(places)),
            places,
            most_kept: 2 * bytes,
            kept: Mutex::new(0),
        }
    }

    /// The bytes of the places for large answers that are taken.
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        (self.places - self.free_places.available_permits()) * LARGEST_ANSWER
    }

    const fn no_memory(&self) -> ProbeFailure {
        ProbeFailure::NoAnswerMemory(self.places * LARGEST_ANSWER)
    }
}

// === impl AnswerBuffer ===

impl AnswerBuffer {
    /// For an answer of this kind.
    #[must_use]
    pub const fn new(limits: Arc<SharedLimits>, kind: AnswerKind) -> Self {
        Self {
            text: Vec::new(),
            place: None,
            limits,
            kind,
        }
    }

    /// Waits for the next part of the answer, unless its place must be given up before. So others wait for a place for
    /// at most [`PLACE_HELD_FOR`] and [`PLACE_CHECKED_EVERY`] for as many answers that came before as there are places.
    ///
    /// # Errors
    /// [`ProbeFailure::NoAnswerMemory`].
    pub async fn next<T>(&self, part: impl Future<Output = T>) -> Result<T, ProbeFailure> {
        let Some((_, until)) = &self.place else {
            return Ok(part.await);
        };
        let (mut part, mut until) = (pin!(part), *until);
        loop {
            match timeout_at(until, &mut part).await {
                Ok(part) => return Ok(part),
                Err(_) if self.limits.free_places.available_permits() == 0 => {
                    return Err(refused(RefusalReason::NoMemory, self.limits.no_memory()));
                }
                Err(_) => until = Instant::now() + PLACE_CHECKED_EVERY,
            }
        }
    }

    /// Appends a part of the answer; waits for a place first if it needs one and has none.
    ///
    /// # Errors
    /// [`ProbeFailure::AnswerTooLarge`], or [`ProbeFailure::NoAnswerMemory`] if the time is over while it waits.
    pub async fn append(&mut self, part: &[u8], budget: Budget) -> Result<(), ProbeFailure> {
        let (needed, capacity) = (self.text.len() + part.len(), self.text.capacity());
        let limit = self.kind.limit();
        if needed > limit {
            let failure = ProbeFailure::AnswerTooLarge(limit);
            return Err(refused(RefusalReason::TooLarge, failure));
        }
        if needed > SMALL_ANSWER && self.place.is_none() {
            let free = self.limits.free_places.clone();
            let permit = budget.wait(free.acquire_owned(), |_| self.limits.no_memory());
            // Never closed.
            let permit = permit.await?.ok();
            self.place = permit.map(|permit| (permit, Instant::now() + PLACE_HELD_FOR));
        }
        if needed > capacity {
            // By a half, so that a large answer is not copied for each of its parts.
            let grown = needed.max(capacity + capacity / 2).min(limit);
            self.text.reserve_exact(grown - self.text.len());
        }
        self.text.extend_from_slice(part);
        Ok(())
    }

    /// The part that was read so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.text
    }
}

// === impl KeptLists ===

impl KeptLists {
    /// Of a shoot of which nothing is known yet.
    #[must_use]
    pub const fn new(limits: Arc<SharedLimits>) -> Self {
        Self {
            limits,
            remembered: 0,
            counted: 0,
        }
    }

    /// Fails if what is remembered must be forgotten, because other shoots keep more now.
    ///
    /// # Errors
    /// [`ProbeFailure::TooManyLeases`]. After that nothing is kept.
    pub fn check(&mut self) -> Result<(), ProbeFailure> {
        self.keep(self.remembered, 0)
    }

    /// This many items were decoded from a list, and take this many bytes until all of it was read.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn decoded(&mut self, items: usize, bytes: usize) -> Result<(), ProbeFailure> {
        match items {
            0..=MOST_OBJECTS => self.keep(self.remembered, bytes),
            _ => Err(too_many(MOST_OBJECTS)),
        }
    }

    /// This many leases or nodes are remembered from now on.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn remember(&mut self, leases: usize) -> Result<(), ProbeFailure> {
        self.keep(leases * BYTES_PER_LEASE, 0)
    }

    fn keep(&mut self, remembered: usize, decoded: usize) -> Result<(), ProbeFailure> {
        let counted = (remembered + decoded).saturating_sub(FREE_BYTES);
        if counted == 0 && self.counted == 0 {
            self.remembered = remembered;
            return Ok(());
        }
        let mut kept = self.limits.kept.lock();
        *kept -= std::mem::take(&mut self.counted);
        let free = self.limits.most_kept.saturating_sub(*kept + counted);
        if counted > free / FREE_TO_KEPT {
            self.remembered = 0;
            let most = (self.limits.most_kept - *kept) / (FREE_TO_KEPT + 1) + FREE_BYTES;
            return Err(too_many(most / BYTES_PER_LEASE));
        }
        *kept += counted;
        (self.remembered, self.counted) = (remembered, counted);
        Ok(())
    }
}

impl Drop for KeptLists {
    fn drop(&mut self) {
        *self.limits.kept.lock() -= self.counted;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::poll;
    use proptest::prelude::*;

    use super::*;

    const KIB: usize = 1024;

    fn limits(places: usize) -> Arc<SharedLimits> {
        Arc::new(SharedLimits::new(1, places * LARGEST_ANSWER))
    }

    fn budget() -> Budget {
        Budget::starting_now(Duration::from_secs(60))
    }

    /// An answer of this many bytes.
    async fn answer(limits: &Arc<SharedLimits>, bytes: usize) -> AnswerBuffer {
        let mut buffer = AnswerBuffer::new(limits.clone(), AnswerKind::Leases);
        buffer.append(&vec![0; bytes], budget()).await.unwrap();
        buffer
    }

    #[tokio::test]
    async fn only_a_large_answer_takes_a_place_and_gives_it_back() {
        let limits = limits(2);
        let mut grows = answer(&limits, SMALL_ANSWER).await;
        assert_eq!(limits.answer_bytes(), 0);
        for _ in 0..2 {
            grows.append(&[0], budget()).await.unwrap();
            assert_eq!(
                limits.answer_bytes(),
                LARGEST_ANSWER,
                "beyond this size, and once"
            );
        }
        let mut large = answer(&limits, LARGEST_ANSWER).await;
        assert_eq!(limits.answer_bytes(), 2 * LARGEST_ANSWER);
        let too_large = Err(ProbeFailure::AnswerTooLarge(LARGEST_ANSWER));
        assert_eq!(large.append(&[0], budget()).await, too_large);
        drop((grows, large));
        assert_eq!(limits.answer_bytes(), 0);
    }

    #[tokio::test]
    async fn a_version_is_small() {
        let mut buffer = AnswerBuffer::new(limits(1), AnswerKind::Small);
        buffer.append(&[0; 60 * KIB], budget()).await.unwrap();
        let too_large = Err(ProbeFailure::AnswerTooLarge(64 * KIB));
        assert_eq!(buffer.append(&[0; 5 * KIB], budget()).await, too_large);
    }

    /// Answers that trickle hold their places for a second while others wait. The last one waits in turns.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_holds_a_place_for_long_gives_it_up_when_others_wait() {
        let (limits, began) = (limits(2), Instant::now());
        let trickles = || async {
            let buffer = answer(&limits, 500 * KIB).await;
            buffer.next(pending::<()>()).await
        };
        let hostile = futures::future::join_all((0..8).map(|_| trickles()));
        let honest = async {
            let buffer = answer(&limits, 500 * KIB).await;
            assert_eq!(buffer.next(async { 1 }).await, Ok(1));
            began.elapsed()
        };
        let (given_up, waited) = tokio::join!(hostile, honest);
        let failure = ProbeFailure::NoAnswerMemory(2 * LARGEST_ANSWER);
        assert!(given_up.into_iter().all(|end| end == Err(failure.clone())));
        assert!(waited <= 4 * (PLACE_HELD_FOR + PLACE_CHECKED_EVERY), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_slow_keeps_its_place_until_another_needs_it() {
        let limits = limits(2);
        let slow = answer(&limits, 500 * KIB).await;
        let mut next = pin!(slow.next(pending::<()>()));
        assert!(poll!(&mut next).is_pending());
        tokio::time::sleep(10 * PLACE_HELD_FOR).await;
        assert!(poll!(&mut next).is_pending(), "the other place is free");
        let _other = answer(&limits, 500 * KIB).await;
        assert!(next.await.is_err());
    }

    #[test]
    fn a_shoot_that_keeps_too_much_forgets_it() {
        let limits = limits(1);
        let [mut large, mut small] = [0; 2].map(|_| KeptLists::new(limits.clone()));
        assert_eq!(large.remember(800), Ok(()));
        assert_eq!(large.decoded(400, 50 * KIB), Ok(()));
        assert_eq!(large.decoded(10_001, 0), Err(ProbeFailure::TooManyLeases(10_000)));
        assert_eq!(large.remember(2_000), Err(ProbeFailure::TooManyLeases(1_010)));
        assert_eq!(*limits.kept.lock(), 0, "nothing is kept after that");
        assert_eq!(small.remember(100), Ok(()));
        assert_eq!(*limits.kept.lock(), 0, "this many are free");
        assert_eq!(large.remember(1_010), Ok(()));
        drop(large);
        assert_eq!(*limits.kept.lock(), 0);
    }

    proptest! {
        /// Hostile shoots keep what they like, in any order. After each was checked once more, as before its next
        /// probe, another shoot may keep its part of what `shoots` that take all they can leave.
        #[test]
        fn hostile_shoots_leave_room_for_another(
            steps in prop::collection::vec((0_usize..50, 0_usize..10_000), 1..400),
        ) {
            let limits = limits(48);
            let mut shoots: Vec<_> = (0..50).map(|_| KeptLists::new(limits.clone())).collect();
            for (shoot, leases) in steps {
                let _ = shoots[shoot].remember(leases);
                prop_assert!(*limits.kept.lock() <= limits.most_kept);
            }
            for shoot in &mut shoots {
                let _ = shoot.check();
            }
            let left = limits.most_kept * FREE_TO_KEPT / (shoots.len() + FREE_TO_KEPT);
            let leases = (left / (FREE_TO_KEPT + 1)) / BYTES_PER_LEASE;
            prop_assert!(leases > 5_000);
            prop_assert_eq!(KeptLists::new(limits.clone()).remember(leases), Ok(()));
            for shoot in &mut shoots {
                let _ = shoot.remember(0);
            }
            prop_assert_eq!(*limits.kept.lock(), 0);
        }
    }
}
