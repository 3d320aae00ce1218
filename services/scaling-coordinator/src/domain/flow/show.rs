//! How the flow shows what it does with one resource.

use watchdog_api::workload::RecordedReplicas;

use super::op::{ActionKind, Operation};
use crate::domain::next_step::{NextStep, ResourceWrite};
use crate::domain::observed::{Dependent, ResourceState};
use crate::domain::status::{Progress, Step};

/// A resource as it is shown.
pub(super) fn progress(
    dependent: &Dependent<'_>,
    level: Option<i32>,
    step: Step,
    message: String,
    target: Option<i32>,
    op: Option<&Operation>,
) -> Progress {
    let seen = dependent.observed.seen();
    let message = match op {
        Some(op) => with_last_error(message, op),
        None => message,
    };
    Progress {
        reference: dependent.config.reference.clone(),
        level,
        step,
        replicas: seen.and_then(|seen| seen.replicas),
        ready: seen.map(|seen| seen.ready),
        recorded: seen.and_then(|seen| match seen.recorded {
            RecordedReplicas::Count(count) => Some(count),
            _ => None,
        }),
        protected: seen.is_some_and(|seen| seen.protected),
        protected_by_coordinator: seen.is_some_and(ResourceState::is_protected_by_coordinator),
        simulated: false,
        target,
        attempts: op.map_or(0, Operation::attempts),
        message: dependent.with_warning(message),
    }
}

/// The step of a resource that needs nothing.
pub(super) const fn rest(next_step: &NextStep) -> Step {
    match next_step {
        NextStep::AbsentOptional => Step::Absent,
        NextStep::Ignored => Step::Ignored,
        _ => Step::Reached,
    }
}

/// The step and message of a resource with a request under way.
pub(super) fn in_flight(op: &Operation, why: &str) -> Option<(Step, String)> {
    let sent = op.sent.as_ref()?;
    Some(if op.wait.is_some() {
        // The read only checks whether there is news.
        (Step::Waiting, why.to_owned())
    } else {
        (Step::Writing, under_way(&sent.kind))
    })
}

fn with_last_error(message: String, op: &Operation) -> String {
    if op.error.is_empty() || message.contains(&op.error) {
        message
    } else {
        format!("{message}; the last try failed: {}", op.error)
    }
}

/// The sentence about a request under way.
fn under_way(what: &ActionKind) -> String {
    match what {
        ActionKind::Read => "it is being read".to_owned(),
        ActionKind::Write(ResourceWrite::Record { replicas }) => {
            format!("its {replicas} replicas are being recorded")
        }
        ActionKind::Write(ResourceWrite::Scale { from, to, .. }) => {
            format!("it is being scaled from {from} to {to}")
        }
        ActionKind::Write(ResourceWrite::CleanUp) => "meltdown-protection-active is being removed".to_owned(),
    }
}

/// The step and message of a resource while its shoot is held.
pub(super) fn idle(dependent: &Dependent<'_>, op: Option<&Operation>) -> (Step, String) {
    match op.and_then(|op| op.sent.as_ref()) {
        Some(sent) => (Step::Writing, under_way(&sent.kind)),
        None if dependent.observed.seen().is_some_and(|seen| seen.ignored) => {
            (Step::Ignored, "it carries ignore-scaling".to_owned())
        }
        None if dependent.observed.seen().is_none() && dependent.config.optional => {
            (Step::Absent, "it is optional and absent".to_owned())
        }
        None => (Step::Pending, "nothing is done while holding".to_owned()),
    }
}
