//! Domain <-> proto.

use prost_types::Timestamp;
use tokio::time::Instant;
use watchdog_api::prober::ResourceRef;
use watchdog_client::validity::Validity;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as pb;
use watchdog_runtime::clock::Clock;
use watchdog_watch_stream::client::Received;
use watchdog_watch_stream::wire::{self, duration};

use crate::domain::Direction;
use crate::domain::decision::{HoldReason, Outcome, Verdict};
use crate::domain::overview::{ShootPlan, ShootScaling};
use crate::domain::plan::{Planned, PlannedAction};
use crate::domain::status::{FlowState, Progress, Step};

/// Characters of a verdict's sentence that are kept.
const LONGEST_MESSAGE: usize = 512;

// === lease-probe -> domain ===

/// A verdict in local monotonic time.
pub(crate) fn verdict(received: &Received<probe::Verdict>) -> Verdict {
    let (verdict, sent) = (&received.value, received.sent_at);
    let Validity {
        observed,
        valid_until,
    } = Validity::of_verdict(verdict, sent);
    Verdict {
        outcome: outcome(verdict.outcome),
        observer: verdict.observer.as_str().into(),
        observed,
        sent,
        valid_until,
        message: verdict
            .message
            .chars()
            .take(LONGEST_MESSAGE)
            .collect::<String>()
            .into(),
    }
}

fn outcome(outcome: i32) -> Outcome {
    match probe::Outcome::try_from(outcome) {
        Ok(probe::Outcome::Healthy) => Outcome::Healthy,
        Ok(probe::Outcome::LeasesExpired) => Outcome::LeasesExpired,
        Ok(probe::Outcome::ExternalUnreachable) => Outcome::ExternalUnreachable,
        Ok(probe::Outcome::ApiServerUnreachable) => Outcome::ApiServerUnreachable,
        Ok(probe::Outcome::Throttled) => Outcome::Throttled,
        Ok(probe::Outcome::Inconclusive) => Outcome::Inconclusive,
        Ok(probe::Outcome::TooFewCandidates) => Outcome::TooFewCandidates,
        Ok(probe::Outcome::Skipped) => Outcome::Skipped,
        Ok(probe::Outcome::Pending) => Outcome::Pending,
        Ok(probe::Outcome::Unspecified) | Err(_) => Outcome::Unknown,
    }
}

// === domain -> API ===

/// The scaling state of a shoot.
pub(crate) fn shoot_scaling(shoot: &str, scaling: &ShootScaling, clock: Clock) -> pb::ShootScaling {
    pb::ShootScaling {
        shoot: shoot.to_owned(),
        direction: direction(scaling.direction).into(),
        reason: scaling.reason.clone(),
        state: state(scaling.status.state).into(),
        level: scaling.status.level,
        resources: scaling.status.resources.iter().map(resource_scaling).collect(),
        direction_since: Some(timestamp(clock, scaling.since)),
        retry_at: scaling.status.retry_at.map(|at| timestamp(clock, at)),
        owner: scaling.owner.to_string(),
        meltdown_protection_active: scaling.held_down() > 0,
        hold_reason: hold_reason(scaling.held).into(),
    }
}

pub(crate) fn plan(plan: &ShootPlan) -> pb::PlanScalingResponse {
    let levels = plan.levels.iter().map(|(level, resources)| pb::PlannedLevel {
        level: *level,
        resources: resources.iter().map(planned).collect(),
    });
    pb::PlanScalingResponse {
        levels: levels.collect(),
        allowed: plan.allowed,
        reason: plan.reason.clone(),
    }
}

/// The direction of a request: down or up.
pub(crate) fn asked_direction(direction: i32) -> Option<Direction> {
    match pb::Direction::try_from(direction) {
        Ok(pb::Direction::Down) => Some(Direction::Down),
        Ok(pb::Direction::Up) => Some(Direction::Up),
        _ => None,
    }
}

const fn direction(direction: Option<Direction>) -> pb::Direction {
    match direction {
        None | Some(Direction::Release) => pb::Direction::Hold,
        Some(Direction::Down) => pb::Direction::Down,
        Some(Direction::Up) => pb::Direction::Up,
    }
}

const fn hold_reason(held: Option<HoldReason>) -> pb::HoldReason {
    match held {
        None => pb::HoldReason::Unspecified,
        Some(HoldReason::Cluster) => pb::HoldReason::Cluster,
        Some(HoldReason::Ownership) => pb::HoldReason::Ownership,
        Some(HoldReason::Unreported) => pb::HoldReason::Unreported,
        Some(HoldReason::Expired) => pb::HoldReason::Expired,
        Some(HoldReason::Disagreement) => pb::HoldReason::Disagreement,
        Some(HoldReason::Outdated) => pb::HoldReason::Outdated,
        Some(HoldReason::Verdict) => pb::HoldReason::Verdict,
    }
}

const fn state(state: FlowState) -> pb::FlowState {
    match state {
        FlowState::Holding => pb::FlowState::Holding,
        FlowState::Settled => pb::FlowState::Settled,
        FlowState::Running => pb::FlowState::Running,
        FlowState::Failed => pb::FlowState::Failed,
    }
}

fn resource_scaling(progress: &Progress) -> pb::ResourceScaling {
    let step = match progress.step {
        Step::Pending => pb::Step::Pending,
        Step::Delayed => pb::Step::Delayed,
        Step::Writing => pb::Step::Writing,
        Step::Waiting => pb::Step::Waiting,
        Step::Reached => pb::Step::Reached,
        Step::Absent => pb::Step::Absent,
        Step::Ignored => pb::Step::Ignored,
        Step::BackingOff => pb::Step::BackingOff,
        Step::Failed => pb::Step::Failed,
    };
    pb::ResourceScaling {
        resource: Some(resource_ref(&progress.reference)),
        level: progress.level,
        step: step.into(),
        spec_replicas: progress.replicas,
        ready_replicas: progress.ready,
        recorded_replicas: progress.recorded,
        target_replicas: progress.target,
        attempts: progress.attempts,
        message: sentence(&progress.message),
    }
}

fn planned(planned: &Planned) -> pb::PlannedResource {
    let action = match planned.action {
        PlannedAction::Nothing => pb::Action::None,
        PlannedAction::Scale => pb::Action::Scale,
        PlannedAction::CleanUp => pb::Action::CleanUp,
        PlannedAction::Ignore => pb::Action::Ignore,
        PlannedAction::SkipAbsent => pb::Action::SkipAbsent,
        PlannedAction::Fail => pb::Action::FailAbsent,
        PlannedAction::Wait => pb::Action::Wait,
    };
    pb::PlannedResource {
        resource: Some(resource_ref(&planned.reference)),
        action: action.into(),
        spec_replicas: planned.replicas,
        target_replicas: planned.target,
        initial_delay: Some(duration(planned.initial_delay)),
        timeout: Some(duration(planned.timeout)),
        reason: sentence(&planned.why),
    }
}

fn resource_ref(reference: &ResourceRef) -> pb::ResourceRef {
    pb::ResourceRef {
        api_version: reference.api_version.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
    }
}

/// The rules speak in clauses, the API in sentences.
fn sentence(clause: &str) -> String {
    let mut chars = clause.chars();
    let Some(first) = chars.next() else {
        return String::new();
    };
    let stop = if clause.ends_with('.') { "" } else { "." };
    format!("{}{}{stop}", first.to_uppercase(), chars.as_str())
}

fn timestamp(clock: Clock, at: Instant) -> Timestamp {
    wire::timestamp(clock.micros_at(at))
}

#[cfg(test)]
mod tests;
