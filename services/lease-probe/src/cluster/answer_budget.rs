//! The memory that answers of API servers may take together, as they are read.

use std::collections::HashMap;
use std::sync::Arc;

use metrics::Gauge;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::connect_limiter::ConnectLimiter;
use crate::domain::answer_ledger::{AnswerId, AnswerKind, AnswerLedger, Growth};
use crate::domain::outcome::ProbeFailure;
use crate::metrics::{ANSWER_BYTES, ANSWERS_REFUSED};

/// The limits that all connections of the process share.
#[derive(Debug)]
pub struct SharedLimits {
    /// How many connections begin to open at once.
    pub connect: ConnectLimiter,
    /// The memory for answers.
    pub answers: AnswerBudget,
}

impl SharedLimits {
    /// With this many permits to connect and bytes for answers.
    #[must_use]
    pub fn new(permits: usize, bytes: usize) -> Self {
        Self {
            connect: ConnectLimiter::new(permits),
            answers: AnswerBudget::new(bytes),
        }
    }
}

/// The memory for all answers.
#[derive(Debug)]
pub struct AnswerBudget {
    capacity: usize,
    state: Mutex<BudgetState>,
    freed: Notify,
    in_use: Gauge,
}

#[derive(Debug)]
struct BudgetState {
    ledger: AnswerLedger,
    // By answer: cancelled when it must give way.
    open: HashMap<AnswerId, CancellationToken>,
}

/// An answer that is being read, or whose bytes are used. Gives them back when it is dropped.
#[derive(Debug)]
pub struct AnswerBuffer {
    limits: Arc<SharedLimits>,
    kind: AnswerKind,
    id: AnswerId,
    gives_way: CancellationToken,
    text: Vec<u8>,
}

/// A buffer grows by at most this much beyond what it needs.
const STEP: usize = 256 * 1024;

// === impl AnswerBudget ===

impl AnswerBudget {
    fn new(capacity: usize) -> Self {
        let state = BudgetState {
            ledger: AnswerLedger::new(capacity),
            open: HashMap::new(),
        };
        Self {
            capacity,
            state: Mutex::new(state),
            freed: Notify::new(),
            in_use: ANSWER_BYTES.gauge_handle(&[]),
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

    fn refused(&self, reason: &'static str, failure: ProbeFailure) -> ProbeFailure {
        ANSWERS_REFUSED.inc(&[("reason", reason.to_owned())]);
        failure
    }

    fn no_memory(&self) -> ProbeFailure {
        self.refused("no_memory", ProbeFailure::NoAnswerMemory(self.capacity))
    }

    /// Takes bytes for an answer. Waits while others give way, which takes as long as it takes to wake them.
    async fn take(&self, id: AnswerId, bytes: usize) -> Result<(), ProbeFailure> {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state.lock();
                match state.ledger.grow(id, bytes) {
                    Growth::Granted => {
                        self.in_use.set(state.ledger.used() as f64);
                        return Ok(());
                    }
                    Growth::Wait(asked) => {
                        let tokens = asked.iter().filter_map(|id| state.open.get(id));
                        tokens.for_each(CancellationToken::cancel);
                    }
                    Growth::Refused => return Err(self.no_memory()),
                }
            }
            freed.await;
        }
    }
}

// === impl AnswerBuffer ===

impl AnswerBuffer {
    /// For the answer to a request of this kind.
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
            kind,
            id,
            gives_way,
            text: Vec::new(),
        }
    }

    /// Waits for `next`, unless the buffer must give way before.
    ///
    /// # Errors
    /// [`ProbeFailure::NoAnswerMemory`].
    pub async fn unless_it_gives_way<T>(&self, next: impl Future<Output = T>) -> Result<T, ProbeFailure> {
        tokio::select! {
            biased;
            () = self.gives_way.cancelled() => Err(self.limits.answers.no_memory()),
            next = next => Ok(next),
        }
    }

    /// Appends a part of the answer.
    ///
    /// # Errors
    /// [`ProbeFailure::AnswerTooLarge`], [`ProbeFailure::NoAnswerMemory`].
    pub async fn append(&mut self, part: &[u8]) -> Result<(), ProbeFailure> {
        let (needed, capacity) = (self.text.len() + part.len(), self.text.capacity());
        let (limit, budget) = (self.kind.limit(), &self.limits.answers);
        if needed > limit {
            return Err(budget.refused("too_large", ProbeFailure::AnswerTooLarge(limit)));
        }
        if needed > capacity {
            let grown = needed.max(capacity + capacity.min(STEP)).min(limit);
            tokio::select! {
                biased;
                () = self.gives_way.cancelled() => return Err(budget.no_memory()),
                taken = budget.take(self.id, grown - capacity) => taken?,
            }
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

impl Drop for AnswerBuffer {
    fn drop(&mut self) {
        // Before others may take the bytes.
        drop(std::mem::take(&mut self.text));
        let budget = &self.limits.answers;
        {
            let mut state = budget.state.lock();
            state.ledger.close(self.id);
            state.open.remove(&self.id);
            budget.in_use.set(state.ledger.used() as f64);
        }
        budget.freed.notify_waiters();
    }
}
