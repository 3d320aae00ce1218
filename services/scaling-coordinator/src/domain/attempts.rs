//! The tries on one resource: how often, since when, and when the next one may begin.
//!
//! A shoot's [`FlowHints`] hold these, and what was reported. They may be lost at any time, by a crash or a change of
//! the leader: then a delay or a round of tries begins anew. Neither the order of the levels nor what is written rests
//! on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::duration::doubled;
use watchdog_api::prober::ResourceRef;

use super::Direction;
use super::request::{Request, RequestOutcome};
use super::status::ResourceState;

/// Tries after which a level has failed; the same as in gardener/dependency-watchdog.
pub(super) const MAX_TRIES: u32 = 3;

/// Pause after the first failed try; the second is twice as long. Short, because kube-controller-manager acts
/// 7 s after the verdict, with its default grace period of 40 s.
const TRY_PAUSE: Duration = Duration::from_millis(500);

/// Pause after a failed level; it doubles from one failure to the next, up to [`LONGEST_PAUSE`]. It spares an API
/// server that has refused three times, and the first repetition may still prevent the meltdown.
const FAILED_PAUSE: Duration = Duration::from_secs(5);

/// See [`FAILED_PAUSE`]. A thousand shoots that fail for one reason then make at most 50 requests a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Longest pause that a server may ask for: a longer one would outlast the incident.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// An awaited resource that did not change for this time is read, because its watch may be half open. The pause doubles
/// from one such read to the next, up to [`LONGEST_READ_PAUSE`]. On the way down the next level is in a hurry: see
/// [`TRY_PAUSE`]. On the way up most pods are not ready within two seconds, and a read would tell nothing.
pub(super) const fn read_pause(direction: Direction) -> Duration {
    match direction {
        Direction::Down => Duration::from_secs(2),
        Direction::Up | Direction::Release => Duration::from_secs(5),
    }
}

/// Longest time of a read of an awaited resource, and of the first ones the pause before them. While it is under way,
/// the watch may deliver the same state; but where no watch does, no shorter read of a slow API server would.
const WAITING_READ: Duration = Duration::from_secs(5);

/// See [`read_pause`]. A thousand shoots that never become ready then make 33 requests a second.
const LONGEST_READ_PAUSE: Duration = Duration::from_secs(30);

/// Pause after a second conflict in a row, times the number of conflicts; after the first one there is none.
const CONFLICT_PAUSE: Duration = Duration::from_millis(100);

/// More conflicts in a row count as a failed try, because another client keeps writing.
const MAX_CONFLICTS: u32 = 5;

/// The writes that a flow needs of a resource: one that scales it, and one before that records its replicas, or after
/// that removes what was recorded.
const NEEDED_WRITES: u32 = 2;

/// Pause after each write beyond [`NEEDED_WRITES`], because the one before it was reversed. That is no failed try:
/// another client that scales kube-controller-manager up again and again must not make it run for longer than this.
const REPETITION_PAUSE: Duration = Duration::from_secs(1);

/// Why writes that were applied must be repeated.
const REVERSED: &str = "another client or an admission webhook keeps changing it back; metadata.managedFields names \
                        that client";

/// The times that one shoot's reconciliations pass on to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FlowHints {
    /// The last direction other than hold, to which the fields below belong. Holding forgets nothing, because probes
    /// that fail now and then must not start an initial delay anew.
    pub(super) direction: Option<Direction>,
    /// When something was first to be written in a level.
    pub(super) started: BTreeMap<i32, Instant>,
    pub(super) attempts: BTreeMap<ResourceRef, Attempts>,
    /// The resources whose failure or absence was reported and lasts.
    pub(super) reported: BTreeSet<ResourceRef>,
}

/// The tries on one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Attempts {
    /// When the current try began.
    pub(super) since: Option<Instant>,
    /// Why the last try failed.
    pub(super) error: String,
    tries: u32,
    rounds: u32,
    conflicts: u32,
    /// Writes in this direction that were applied, at most one more than a flow needs.
    applied: u32,
    not_before: Option<Instant>,
    wait: Option<Wait>,
    /// True if the tries began as reads of a resource that was never seen.
    unobserved: bool,
}

/// A wait for a newer state of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Wait {
    version: Arc<str>,
    read_at: Instant,
    pause: Duration,
}

// === impl FlowHints ===

impl FlowHints {
    /// Returns true if this direction begins a flow that rests on no read of an earlier one: the first of this leader,
    /// and each loss. Of a resource that is not listed, nothing shows what became of it since.
    #[must_use]
    pub fn begins(&self, direction: Option<Direction>) -> bool {
        direction.is_some()
            && direction != self.direction
            && (direction == Some(Direction::Down) || self.direction.is_none())
    }

    /// Notes the start of a request. Its timeout bounds the request and the wait for its effect. Returns how long the
    /// request may take.
    pub fn begin(&mut self, now: Instant, request: &Request) -> Duration {
        let attempts = self.attempts.entry(request.reference.clone()).or_default();
        let since = *attempts.since.get_or_insert(now);
        let left = (since + request.timeout).saturating_duration_since(now);
        match &attempts.wait {
            Some(wait) => left.min(wait.pause).min(WAITING_READ),
            None => left,
        }
    }

    /// Notes the outcome of a request. That of a write in an earlier direction does not count any more.
    pub fn end(&mut self, now: Instant, request: &Request, outcome: &RequestOutcome) {
        let is_write = request.write.is_some();
        if is_write && self.direction != Some(request.direction) {
            return;
        }
        let attempts = self.attempts.entry(request.reference.clone()).or_default();
        if is_write {
            attempts.end_write(now, outcome);
        } else {
            attempts.end_read(now, outcome);
        }
    }

    /// Nothing is left to do: delays and tries are over.
    pub(super) fn settle(&mut self) {
        self.started.clear();
        self.attempts.values_mut().for_each(Attempts::settle);
        self.attempts.retain(|_, attempts| attempts.applied > 0);
    }

    /// Nothing is left to do with a resource.
    pub(super) fn settle_one(&mut self, reference: &ResourceRef) {
        if let Some(attempts) = self.attempts.get_mut(reference) {
            attempts.settle();
        }
    }

    /// Begins with nothing in a new direction.
    pub(super) fn turn(&mut self, direction: Option<Direction>) {
        match direction {
            Some(_) if direction == self.direction => {}
            Some(_) => {
                *self = Self {
                    direction,
                    ..Self::default()
                };
            }
            // No try times out while nothing is done.
            None => self
                .attempts
                .values_mut()
                .for_each(|attempts| attempts.since = None),
        }
    }
}

// === impl Attempts ===

impl Attempts {
    /// Tries made, including the current one.
    pub(super) fn count(&self) -> u32 {
        self.tries.saturating_add(u32::from(self.since.is_some()))
    }

    /// When to read the awaited resource, unless a newer version than this one is observed before.
    pub(super) fn read_at(&mut self, now: Instant, version: &Arc<str>, pause: Duration) -> Instant {
        match &self.wait {
            Some(wait) if wait.version == *version => wait.read_at,
            _ => {
                let (version, read_at) = (version.clone(), now + pause);
                self.wait = Some(Wait {
                    version,
                    read_at,
                    pause,
                });
                read_at
            }
        }
    }

    /// The resource is not waited for any more. If it `is_ready`, its wait has not failed, even if it had timed out:
    /// the write that follows begins a new round of tries. A pause for another reason is over before a wait begins, so
    /// none is cut short here.
    pub(super) fn end_wait(&mut self, is_ready: bool) {
        if self.wait.take().is_some() && is_ready {
            self.not_before = None;
            self.tries = 0;
        }
    }

    /// The resource is done, and read once more for the next level: its own wait and timeout do not bound that read.
    pub(super) fn begin_reread(&mut self) {
        self.end_wait(true);
        self.since = None;
    }

    /// Reads of a resource that was never seen may have failed. Once it is seen, by its watch perhaps, nothing waits
    /// for the pauses that follow such failures.
    pub(super) fn note_observed(&mut self, is_observed: bool) {
        if self.unobserved && is_observed {
            *self = Self::default();
        }
        self.unobserved |= !is_observed && self.tries == 0;
    }

    /// The state and the end of the current pause, if there is one. A new round of tries begins after the pause that
    /// follows a failed level.
    pub(super) fn paused(&mut self, now: Instant) -> Option<(ResourceState, Instant)> {
        let until = self.not_before?;
        if now < until {
            let state = if self.is_exhausted() {
                ResourceState::Failed
            } else {
                ResourceState::BackingOff
            };
            return Some((state, until));
        }
        self.not_before = None;
        if self.is_exhausted() {
            self.tries = 0;
        }
        None
    }

    /// Why all tries have failed, until a new round of tries begins.
    pub(super) fn failure(&self) -> Option<&str> {
        self.is_exhausted().then_some(&*self.error)
    }

    /// Returns true if the level has failed, until a new round of tries begins.
    const fn is_exhausted(&self) -> bool {
        self.tries >= MAX_TRIES
    }

    /// The tries are over. What was applied counts on: another client may change it back as soon as it is done.
    fn settle(&mut self) {
        let why = self.reversal();
        *self = Self {
            applied: self.applied,
            error: why.unwrap_or_default().to_owned(),
            not_before: why.and(self.not_before),
            ..Self::default()
        };
    }

    /// Why more was written than a flow needs, if it was.
    pub(super) fn reversal(&self) -> Option<&'static str> {
        (self.applied > NEEDED_WRITES).then_some(REVERSED)
    }

    /// Records a failed try.
    pub(super) fn fail(&mut self, now: Instant, why: String, retry_after: Option<Duration>) {
        self.since = None;
        self.tries = self.tries.saturating_add(1);
        let pause = if self.is_exhausted() {
            let pause = doubled(FAILED_PAUSE, self.rounds, LONGEST_PAUSE);
            self.rounds = self.rounds.saturating_add(1);
            pause
        } else {
            doubled(TRY_PAUSE, self.tries - 1, LONGEST_PAUSE)
        };
        self.error = why;
        let asked = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
        self.not_before = Some(now + pause.max(asked));
    }

    fn end_read(&mut self, now: Instant, outcome: &RequestOutcome) {
        if let Some(wait) = &mut self.wait {
            // A failed read is no failure of the resource, so the wait goes on. The caller logs why it failed.
            wait.pause = doubled(wait.pause, 1, LONGEST_READ_PAUSE);
            wait.read_at = now + wait.pause;
            self.error = outcome.error().unwrap_or_default().to_owned();
            return;
        }
        if let RequestOutcome::Unknown { why, retry_after } | RequestOutcome::Refused { why, retry_after } =
            outcome
        {
            self.fail(now, why.clone(), *retry_after);
        }
    }

    fn end_write(&mut self, now: Instant, outcome: &RequestOutcome) {
        match outcome {
            RequestOutcome::Cancelled { .. } | RequestOutcome::KeptBack => {}
            RequestOutcome::Done => {
                self.conflicts = 0;
                self.error.clear();
                self.applied = (self.applied + 1).min(NEEDED_WRITES + 1);
                if let Some(why) = self.reversal() {
                    why.clone_into(&mut self.error);
                    self.not_before = Some(now + REPETITION_PAUSE);
                }
            }
            RequestOutcome::Conflict if self.conflicts >= MAX_CONFLICTS => {
                self.conflicts = 0;
                let why = "another client keeps changing it (409); metadata.managedFields names that client";
                self.fail(now, why.to_owned(), None);
            }
            RequestOutcome::Conflict => {
                // After the first conflict there is no pause, because the resource was read since.
                if self.conflicts > 0 {
                    self.not_before = Some(now + CONFLICT_PAUSE * self.conflicts);
                }
                self.conflicts += 1;
            }
            RequestOutcome::Unknown { why, retry_after } | RequestOutcome::Refused { why, retry_after } => {
                self.fail(now, why.clone(), *retry_after);
            }
        }
    }
}
