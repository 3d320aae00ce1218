//! Domain <-> proto.

use std::sync::Arc;
use std::time::SystemTime;

use prost_types::Timestamp;
use tokio::time::Instant;
use watchdog_api::policy::Mode;
use watchdog_api::prober::ResourceRef;
use watchdog_client::validity::Validity;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as pb;
use watchdog_runtime::clock::Clock;
use watchdog_watch_stream::follow::Received;
use watchdog_watch_stream::wire::{self, duration, forward, signed};

use crate::domain::Direction;
use crate::domain::decision::{EvidenceCounts, HoldReason, ReceivedVerdict, ReportedOutcome};
use crate::domain::incident::{Incident, micros_between};
use crate::domain::observed::Dependent;
use crate::domain::plan::ShootPlan;
use crate::domain::resource_step::{PlannedStep, ResourceStep, ResourceWrite};
use crate::domain::status::{FlowState, Progress, ResourceState, ShootScaling};

/// Zones whose counts are kept. A region has a handful.
const MAX_ZONES: usize = 16;

/// Characters of a verdict's sentence that are kept.
const LONGEST_MESSAGE: usize = 512;

// === lease-probe -> domain ===

/// A verdict in local monotonic time.
pub(crate) fn verdict(received: &Received<probe::Verdict>) -> ReceivedVerdict {
    let verdict = &received.value;
    let Validity {
        observed,
        valid_until,
    } = Validity::of_verdict(verdict, received.sent_at);
    let outcome = outcome(verdict.outcome);
    let is_loss = outcome.direction() == Some(Direction::Down);
    ReceivedVerdict {
        outcome,
        observer: verdict.observer.as_str().into(),
        observed,
        outcome_since: outcome_since(verdict, observed).unwrap_or(observed),
        list_revision: verdict.list_revision,
        // An outcome that began before etcd was restored has a first list of another history.
        first_revision: verdict.first_list_revision.min(verdict.list_revision),
        valid_until,
        message: verdict
            .message
            .chars()
            .take(LONGEST_MESSAGE)
            .collect::<String>()
            .into(),
        // Healthy verdicts, nearly all of them, are in memory without it.
        evidence: is_loss
            .then(|| verdict.evidence.as_ref().map(evidence_counts))
            .flatten(),
    }
}

/// When the outcome began, in local monotonic time: both timestamps are from the same wall clock.
fn outcome_since(verdict: &probe::Verdict, observed: Instant) -> Option<Instant> {
    let since = SystemTime::try_from(verdict.outcome_change_time?).ok()?;
    let lasted = SystemTime::try_from(verdict.observe_time?)
        .ok()?
        .duration_since(since);
    observed.checked_sub(lasted.ok()?)
}

fn outcome(outcome: i32) -> ReportedOutcome {
    match probe::Outcome::try_from(outcome).unwrap_or_default() {
        probe::Outcome::Unspecified => {
            ReportedOutcome::Undecided("an outcome that this version does not know")
        }
        probe::Outcome::Healthy => ReportedOutcome::Healthy,
        probe::Outcome::LeasesExpired => ReportedOutcome::LeasesExpired,
        probe::Outcome::ExternalUnreachable => ReportedOutcome::ExternalUnreachable,
        probe::Outcome::Skipped => ReportedOutcome::Skipped,
        probe::Outcome::Pending => ReportedOutcome::Pending,
        undecided => {
            let name = undecided.as_str_name();
            ReportedOutcome::Undecided(name.strip_prefix("OUTCOME_").unwrap_or(name))
        }
    }
}

fn evidence_counts(evidence: &probe::Evidence) -> Arc<EvidenceCounts> {
    let zones = evidence.zones.iter().take(MAX_ZONES);
    let renewal = evidence.newest_expired_renewal_age.as_ref();
    Arc::new(EvidenceCounts {
        candidates: evidence.candidates,
        expired: evidence.expired,
        zones: zones
            .map(|zone| (zone.zone.clone(), zone.candidates, zone.expired))
            .collect(),
        newest_expired_renewal: renewal.map(|age| forward(Some(age))),
        grace: { evidence.node_monitor_grace_period.as_ref() }.map(|grace| forward(Some(grace))),
    })
}

// === domain -> API ===

/// Maps enums to those of the API that have the same variants.
macro_rules! same_in_api {
    ($($name:ident: $from:ty => $to:ty [$($variant:ident),+])+) => {
        $(const fn $name(value: $from) -> $to {
            match value {
                $(<$from>::$variant => <$to>::$variant),+
            }
        })+
    };
}

same_in_api! {
    mode: Mode => pb::Mode [Protect, Observe, Off]
    hold_reason: HoldReason => pb::HoldReason
        [Cluster, NotLeading, Unreported, Expired, Disagreement, Outdated, Verdict, Mode]
    state: FlowState => pb::FlowState [Holding, Settled, Running, Failed, KeptBack]
    resource_state: ResourceState => pb::ResourceState
        [Pending, Delayed, Writing, Waiting, Reached, Absent, Ignored, BackingOff, Failed, KeptBack]
}

/// The scaling state of a shoot.
pub(crate) fn shoot_scaling(shoot: &str, scaling: &ShootScaling, clock: Clock) -> pb::ShootScaling {
    pb::ShootScaling {
        shoot: shoot.to_owned(),
        direction: direction(scaling.direction).into(),
        reason: scaling.reason.clone(),
        state: state(scaling.status.state).into(),
        level: scaling.status.level,
        resources: scaling.status.resources.iter().map(resource_scaling).collect(),
        direction_change_time: Some(timestamp(clock, scaling.since)),
        retry_time: scaling.status.retry_at.map(|at| timestamp(clock, at)),
        replica: scaling.replica.to_string(),
        meltdown_protection_active: scaling.status.held_down() > 0,
        hold_reason: held(scaling.held).into(),
        mode: mode(scaling.mode.mode).into(),
        mode_from_annotation: scaling.mode.from_annotation,
        mode_expire_time: scaling.mode.until.map(|until| wire::timestamp(until.0)),
        incident: scaling
            .incidents
            .current
            .as_deref()
            .map(|one| incident(one, clock)),
        last_incident: scaling.incidents.last.as_deref().map(|one| incident(one, clock)),
    }
}

pub(crate) fn plan(plan: &ShootPlan) -> pb::PlanScalingResponse {
    let levels = plan.levels.iter().map(|(level, resources)| pb::PlannedLevel {
        level: *level,
        resources: resources
            .iter()
            .map(|(dependent, step)| planned(plan.direction, dependent, step))
            .collect(),
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

fn held(reason: Option<HoldReason>) -> pb::HoldReason {
    reason.map_or(pb::HoldReason::Unspecified, hold_reason)
}

fn resource_scaling(progress: &Progress) -> pb::ResourceScaling {
    pb::ResourceScaling {
        resource: Some(resource_ref(&progress.reference)),
        level: progress.level,
        state: resource_state(progress.state).into(),
        spec_replicas: progress.replicas,
        ready_replicas: progress.ready,
        recorded_replicas: progress.recorded,
        target_replicas: progress.target,
        attempts: progress.attempts,
        message: sentence(&progress.message),
    }
}

fn planned(direction: Direction, dependent: &Dependent, planned: &PlannedStep) -> pb::PlannedResource {
    let action = match planned.step {
        ResourceStep::Nothing => pb::Action::None,
        ResourceStep::Ignored => pb::Action::Ignore,
        ResourceStep::AbsentOptional | ResourceStep::Missing => pb::Action::SkipAbsent,
        ResourceStep::Wait | ResourceStep::Read | ResourceStep::NotObserved => pb::Action::Wait,
        ResourceStep::Write(ResourceWrite::Record { .. } | ResourceWrite::Scale { .. }) => pb::Action::Scale,
        ResourceStep::Write(ResourceWrite::CleanUp) => pb::Action::CleanUp,
        ResourceStep::Repair => pb::Action::FailAbsent,
    };
    let info = direction.info(&dependent.config);
    pb::PlannedResource {
        resource: Some(resource_ref(&dependent.config.reference)),
        action: action.into(),
        spec_replicas: dependent.observed.seen().and_then(|seen| seen.replicas),
        target_replicas: planned.target.filter(|_| action == pb::Action::Scale),
        initial_delay: Some(duration(info.initial_delay)),
        timeout: Some(duration(info.timeout)),
        reason: sentence(&dependent.with_warning(planned.why.clone())),
    }
}

fn resource_ref(reference: &ResourceRef) -> pb::ResourceRef {
    pb::ResourceRef {
        api_version: reference.api_version.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
    }
}

fn incident(incident: &Incident, clock: Clock) -> pb::Incident {
    let after = |at| incident.until(at).map(duration);
    let count = |direction| u32::try_from(incident.scaled(direction)).unwrap_or(u32::MAX);
    let zone = |(zone, candidates, expired): &(String, u32, u32)| probe::ZoneEvidence {
        zone: zone.clone(),
        candidates: *candidates,
        expired: *expired,
    };
    let down = incident.compare(Direction::Down);
    pb::Incident {
        outcome: loss_outcome(incident.outcome).into(),
        start_time: Some(timestamp(clock, incident.started)),
        last_renewal_to_verdict: incident.last_renewal_to_verdict.map(duration),
        verdict_to_first_write: incident.until_first_write().map(duration),
        verdict_to_last_write: incident.until_last_write().map(duration),
        verdict_to_healthy: after(incident.healthy),
        verdict_to_restored: after(incident.restored),
        scaled_down: count(Direction::Down),
        scaled_up: count(Direction::Up),
        failed_writes: incident.failed_writes,
        peak_expired_fraction: incident.peak_expired_share(),
        zones: incident
            .peak
            .iter()
            .flat_map(|peak| &peak.zones)
            .map(zone)
            .collect(),
        in_mode_observe: incident.in_mode_observe(),
        scale_times: scale_times(incident),
        first_to_scale_down: down.map_or("", |compared| compared.first).to_owned(),
        scale_down_lead: down.and_then(|compared| compared.lead_micros).map(signed),
        reason: incident.reason.clone(),
        last_error: incident.last_error.clone(),
        node_monitor_grace_period: { incident.peak.as_ref() }
            .and_then(|peak| peak.grace)
            .map(duration),
    }
}

/// The earliest first.
fn scale_times(incident: &Incident) -> Vec<pb::ScaleTimes> {
    let mut scalings: Vec<_> = incident.scalings.iter().collect();
    scalings.sort_by_key(|(_, scaling)| {
        let other = scaling.other.as_ref().map(|(at, _)| *at);
        scaling.ours.into_iter().chain(other).min()
    });
    let after = |at| signed(micros_between(incident.started, at));
    let times = scalings.into_iter().map(|((reference, of), scaling)| {
        let (other_at, other) = scaling.other.clone().unzip();
        pb::ScaleTimes {
            resource: Some(resource_ref(reference)),
            direction: direction(Some(*of)).into(),
            scaled_after: scaling.ours.map(after),
            other_scaled_after: other_at.map(after),
            other: other.unwrap_or_default(),
        }
    });
    times.collect()
}

/// Only these two begin an incident.
const fn loss_outcome(outcome: Option<ReportedOutcome>) -> probe::Outcome {
    match outcome {
        Some(ReportedOutcome::LeasesExpired) => probe::Outcome::LeasesExpired,
        Some(ReportedOutcome::ExternalUnreachable) => probe::Outcome::ExternalUnreachable,
        _ => probe::Outcome::Unspecified,
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
