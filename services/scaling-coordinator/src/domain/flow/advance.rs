//! The next step of one resource in the current level, and the waits between the writes.

use std::time::Duration;

use tokio::time::Instant;

use super::earliest;
use super::op::{ActionKind, Operation};
use crate::domain::next_step::PlannedStep;
use crate::domain::observed::Dependent;
use crate::domain::status::Step;

/// The next step of one resource in the current level.
pub(super) struct Advance {
    pub(super) step: Step,
    pub(super) message: String,
    pub(super) wake: Option<Instant>,
    pub(super) action: Option<ActionKind>,
}

impl Advance {
    pub(super) const fn to(step: Step, message: String, wake: Option<Instant>) -> Self {
        Self {
            step,
            message,
            wake,
            action: None,
        }
    }

    pub(super) fn by(self, action: ActionKind) -> Self {
        Self {
            action: Some(action),
            ..self
        }
    }
}

/// Waits for the ready replicas of a resource, and reads it if nothing new is observed.
pub(super) fn wait(
    now: Instant,
    op: &mut Operation,
    dependent: &Dependent<'_>,
    planned: &PlannedStep,
    timeout: Duration,
) -> Advance {
    let times_out = *op.since.get_or_insert(now) + timeout;
    let read_at = dependent
        .observed
        .version()
        .map(|version| op.read_at(now, version));
    let wake = earliest(read_at.filter(|at| now < *at), Some(times_out));
    let advance = Advance::to(Step::Waiting, planned.why.clone(), wake);
    match read_at {
        Some(at) if now >= at => advance.by(ActionKind::Read),
        _ => advance,
    }
}

/// Waits until the effect of a write is observed, and then reads the resource.
pub(super) fn confirm(now: Instant, read_at: Instant, times_out: Option<Instant>) -> Advance {
    if now < read_at {
        let message = "it was written; what came of it is not seen yet".to_owned();
        return Advance::to(Step::Waiting, message, earliest(Some(read_at), times_out));
    }
    let message = "it was written; a read must show whether the write was applied".to_owned();
    Advance::to(Step::Waiting, message, times_out).by(ActionKind::Read)
}
