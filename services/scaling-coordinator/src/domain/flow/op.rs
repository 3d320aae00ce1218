//! The operation on one resource: its tries, its back-off, the request in flight, and the write that is not confirmed
//! yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::duration::doubled;
use watchdog_api::prober::ResourceRef;

use crate::domain::Direction;
use crate::domain::next_step::{NextStep, ResourceWrite};
use crate::domain::status::{Step, WriteResult};

/// Tries after which a level has failed; the same as in gardener/dependency-watchdog.
pub(super) const MAX_TRIES: u32 = 3;

/// Pause after the first failed try; the second is twice as long. Short, because kube-controller-manager acts
/// 8 s after the verdict, with its default grace period of 40 s.
const TRY_PAUSE: Duration = Duration::from_millis(500);

/// Pause after a failed level; it doubles from one failure to the next, up to [`LONGEST_PAUSE`]. It spares an API
/// server that has refused three times, and the first repetition may still prevent the meltdown.
const FAILED_PAUSE: Duration = Duration::from_secs(5);

/// See [`FAILED_PAUSE`]. A thousand shoots that fail for one reason then make at most 50 requests a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Longest pause that a server may ask for: a longer one would outlast the incident.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The watch delivers an applied write within milliseconds. If it has not after this time, the object is read.
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);

/// An awaited resource that did not change for this time is read, because its watch may be half open. The pause doubles
/// from one such read to the next, up to [`LONGEST_READ_PAUSE`].
const READ_PAUSE: Duration = Duration::from_secs(2);

/// See [`READ_PAUSE`]. A thousand shoots that never become ready then make 33 requests a second.
const LONGEST_READ_PAUSE: Duration = Duration::from_secs(30);

/// After a conflict the watch delivers the other client's write. If it has not after this pause, the object is read.
/// The pause grows with every conflict in a row.
const CONFLICT_PAUSE: Duration = Duration::from_millis(100);

/// More conflicts in a row count as a failed try, because another client keeps writing.
const MAX_CONFLICTS: u32 = 5;

/// A request to make.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Action {
    /// On which resource.
    pub reference: ResourceRef,
    /// In which direction.
    pub direction: Direction,
    /// The version of the resource that the decision rests on: the precondition of a write.
    pub against: Arc<str>,
    /// The kind of request.
    pub kind: ActionKind,
    /// The duration of one try on the resource.
    pub timeout: Duration,
}

/// The kind of a request on a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// Changes the resource.
    Write(ResourceWrite),
    /// Read the resource, and its scale sub-resource if the resource itself does not show its replicas.
    Read,
}

impl ActionKind {
    /// Returns true if the Cluster must be confirmed right before the request, because that changes a replica count or
    /// leads to such a change (S4).
    #[must_use]
    pub const fn needs_cluster(&self) -> bool {
        matches!(
            self,
            Self::Write(ResourceWrite::Record { .. } | ResourceWrite::Scale { .. })
        )
    }
}

/// The effect of an [`Action`], as far as the API server's answer shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ActionOutcome {
    /// The write was applied, or the read has updated the index.
    Done,
    /// The precondition did not hold: another client wrote in between. Nothing was applied.
    Conflict,
    /// Nothing was applied.
    Refused {
        /// Why.
        why: String,
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// The write may have been applied, or may still be.
    Unknown {
        /// Why that is not known.
        why: String,
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// Nothing was sent, because the write was no longer allowed when its turn came.
    Cancelled {
        /// The change that forbids it.
        why: &'static str,
    },
    /// Nothing was sent, because the mode of the shoot is observe. The write counts as applied.
    KeptBack,
}

impl ActionOutcome {
    /// Why it failed; none if it did not fail.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Refused { why, .. } | Self::Unknown { why, .. } => Some(why),
            Self::Done | Self::Conflict | Self::Cancelled { .. } | Self::KeptBack => None,
        }
    }

    pub(crate) const fn write_result(&self) -> WriteResult {
        match self {
            Self::Done => WriteResult::Applied,
            Self::Conflict => WriteResult::Conflict,
            Self::Refused { .. } => WriteResult::Refused,
            Self::Unknown { .. } => WriteResult::Unknown,
            Self::Cancelled { .. } => WriteResult::Cancelled,
            Self::KeptBack => WriteResult::KeptBack,
        }
    }
}

/// The operation on one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    /// The request in flight.
    pub(super) sent: Option<Action>,
    /// A write, answered or not, that the observed state does not show yet. Nothing is decided until a newer state
    /// arrives. The controller reports whether a write without an answer was applied.
    pub(super) unconfirmed: Option<Unconfirmed>,
    /// The wait for a newer state of the resource.
    pub(super) wait: Option<Wait>,
    /// When the current try began.
    pub(super) since: Option<Instant>,
    /// Why the last try failed.
    pub(super) error: String,
    /// An alert to report once.
    pub(super) alert: Option<String>,
    /// True once the absence or defect of the resource was reported.
    pub(super) broken_reported: bool,
    tries: u32,
    rounds: u32,
    conflicts: u32,
    not_before: Option<Instant>,
}

/// A write that the observed state does not show yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Unconfirmed {
    against: Arc<str>,
    write: ResourceWrite,
    pub(super) read_at: Instant,
}

/// A wait for a newer state of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    version: Arc<str>,
    read_at: Instant,
    pause: Duration,
}

impl Operation {
    /// Returns true if a write may have been applied that the observed state does not show yet.
    pub(super) const fn is_busy(&self) -> bool {
        self.sent.is_some() || self.unconfirmed.is_some()
    }

    /// Tries made, including the current one.
    pub(super) fn attempts(&self) -> u32 {
        self.tries.saturating_add(u32::from(self.since.is_some()))
    }

    /// Records a request that begins now. Returns how long it may take.
    pub(super) fn start(&mut self, now: Instant, action: &Action) -> Duration {
        self.sent = Some(action.clone());
        let since = *self.since.get_or_insert(now);
        let left = (since + action.timeout).saturating_duration_since(now);
        // While a slow read is under way, the watch may deliver the same state.
        if self.wait.is_some() {
            left.min(READ_PAUSE)
        } else {
            left
        }
    }

    /// Keeps only the request in flight and the unconfirmed write.
    pub(super) fn carried_over(self) -> Self {
        Self {
            sent: self.sent,
            unconfirmed: self.unconfirmed,
            ..Self::default()
        }
    }

    /// When to read the awaited resource, unless a newer version than this one is observed before.
    pub(super) fn read_at(&mut self, now: Instant, version: &Arc<str>) -> Instant {
        match &self.wait {
            Some(wait) if wait.version == *version => wait.read_at,
            _ => {
                let (version, read_at) = (version.clone(), now + READ_PAUSE);
                self.wait = Some(Wait {
                    version,
                    read_at,
                    pause: READ_PAUSE,
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

    /// The time for which the flow was held does not count for the current try.
    pub(super) fn resume(&mut self, held: Duration) {
        self.since = self.since.map(|since| since + held);
    }

    /// Records the version that is observed now. `next_step` is the step that follows from it.
    pub(super) fn observe(&mut self, seen: Option<&Arc<str>>, next_step: Option<&NextStep>) {
        let Some(unconfirmed) = &self.unconfirmed else {
            return;
        };
        if seen == Some(&unconfirmed.against) {
            return;
        }
        // The try that seemed to fail was applied, so the next step need not wait.
        let worked = next_step.is_some_and(
            |next_step| !matches!(next_step, NextStep::Write(next) if *next == unconfirmed.write),
        );
        if worked && !self.is_exhausted() {
            self.not_before = None;
        }
        self.unconfirmed = None;
    }

    /// The step and the end of the current pause, if there is one. A new round of tries begins after the pause that
    /// follows a failed level.
    pub(super) fn paused(&mut self, now: Instant) -> Option<(Step, Instant)> {
        let until = self.not_before?;
        if now < until {
            let step = if self.is_exhausted() {
                Step::Failed
            } else {
                Step::BackingOff
            };
            return Some((step, until));
        }
        self.not_before = None;
        if self.is_exhausted() {
            self.tries = 0;
        }
        None
    }

    /// Returns true if the level has failed, until a new round of tries begins.
    const fn is_exhausted(&self) -> bool {
        self.tries >= MAX_TRIES
    }

    /// Records a failed try.
    pub(super) fn fail(&mut self, now: Instant, why: String, retry_after: Option<Duration>) {
        self.since = None;
        self.tries = self.tries.saturating_add(1);
        let pause = if self.is_exhausted() {
            let pause = doubled(FAILED_PAUSE, self.rounds, LONGEST_PAUSE);
            self.rounds = self.rounds.saturating_add(1);
            self.alert = Some(why.clone());
            pause
        } else {
            doubled(TRY_PAUSE, self.tries - 1, LONGEST_PAUSE)
        };
        self.error = why;
        let asked = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
        self.not_before = Some(now + pause.max(asked));
    }

    /// Records the outcome of the request in flight. `stale`: the direction has changed since it was sent.
    pub(super) fn finish(&mut self, now: Instant, outcome: ActionOutcome, stale: bool) {
        let Some(sent) = self.sent.take() else {
            return;
        };
        match sent.kind {
            ActionKind::Read => self.finish_read(now, outcome, stale),
            ActionKind::Write(write) => self.finish_write(now, sent.against, write, outcome, stale),
        }
    }

    fn finish_read(&mut self, now: Instant, outcome: ActionOutcome, stale: bool) {
        if let Some(wait) = &mut self.wait {
            // A failed read is no failure of the resource, so the wait goes on. The caller logs why it failed.
            wait.pause = doubled(wait.pause, 1, LONGEST_READ_PAUSE);
            wait.read_at = now + wait.pause;
            self.error = outcome.error().unwrap_or_default().to_owned();
            return;
        }
        match outcome {
            ActionOutcome::Done => self.unconfirmed = None,
            ActionOutcome::Unknown { why, retry_after } | ActionOutcome::Refused { why, retry_after }
                if !stale =>
            {
                self.fail(now, why, retry_after);
            }
            _ => {}
        }
    }

    fn finish_write(
        &mut self,
        now: Instant,
        against: Arc<str>,
        write: ResourceWrite,
        outcome: ActionOutcome,
        stale: bool,
    ) {
        let (read_at, failure) = match outcome {
            ActionOutcome::Cancelled { .. } => (None, None),
            ActionOutcome::Done | ActionOutcome::KeptBack => {
                self.conflicts = 0;
                self.error.clear();
                (Some(now + CONFIRM_WITHIN), None)
            }
            ActionOutcome::Conflict => {
                self.conflicts = self.conflicts.saturating_add(1);
                let read_at = now + CONFLICT_PAUSE * self.conflicts;
                let why = "another client keeps changing it (409); metadata.managedFields names that client";
                let failure = (self.conflicts > MAX_CONFLICTS && !stale).then(|| (why.to_owned(), None));
                if failure.is_some() {
                    self.conflicts = 0;
                }
                (Some(read_at), failure)
            }
            ActionOutcome::Unknown { why, retry_after } => (Some(now), Some((why, retry_after))),
            ActionOutcome::Refused { why, retry_after } => (None, Some((why, retry_after))),
        };
        if let Some(read_at) = read_at {
            self.unconfirmed = Some(Unconfirmed {
                against,
                write,
                read_at,
            });
        }
        if let Some((why, retry_after)) = failure.filter(|_| !stale) {
            self.fail(now, why, retry_after);
        }
    }
}
