//! Domain <-> proto.

use std::collections::BTreeSet;
use std::time::Duration;

use prost_types::Timestamp;
use tokio::time::Instant;
use watchdog_api::policy::{Mode, ModeInForce};
use watchdog_api::prober::ResourceRef;
use watchdog_client::validity::Validity;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as pb;
use watchdog_runtime::clock::Clock;
use watchdog_watch_stream::client::Received;
use watchdog_watch_stream::item::NamePair;
use watchdog_watch_stream::wire::{self, duration, forward};

use crate::domain::Direction;
use crate::domain::decision::{HoldReason, Outcome, ReceivedVerdict};
use crate::domain::history::{ModeChangeReason, ShootEvent, ShootEventKind};
use crate::domain::incident::{EvidenceCounts, Incident, ScaleTimes, signed_micros};
use crate::domain::other_writes::OtherWrite;
use crate::domain::overview::{ShootPlan, ShootScaling};
use crate::domain::plan::Planned;
use crate::domain::resource_step::{ResourceStep, ResourceWrite};
use crate::domain::status::{FlowState, Progress, Step, WriteResult};

/// Zones whose counts are kept. A region has a handful.
const MAX_ZONES: usize = 16;

/// Characters of a verdict's sentence that are kept.
const LONGEST_MESSAGE: usize = 512;

// === lease-probe -> domain ===

/// A verdict in local monotonic time.
pub(crate) fn verdict(received: &Received<probe::Verdict>) -> ReceivedVerdict {
    let (verdict, sent) = (&received.value, received.sent_at);
    let Validity {
        observed,
        valid_until,
    } = Validity::of_verdict(verdict, sent);
    ReceivedVerdict {
        outcome: outcome(verdict.outcome),
        observer: verdict.observer.as_str().into(),
        observed,
        outcome_since: outcome_since(verdict, observed),
        list_revision: verdict.list_revision,
        first_revision: if verdict.outcome_since == verdict.observed_at {
            verdict.list_revision
        } else {
            0
        },
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

/// When the outcome began, in local monotonic time: both timestamps are from the same wall clock.
fn outcome_since(verdict: &probe::Verdict, observed: Instant) -> Instant {
    let micros = |at: Option<&Timestamp>| {
        at.map(|at| i128::from(at.seconds) * 1_000_000 + i128::from(at.nanos) / 1_000)
    };
    let (Some(since), Some(at)) = (
        micros(verdict.outcome_since.as_ref()),
        micros(verdict.observed_at.as_ref()),
    ) else {
        return observed;
    };
    let lasted = u64::try_from(at.saturating_sub(since)).unwrap_or(0);
    observed
        .checked_sub(Duration::from_micros(lasted))
        .unwrap_or(observed)
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

/// The counts of the evidence.
pub(crate) fn evidence_counts(evidence: &probe::Evidence) -> EvidenceCounts {
    let zones = evidence.zones.iter().take(MAX_ZONES);
    let renewal = evidence.newest_expired_renewal_age.as_ref();
    EvidenceCounts {
        nodes: evidence.nodes,
        leases: evidence.leases,
        candidates: evidence.candidates,
        expired: evidence.expired,
        unconfirmed: evidence.unconfirmed,
        threshold: evidence.threshold,
        zones: zones
            .map(|zone| (zone.zone.clone(), zone.candidates, zone.expired))
            .collect(),
        newest_expired_renewal: renewal.map(|age| forward(Some(age))),
    }
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
    mode_change_reason: ModeChangeReason => pb::ModeChangeReason [Annotation, Ended, Withdrawn]
    hold_reason: HoldReason => pb::HoldReason
        [Cluster, Ownership, Unreported, Expired, Disagreement, Outdated, Verdict, Mode]
    state: FlowState => pb::FlowState [Holding, Settled, Running, Failed, KeptBack]
    step: Step => pb::Step
        [Pending, Delayed, Writing, Waiting, Reached, Absent, Ignored, BackingOff, Failed, KeptBack]
    write_result: WriteResult => pb::WriteResult [Applied, Conflict, Refused, Unknown, Cancelled, KeptBack]
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
        direction_since: Some(timestamp(clock, scaling.since)),
        retry_at: scaling.status.retry_at.map(|at| timestamp(clock, at)),
        owner: scaling.owner.to_string(),
        meltdown_protection_active: scaling.held_down() > 0,
        hold_reason: held(scaling.held).into(),
        mode: mode(scaling.mode.mode).into(),
        mode_from_annotation: scaling.mode.from_annotation,
        mode_until: scaling.mode.until.map(|until| wire::timestamp(until.0)),
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

fn held(reason: Option<HoldReason>) -> pb::HoldReason {
    reason.map_or(pb::HoldReason::Unspecified, hold_reason)
}

fn resource_scaling(progress: &Progress) -> pb::ResourceScaling {
    pb::ResourceScaling {
        resource: Some(resource_ref(&progress.reference)),
        level: progress.level,
        step: step(progress.step).into(),
        spec_replicas: progress.replicas,
        ready_replicas: progress.ready,
        recorded_replicas: progress.recorded,
        target_replicas: progress.target,
        attempts: progress.attempts,
        message: sentence(&progress.message),
    }
}

fn planned(planned: &Planned) -> pb::PlannedResource {
    let action = match planned.step {
        ResourceStep::Nothing => pb::Action::None,
        ResourceStep::Ignored => pb::Action::Ignore,
        ResourceStep::AbsentOptional | ResourceStep::Missing => pb::Action::SkipAbsent,
        ResourceStep::Wait | ResourceStep::Read | ResourceStep::NotObserved => pb::Action::Wait,
        ResourceStep::Write(ResourceWrite::Record { .. } | ResourceWrite::Scale { .. }) => pb::Action::Scale,
        ResourceStep::Write(ResourceWrite::CleanUp) => pb::Action::CleanUp,
        ResourceStep::Repair => pb::Action::FailAbsent,
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

/// An event in the history of a shoot, as this replica recorded it.
pub(crate) fn shoot_event(key: &NamePair, event: &ShootEvent, replica: &str, clock: Clock) -> pb::ShootEvent {
    let NamePair(shoot, id) = key;
    pb::ShootEvent {
        key: Some(pb::ShootEventKey {
            shoot: shoot.to_string(),
            id: id.to_string(),
        }),
        at: Some(timestamp(clock, event.at)),
        replica: replica.to_owned(),
        message: sentence(&event.message),
        event: Some(event_kind(&event.kind, clock)),
    }
}

fn event_kind(kind: &ShootEventKind, clock: Clock) -> pb::shoot_event::Event {
    use pb::shoot_event::Event;
    match kind {
        ShootEventKind::VerdictChanged {
            observer,
            previous,
            outcome,
            evidence: counts,
            delay,
        } => Event::VerdictChanged(pb::VerdictChanged {
            observer: observer.to_string(),
            previous_outcome: previous.map_or(probe::Outcome::Unspecified, probe_outcome).into(),
            outcome: probe_outcome(*outcome).into(),
            evidence: counts.as_ref().map(evidence),
            delay: Some(duration(*delay)),
        }),
        ShootEventKind::DirectionChanged {
            previous,
            direction: now,
            held: hold,
        } => Event::DirectionChanged(pb::DirectionChanged {
            previous_direction: previous.map_or(pb::Direction::Unspecified, direction).into(),
            direction: direction(*now).into(),
            hold_reason: held(*hold).into(),
        }),
        ShootEventKind::StepChanged {
            resource,
            level,
            previous,
            step,
        } => Event::StepChanged(step_changed(resource, *level, *previous, *step)),
        ShootEventKind::WriteEnded {
            resource,
            direction: of,
            write,
            outcome,
            took,
        } => Event::WriteEnded(pb::WriteEnded {
            resource: Some(resource_ref(resource)),
            direction: direction(Some(*of)).into(),
            write: write.clone(),
            result: write_result(outcome.write_result()).into(),
            error: outcome.error().unwrap_or_default().to_owned(),
            took: Some(duration(*took)),
        }),
        ShootEventKind::OtherWrote(other) => Event::OtherWrote(other_wrote(other)),
        ShootEventKind::ModeChanged {
            previous,
            mode,
            reason,
        } => Event::ModeChanged(mode_changed(*previous, *mode, *reason)),
        ShootEventKind::IncidentEnded(ended) => Event::IncidentEnded(incident(ended, clock)),
    }
}

fn step_changed(
    resource: &ResourceRef,
    level: Option<i32>,
    previous: Option<(Step, Duration)>,
    now: Step,
) -> pb::StepChanged {
    pb::StepChanged {
        resource: Some(resource_ref(resource)),
        level,
        previous_step: previous
            .map_or(pb::Step::Unspecified, |(before, _)| step(before))
            .into(),
        step: step(now).into(),
        previous_step_took: previous.map(|(_, took)| duration(took)),
    }
}

fn mode_changed(previous: ModeInForce, now: ModeInForce, reason: ModeChangeReason) -> pb::ModeChanged {
    pb::ModeChanged {
        previous_mode: mode(previous.mode).into(),
        mode: mode(now.mode).into(),
        reason: mode_change_reason(reason).into(),
        mode_until: now.until.map(|until| wire::timestamp(until.0)),
    }
}

fn other_wrote(other: &OtherWrite) -> pb::OtherWrote {
    pb::OtherWrote {
        resource: Some(resource_ref(&other.reference)),
        direction: direction(Some(other.direction)).into(),
        from_replicas: other.from,
        to_replicas: other.to,
        writer: other.writer.clone(),
    }
}

fn incident(ended: &Incident, clock: Clock) -> pb::IncidentEnded {
    let verdict_to = |at| ended.verdict_to(at).map(duration);
    let count = |scaled: &BTreeSet<ResourceRef>| u32::try_from(scaled.len()).unwrap_or(u32::MAX);
    pb::IncidentEnded {
        outcome: ended
            .outcome
            .map_or(probe::Outcome::Unspecified, probe_outcome)
            .into(),
        started_at: Some(timestamp(clock, ended.started)),
        last_renewal_to_verdict: ended.last_renewal_to_verdict.map(duration),
        verdict_to_first_write: verdict_to(ended.first_write),
        verdict_to_last_write: verdict_to(ended.last_write),
        verdict_to_healthy: verdict_to(ended.healthy),
        verdict_to_restored: verdict_to(ended.restored),
        scaled_down: count(&ended.scaled_down),
        scaled_up: count(&ended.scaled_up),
        failed_writes: ended.failed_writes,
        peak_expired_fraction: ended.peak_expired_fraction,
        zones: zones(&ended.zones),
        in_mode_observe: ended.in_mode_observe(),
        scale_times: ended
            .scale_times()
            .iter()
            .map(|times| scale_times(times, ended.started))
            .collect(),
        first_to_scale_down: ended
            .first_to_scale(Direction::Down)
            .unwrap_or_default()
            .to_owned(),
        scale_down_lead_seconds: ended.lead_seconds(Direction::Down),
    }
}

fn scale_times(times: &ScaleTimes, started: Instant) -> pb::ScaleTimes {
    let seconds = |at: Instant| signed_micros(started, at) as f64 / 1e6;
    pb::ScaleTimes {
        resource: Some(resource_ref(&times.resource)),
        direction: direction(Some(times.direction)).into(),
        would_scale_after_seconds: times.ours.map(seconds),
        other_scaled_after_seconds: times.others.as_ref().map(|(at, _)| seconds(*at)),
        other: times
            .others
            .as_ref()
            .map(|(_, writer)| writer.clone())
            .unwrap_or_default(),
    }
}

fn evidence(counts: &EvidenceCounts) -> probe::Evidence {
    let share = f64::from(counts.expired) / f64::from(counts.candidates);
    probe::Evidence {
        nodes: counts.nodes,
        leases: counts.leases,
        candidates: counts.candidates,
        expired: counts.expired,
        expired_fraction: (counts.candidates > 0).then_some(share),
        threshold: counts.threshold,
        zones: zones(&counts.zones),
        unconfirmed: counts.unconfirmed,
        newest_expired_renewal_age: counts.newest_expired_renewal.map(duration),
        ..Default::default()
    }
}

fn zones(zones: &[(String, u32, u32)]) -> Vec<probe::ZoneEvidence> {
    let zone = |(zone, candidates, expired): &(String, u32, u32)| probe::ZoneEvidence {
        zone: zone.clone(),
        candidates: *candidates,
        expired: *expired,
    };
    zones.iter().map(zone).collect()
}

/// Outcomes of this program's own stand for none of the API.
const fn probe_outcome(outcome: Outcome) -> probe::Outcome {
    match outcome {
        Outcome::Healthy => probe::Outcome::Healthy,
        Outcome::LeasesExpired => probe::Outcome::LeasesExpired,
        Outcome::ExternalUnreachable => probe::Outcome::ExternalUnreachable,
        Outcome::ApiServerUnreachable => probe::Outcome::ApiServerUnreachable,
        Outcome::Throttled => probe::Outcome::Throttled,
        Outcome::Inconclusive => probe::Outcome::Inconclusive,
        Outcome::TooFewCandidates => probe::Outcome::TooFewCandidates,
        Outcome::Skipped => probe::Outcome::Skipped,
        Outcome::Pending => probe::Outcome::Pending,
        Outcome::Unknown | Outcome::Outdated => probe::Outcome::Unspecified,
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
