//! The memory that answers of API servers may take together, as they are read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::start_limiter::StartLimiter;
use crate::domain::answer_ledger::{AnswerId, AnswerKind, AnswerLedger, GrowAnswer};
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

/// The limits that all connections of the process share.
#[derive(Debug)]
pub struct SharedLimits {
    /// How many connections begin to open at once.
    pub connect: StartLimiter,
    /// How many lists of nodes and Machines begin at once.
    pub node_lists: StartLimiter,
    /// The memory for answers.
    pub answers: AnswerBudget,
    // The memory for the leases of shoots that are remembered from one probe to the next.
    remembered: Mutex<AnswerLedger>,
}

impl SharedLimits {
    /// With this many permits to connect and bytes for answers.
    #[must_use]
    pub fn new(permits: usize, bytes: usize) -> Self {
        Self {
            connect: StartLimiter::new(permits, CONNECT_HELD_FOR),
            node_lists: StartLimiter::new(NODE_LISTS_AT_ONCE, NODE_LIST_HELD_FOR),
            answers: AnswerBudget::new(bytes),
            remembered: Mutex::new(AnswerLedger::new(2 * bytes)),
        }
    }
}

/// The memory for all answers.
#[derive(Debug)]
pub struct AnswerBudget {
    capacity: usize,
    state: Mutex<BudgetState>,
    freed: Notify,
}

#[derive(Debug)]
struct BudgetState {
    ledger: AnswerLedger,
    // By answer: cancelled when it must give way.
    open: BTreeMap<AnswerId, CancellationToken>,
}

/// Memory that was taken from the budget. Gives it back when it is dropped.
#[derive(Debug)]
pub struct MemoryShare {
    limits: Arc<SharedLimits>,
    id: AnswerId,
    gives_way: CancellationToken,
}

/// An answer that is being read, or whose bytes are used.
#[derive(Debug)]
pub struct AnswerBuffer {
    // Freed before others may take its bytes: fields are dropped in this order.
    text: Vec<u8>,
    pub(super) share: MemoryShare,
    kind: AnswerKind,
    expected: usize,
}

/// An answer takes at most this much beyond what has come, because it is expected to come.
const MOST_EXPECTED: usize = 64 * 1024;

/// The leases of a shoot that are remembered. Gives their memory back when it is dropped.
#[derive(Debug)]
pub struct RememberedLeases {
    limits: Arc<SharedLimits>,
    // None for a shoot that is small.
    share: Option<(AnswerId, usize)>,
}

/// A shoot may have this many leases whatever the others have: they take less than its connection.
const FREE_LEASES: usize = 100;

/// The memory of a further one: its name, its renewals, and its node while the shoot is suspicious.
const BYTES_PER_LEASE: usize = 512;

fn refused(reason: RefusalReason, failure: ProbeFailure) -> ProbeFailure {
    ANSWERS_REFUSED.inc(reason);
    failure
}

// === impl AnswerBudget ===

impl AnswerBudget {
    fn new(capacity: usize) -> Self {
        let state = BudgetState {
            ledger: AnswerLedger::new(capacity),
            open: BTreeMap::new(),
        };
        Self {
            capacity,
            state: Mutex::new(state),
            freed: Notify::new(),
        }
    }

    /// The most bytes that answers may hold together.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes that answers hold now.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.state.lock().ledger.used()
    }

    fn no_memory(&self) -> ProbeFailure {
        let failure = ProbeFailure::NoAnswerMemory(self.capacity);
        refused(RefusalReason::NoMemory, failure)
    }

    /// Waits while others give way, which takes as long as it takes to wake them.
    async fn take(&self, id: AnswerId, bytes: usize) -> Result<(), ProbeFailure> {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state.lock();
                match state.ledger.grow(id, bytes) {
                    GrowAnswer::Granted => return Ok(()),
                    GrowAnswer::Wait(asked) => {
                        let tokens = asked.iter().filter_map(|id| state.open.get(id));
                        tokens.for_each(CancellationToken::cancel);
                    }
                    GrowAnswer::Refused => return Err(self.no_memory()),
                }
            }
            freed.await;
        }
    }
}

// === impl MemoryShare ===

impl MemoryShare {
    /// Nothing is taken yet.
    #[must_use]
    pub fn open(limits: Arc<SharedLimits>, kind: AnswerKind) -> Self {
        let gives_way = CancellationToken::new();
        let id = {
            let mut state = limits.answers.state.lock();
            let id = state.ledger.open(kind);
            state.open.insert(id, gives_way.clone());
            id
        };
        Self {
            limits,
            id,
            gives_way,
        }
    }

    /// Takes this many more bytes.
    ///
    /// # Errors
    /// [`ProbeFailure::NoAnswerMemory`].
    pub async fn take(&self, bytes: usize) -> Result<(), ProbeFailure> {
        self.unless_it_gives_way(self.limits.answers.take(self.id, bytes))
            .await?
    }

    /// Gives back all but this many bytes.
    fn shrink(&self, bytes: usize) {
        let budget = &self.limits.answers;
        budget.state.lock().ledger.shrink(self.id, bytes);
        budget.freed.notify_waiters();
    }

    /// Waits for `next`, unless the share must be given back before.
    ///
    /// # Errors
    /// [`ProbeFailure::NoAnswerMemory`].
    pub async fn unless_it_gives_way<T>(&self, next: impl Future<Output = T>) -> Result<T, ProbeFailure> {
        tokio::select! {
            biased;
            // First, because it is ready most of the time. A share that must be given back gets no further bytes.
            next = next => Ok(next),
            () = self.gives_way.cancelled() => Err(self.limits.answers.no_memory()),
        }
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let budget = &self.limits.answers;
        {
            let mut state = budget.state.lock();
            state.ledger.close(self.id);
            state.open.remove(&self.id);
        }
        budget.freed.notify_waiters();
    }
}

// === impl AnswerBuffer ===

impl AnswerBuffer {
    /// For the answer to a request of this kind, which is likely to have this many bytes.
    #[must_use]
    pub fn open(limits: Arc<SharedLimits>, kind: AnswerKind, expected: usize) -> Self {
        Self {
            text: Vec::new(),
            share: MemoryShare::open(limits, kind),
            kind,
            expected: expected.min(MOST_EXPECTED),
        }
    }

    /// Appends a part of the answer.
    ///
    /// # Errors
    /// [`ProbeFailure::AnswerTooLarge`], [`ProbeFailure::NoAnswerMemory`].
    pub async fn append(&mut self, part: &[u8]) -> Result<(), ProbeFailure> {
        let (needed, capacity) = (self.text.len() + part.len(), self.text.capacity());
        let limit = self.kind.limit();
        if needed > limit {
            let failure = ProbeFailure::AnswerTooLarge(limit);
            return Err(refused(RefusalReason::TooLarge, failure));
        }
        if needed > capacity {
            // By a half, so that a large answer is not copied for each of its parts, and a small one never.
            let grown = needed.max(capacity + capacity / 2).max(self.expected).min(limit);
            self.share.take(grown - capacity).await?;
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

    /// Frees the answer; its share is for what was decoded from it, which takes this many bytes.
    ///
    /// # Errors
    /// [`ProbeFailure::NoAnswerMemory`].
    pub async fn into_share(self, bytes: usize) -> Result<MemoryShare, ProbeFailure> {
        let Self { text, share, .. } = self;
        let held = text.capacity();
        drop(text);
        if bytes > held {
            share.take(bytes - held).await?;
        } else {
            share.shrink(bytes);
        }
        Ok(share)
    }
}

// === impl RememberedLeases ===

impl RememberedLeases {
    /// Of a shoot of which nothing is known yet.
    #[must_use]
    pub const fn new(limits: Arc<SharedLimits>) -> Self {
        Self { limits, share: None }
    }

    /// Fails if the leases must be forgotten, because there are more than the share of a shoot and others need the
    /// memory. After that they count as forgotten.
    ///
    /// # Errors
    /// [`ProbeFailure::TooManyLeases`].
    pub fn check(&mut self) -> Result<(), ProbeFailure> {
        self.share.map_or(Ok(()), |(_, bytes)| self.resize(bytes))
    }

    /// The shoot has this many leases now.
    ///
    /// # Errors
    /// [`ProbeFailure::TooManyLeases`] as in [`check`](Self::check), [`ProbeFailure::NoAnswerMemory`] until the shoots
    /// with the most leases have forgotten theirs.
    pub fn set(&mut self, count: usize) -> Result<(), ProbeFailure> {
        self.resize(count.saturating_sub(FREE_LEASES) * BYTES_PER_LEASE)
    }

    fn resize(&mut self, wanted: usize) -> Result<(), ProbeFailure> {
        if wanted == 0 && self.share.is_none() {
            return Ok(());
        }
        let mut ledger = self.limits.remembered.lock();
        let (id, held) = self.share.unwrap_or_else(|| (ledger.open(AnswerKind::Leases), 0));
        self.share = Some((id, held));
        match ledger.grow(id, wanted.saturating_sub(held)) {
            GrowAnswer::Granted => {
                ledger.shrink(id, wanted);
                self.share = Some((id, wanted));
                Ok(())
            }
            GrowAnswer::Wait(_) => Err(self.limits.answers.no_memory()),
            GrowAnswer::Refused => {
                ledger.close(id);
                self.share = None;
                let failure = ProbeFailure::TooManyLeases(ledger.capacity());
                Err(refused(RefusalReason::TooManyLeases, failure))
            }
        }
    }
}

impl Drop for RememberedLeases {
    fn drop(&mut self) {
        if let Some((id, _)) = self.share {
            self.limits.remembered.lock().close(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    /// The shoot with the most leases forgets them, also if its server never answers again.
    #[test]
    fn the_most_leases_are_forgotten_first() {
        let limits = Arc::new(SharedLimits::new(1, 512 * KIB));
        let [mut most, mut fewer, mut small] = [0; 3].map(|_| RememberedLeases::new(limits.clone()));
        assert_eq!(most.set(FREE_LEASES + 1200), Ok(()));
        assert_eq!(fewer.set(FREE_LEASES + 800), Ok(()));
        assert_eq!(small.set(FREE_LEASES), Ok(()), "no memory is needed");
        let waits = Err(ProbeFailure::NoAnswerMemory(512 * KIB));
        assert_eq!(fewer.set(FREE_LEASES + 1000), waits, "others must forget first");
        assert_eq!(most.check(), Err(ProbeFailure::TooManyLeases(1024 * KIB)));
        assert_eq!(most.check(), Ok(()), "they are forgotten");
        assert_eq!(fewer.set(FREE_LEASES + 1000), Ok(()));
        assert_eq!(
            most.set(FREE_LEASES + 1200),
            Err(ProbeFailure::TooManyLeases(1024 * KIB))
        );
        drop(fewer);
        assert_eq!(most.set(FREE_LEASES + 1200), Ok(()));
    }

    #[tokio::test]
    async fn an_answer_gives_its_bytes_back() {
        let limits = Arc::new(SharedLimits::new(1, 512 * KIB));
        let mut buffer = AnswerBuffer::open(limits.clone(), AnswerKind::Small, 0);
        buffer.append(&[0; 60 * KIB]).await.unwrap();
        assert_eq!(limits.answers.in_use(), 60 * KIB);
        let too_large = buffer.append(&[0; 5 * KIB]).await;
        assert_eq!(too_large, Err(ProbeFailure::AnswerTooLarge(64 * KIB)));
        drop(buffer);
        assert_eq!(limits.answers.in_use(), 0);
    }

    /// An answer that trickles holds memory until somebody needs it.
    #[tokio::test]
    async fn the_largest_answer_gives_way_at_once() {
        let limits = Arc::new(SharedLimits::new(1, 512 * KIB));
        let mut large = AnswerBuffer::open(limits.clone(), AnswerKind::Leases, 0);
        large.append(&[0; 500 * KIB]).await.unwrap();
        let mut honest = AnswerBuffer::open(limits.clone(), AnswerKind::Leases, 0);
        let hangs = async {
            let given_up = large
                .share
                .unless_it_gives_way(std::future::pending::<()>())
                .await;
            drop(large);
            given_up
        };
        let (given_up, appended) = tokio::join!(hangs, honest.append(&[0; 20 * KIB]));
        assert_eq!(given_up, Err(ProbeFailure::NoAnswerMemory(512 * KIB)));
        assert_eq!(appended, Ok(()));
    }
}
