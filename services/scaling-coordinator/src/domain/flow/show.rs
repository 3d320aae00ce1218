//! How the flow shows what it does with one resource.

use watchdog_api::workload::RecordedReplicas;

use super::op::{Operation, What};
use crate::domain::next_step::{NextStep, Write};
use crate::domain::observed::Dependent;
use crate::domain::status::{Progress, Step};

/// A resource as it is shown.
pub(super) fn progress(
    dependent: &Dependent<'_>,
    level: i32,
    step: Step,
    message: String,
    target: Option<i32>,
    op: Option<&Operation>,
) -> Progress {
    let seen = dependent.observed.seen();
    let failed = op.map_or("", |op| &op.error);
    let message = if failed.is_empty() || message.contains(failed) {
        message
    } else {
        format!("{message}; the last try failed: {failed}")
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

/// The sentence about a request under way.
pub(super) fn under_way(what: &What) -> String {
    match what {
        What::Read => "it is being read".to_owned(),
        What::Write(Write::Record { replicas }) => format!("its {replicas} replicas are being recorded"),
        What::Write(Write::Scale { from, to, .. }) => format!("it is being scaled from {from} to {to}"),
        What::Write(Write::CleanUp) => "meltdown-protection-active is being removed".to_owned(),
    }
}

/// The step and message of a resource while its shoot is held.
pub(super) fn idle(dependent: &Dependent<'_>, op: Option<&Operation>) -> (Step, String) {
    match op.and_then(|op| op.sent.as_ref()) {
        Some(sent) => (Step::Writing, under_way(&sent.what)),
        None if dependent.observed.seen().is_some_and(|seen| seen.ignored) => {
            (Step::Ignored, "it carries ignore-scaling".to_owned())
        }
        None if dependent.observed.seen().is_none() && dependent.config.optional => {
            (Step::Absent, "it is optional and absent".to_owned())
        }
        None => (Step::Pending, "nothing is done while holding".to_owned()),
    }
}
