//! The limits that all connections of the process share: how much begins at once, and the memory of answers, while they
//! are read and for what is kept of them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use watchdog_runtime::failure::chain;

use super::transport::Budget;
use crate::domain::outcome::{ProbeFailure, quote};
use crate::metrics::{ANSWERS_REFUSED, RefusalReason};

/// As many lists of nodes and Machines begin at once. More of them only wait for each other, with buffers that are
/// full: 10,000 shoots lost at once had their verdicts 30 s after the crossing, with 2.4 GiB, and now 3 s and 1 GiB
/// (ADR 0008).
const NODE_LISTS_AT_ONCE: usize = 128;

/// A permit to begin is held for this long at most. A handshake takes milliseconds, and a list of nodes some 100 ms
/// while 128 share two cores. So 1,000 shoots begin within 4 s even if all of their servers stall.
pub const HELD_FOR: Duration = Duration::from_millis(250);

/// An answer grows to this size without a place: 130 leases, or 6 nodes.
pub const SMALL_ANSWER: usize = 64 * 1024;

/// And to this one with a place: 500 leases are 250 KB in Protobuf and 430 KB in JSON, 100 nodes are 1 MB.
pub const LARGEST_ANSWER: usize = 2 * 1024 * 1024;

/// An answer may hold a place for this long while others wait for one. The largest one takes 0.4 s over a way of 50 ms.
const PLACE_HELD_FOR: Duration = Duration::from_secs(1);

/// After that time it is checked this often if others may wait.
const PLACE_CHECKED_EVERY: Duration = Duration::from_millis(250);

/// A shoot keeps this many leases whatever the others keep. They take less than its connection does.
const FREE_LEASES: usize = 100;

/// The memory of a lease that is remembered: its name, its renewals, and its node while the shoot is suspicious.
const BYTES_PER_LEASE: usize = 512;

/// The most objects of a list. Kubernetes is made for 5,000 nodes.
const MOST_OBJECTS: usize = 10_000;

/// Beyond [`FREE_LEASES`], a shoot keeps at most one part in this many of what is free after that. So however many
/// shoots keep as much as they may, there is room for another one.
const FREE_TO_KEPT: usize = 8;

/// The limits that all connections of the process share.
#[derive(Debug)]
pub struct SharedLimits {
    /// Permits to begin to open a connection.
    pub connect: Semaphore,
    /// Permits to begin to list nodes and Machines.
    pub node_lists: Semaphore,
    // The places for answers of more than SMALL_ANSWER, first come, first served.
    free_places: Arc<Semaphore>,
    places: usize,
    // That may be kept beside the FREE_LEASES of each shoot.
    free_leases: Arc<Semaphore>,
}

/// The bytes of an answer. A large one has its place until it is dropped.
#[derive(Debug, Default)]
pub struct Answer {
    // Freed before its place is: fields are dropped in this order.
    bytes: Vec<u8>,
    place: Option<OwnedSemaphorePermit>,
}

/// The part that is kept of the lists of one shoot. Gives the memory back when it is dropped.
#[derive(Debug)]
pub struct KeptLists {
    free_leases: Arc<Semaphore>,
    // In leases.
    remembered: usize,
    counted: Option<OwnedSemaphorePermit>,
}

/// Does work that takes some computing and may hang. Gives the permit back when the work is done or has held it for
/// [`HELD_FOR`]: work that takes longer waits for its server and costs nothing, and must not keep others from servers
/// that answer. So permits bound how much *begins* in that time, not how much is under way: that is bounded by the
/// callers, one connection per shoot and endpoint, and by the time limit of the work itself.
pub(super) async fn begin<T>(permit: impl Send, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let done = timeout(HELD_FOR, &mut work).await;
    drop(permit);
    match done {
        Ok(done) => done,
        Err(_) => work.await,
    }
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
            connect: Semaphore::new(permits),
            node_lists: Semaphore::new(NODE_LISTS_AT_ONCE),
            free_places: Arc::new(Semaphore::new(places)),
            places,
            free_leases: Arc::new(Semaphore::new(2 * bytes / BYTES_PER_LEASE)),
        }
    }

    /// The bytes of the places for large answers that are taken.
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        (self.places - self.free_places.available_permits()) * LARGEST_ANSWER
    }

    /// Reads an answer of at most `most` bytes. When it has more than [`SMALL_ANSWER`], it waits for a place, which it
    /// gives up when others want it. So a large answer waits for at most [`PLACE_HELD_FOR`] and [`PLACE_CHECKED_EVERY`]
    /// for as many others that came before as there are places.
    ///
    /// # Errors
    /// [`ProbeFailure::AnswerTooLarge`], [`ProbeFailure::NoAnswerMemory`] if it gave its place up or its time is over
    /// while it waits for one, or [`ProbeFailure::Connect`] if it is cut off.
    pub async fn read<B>(&self, mut body: B, most: usize, budget: Budget) -> Result<Answer, ProbeFailure>
    where
        B: Body<Data = Bytes, Error: std::error::Error + 'static> + Unpin,
    {
        let no_memory = || ProbeFailure::NoAnswerMemory(self.places * LARGEST_ANSWER);
        let mut answer = Answer::default();
        let mut place_taken = Instant::now();
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = self.wanted(place_taken), if answer.place.is_some() => {
                    return Err(refused(RefusalReason::NoMemory, no_memory()));
                }
            };
            let Some(frame) = frame else {
                return Ok(answer);
            };
            let frame = frame.map_err(|e| {
                ProbeFailure::Connect(format!("the answer was cut off: {}", quote(&chain(&e))))
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let (needed, capacity) = (answer.bytes.len() + data.len(), answer.bytes.capacity());
            if needed > most {
                let failure = ProbeFailure::AnswerTooLarge(most);
                return Err(refused(RefusalReason::TooLarge, failure));
            }
            if needed > SMALL_ANSWER && answer.place.is_none() {
                let free = self.free_places.clone().acquire_owned();
                // Never closed.
                answer.place = budget.wait(free, |_| no_memory()).await?.ok();
                place_taken = Instant::now();
            }
            if needed > capacity {
                // By a half, so that a large answer is not copied for each of its parts.
                let grown = needed.max(capacity + capacity / 2).min(most);
                answer.bytes.reserve_exact(grown - answer.bytes.len());
            }
            answer.bytes.extend_from_slice(&data);
        }
    }

    /// Waits until a place that was taken then must be given up, because no other is free.
    async fn wanted(&self, taken: Instant) {
        sleep_until(taken + PLACE_HELD_FOR).await;
        while self.free_places.available_permits() > 0 {
            sleep(PLACE_CHECKED_EVERY).await;
        }
    }
}

// === impl Answer ===

impl Answer {
    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
}

// === impl KeptLists ===

impl KeptLists {
    /// Of a shoot of which nothing is known yet.
    #[must_use]
    pub fn new(limits: &SharedLimits) -> Self {
        Self {
            free_leases: limits.free_leases.clone(),
            remembered: 0,
            counted: None,
        }
    }

    /// Fails if what is remembered must be forgotten, because other shoots keep more now. What was decoded before does
    /// not count any more.
    ///
    /// # Errors
    /// [`ProbeFailure::TooManyLeases`]. After that nothing is kept.
    pub fn check(&mut self) -> Result<(), ProbeFailure> {
        self.count(self.remembered)
    }

    /// This many items were decoded from a list, and take this many bytes until all of it was read.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn decoded(&mut self, items: usize, bytes: usize) -> Result<(), ProbeFailure> {
        match items {
            0..=MOST_OBJECTS => self.count(self.remembered + bytes.div_ceil(BYTES_PER_LEASE)),
            _ => Err(too_many(MOST_OBJECTS)),
        }
    }

    /// This many leases or nodes are remembered from now on.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn remember(&mut self, leases: usize) -> Result<(), ProbeFailure> {
        self.remembered = leases;
        self.count(leases)
    }

    fn count(&mut self, leases: usize) -> Result<(), ProbeFailure> {
        self.counted = None;
        let most = self.free_leases.available_permits() / (FREE_TO_KEPT + 1);
        let counted = leases.saturating_sub(FREE_LEASES);
        let permits = u32::try_from(counted).ok().filter(|_| counted <= most);
        self.counted = permits.and_then(|n| self.free_leases.clone().try_acquire_many_owned(n).ok());
        if self.counted.is_none() {
            self.remembered = 0;
            return Err(too_many(most + FREE_LEASES));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use futures::{FutureExt as _, StreamExt as _, poll};
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use proptest::prelude::*;

    use super::*;

    const KIB: usize = 1024;

    fn limits(places: usize) -> Arc<SharedLimits> {
        Arc::new(SharedLimits::new(1, places * LARGEST_ANSWER))
    }

    fn budget() -> Budget {
        Budget::starting_now(Duration::from_secs(60))
    }

    /// Reads an answer of this many bytes.
    async fn read(limits: &SharedLimits, bytes: usize) -> Result<Answer, ProbeFailure> {
        limits
            .read(Full::from(vec![0; bytes]), LARGEST_ANSWER, budget())
            .await
    }

    /// Reads an answer of which 500 KiB come, and then nothing.
    async fn stall(limits: &SharedLimits) -> ProbeFailure {
        let begin = Ok::<_, Infallible>(Frame::data(vec![0; 500 * KIB].into()));
        let body = StreamBody::new(stream::iter([begin]).chain(stream::pending()));
        let read = limits.read(body, LARGEST_ANSWER, budget());
        read.await.unwrap_err()
    }

    #[tokio::test]
    async fn only_a_large_answer_takes_a_place_and_gives_it_back() {
        let limits = limits(2);
        let small = read(&limits, SMALL_ANSWER).await.unwrap();
        assert_eq!((small.as_slice().len(), limits.answer_bytes()), (SMALL_ANSWER, 0));
        let parts = [SMALL_ANSWER, 1, 1].map(|part| Ok::<_, Infallible>(Frame::data(vec![0; part].into())));
        let body = StreamBody::new(stream::iter(parts));
        let large = limits.read(body, LARGEST_ANSWER, budget()).await.unwrap();
        assert_eq!(large.as_slice().len(), SMALL_ANSWER + 2);
        assert_eq!(limits.answer_bytes(), LARGEST_ANSWER, "one place");
        let largest = read(&limits, LARGEST_ANSWER).await.unwrap();
        assert_eq!(limits.answer_bytes(), 2 * LARGEST_ANSWER);
        let small = read(&limits, SMALL_ANSWER).now_or_never();
        assert!(small.is_some(), "it does not wait");
        drop((large, largest));
        assert_eq!(limits.answer_bytes(), 0);
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_abandoned() {
        let limits = limits(1);
        for most in [SMALL_ANSWER, LARGEST_ANSWER] {
            let body = Full::from(vec![0; most + 1]);
            let failure = limits.read(body, most, budget()).await.unwrap_err();
            assert_eq!(failure, ProbeFailure::AnswerTooLarge(most));
        }
        assert_eq!(limits.answer_bytes(), 0);
    }

    /// Answers that trickle hold their places for a second while others wait. The last one waits in turns.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_holds_a_place_for_long_gives_it_up_when_others_wait() {
        let (limits, began) = (limits(2), Instant::now());
        let hostile = futures::future::join_all((0..8).map(|_| stall(&limits)));
        let honest = async {
            assert!(read(&limits, 500 * KIB).await.is_ok());
            began.elapsed()
        };
        let (given_up, waited) = tokio::join!(hostile, honest);
        let failure = ProbeFailure::NoAnswerMemory(2 * LARGEST_ANSWER);
        assert!(given_up.into_iter().all(|end| end == failure));
        assert!(waited <= 4 * (PLACE_HELD_FOR + PLACE_CHECKED_EVERY), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_slow_keeps_its_place_until_another_needs_it() {
        let limits = limits(2);
        let mut slow = pin!(stall(&limits));
        assert!(poll!(&mut slow).is_pending());
        sleep(10 * PLACE_HELD_FOR).await;
        assert!(poll!(&mut slow).is_pending(), "the other place is free");
        let _other = read(&limits, 500 * KIB).now_or_never().unwrap().unwrap();
        assert_eq!(slow.await, ProbeFailure::NoAnswerMemory(2 * LARGEST_ANSWER));
    }

    #[test]
    fn a_shoot_that_keeps_too_much_forgets_it() {
        let limits = limits(1);
        let all = limits.free_leases.available_permits();
        let kept = || all - limits.free_leases.available_permits();
        let [mut large, mut small] = [0; 2].map(|_| KeptLists::new(&limits));
        assert_eq!(large.remember(800), Ok(()));
        assert_eq!(large.decoded(400, 100 * BYTES_PER_LEASE), Ok(()));
        assert_eq!(kept(), 800);
        assert_eq!(large.decoded(10_001, 0), Err(ProbeFailure::TooManyLeases(10_000)));
        assert_eq!(large.remember(2_000), Err(ProbeFailure::TooManyLeases(1_010)));
        assert_eq!(kept(), 0, "nothing is kept after that");
        assert_eq!(small.remember(100), Ok(()));
        assert_eq!(kept(), 0, "this many are free");
        assert_eq!(large.remember(1_010), Ok(()));
        drop(large);
        assert_eq!(kept(), 0);
    }

    proptest! {
        /// Hostile shoots keep what they like, in any order. After each was checked once more, as before its next
        /// probe, another shoot may keep its part of what `shoots` that take all they can leave.
        #[test]
        fn hostile_shoots_leave_room_for_another(
            steps in prop::collection::vec((0_usize..50, 0_usize..10_000), 1..400),
        ) {
            let limits = limits(48);
            let all = limits.free_leases.available_permits();
            let mut shoots: Vec<_> = (0..50).map(|_| KeptLists::new(&limits)).collect();
            for (shoot, leases) in steps {
                let _ = shoots[shoot].remember(leases);
            }
            for shoot in &mut shoots {
                let _ = shoot.check();
            }
            let left = all * FREE_TO_KEPT / (shoots.len() + FREE_TO_KEPT);
            let leases = left / (FREE_TO_KEPT + 1);
            prop_assert!(leases > 5_000);
            prop_assert_eq!(KeptLists::new(&limits).remember(leases), Ok(()));
            drop(shoots);
            prop_assert_eq!(limits.free_leases.available_permits(), all);
        }
    }
}
