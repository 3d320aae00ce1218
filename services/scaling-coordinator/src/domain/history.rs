//! The history of a shoot: the events that an operator asks about later, and the summary of an incident.
//!
//! An incident begins with a verdict that wants the dependants down, or with a write. It ends when a verdict is healthy
//! again, nothing is held down and every resource is where it was. Steps are recorded within an incident only: at a start
//! every healthy shoot takes the same ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::prober::ResourceRef;

use super::decision::{HoldReason, Outcome, ReceivedVerdict};
use super::flow::{Action, ActionKind, ActionOutcome};
use super::overview::ShootScaling;
use super::status::{FlowState, Step};
use super::{Direction, direction_name};

/// The evidence of a verdict, in counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct EvidenceCounts {
    pub(crate) nodes: Option<u32>,
    pub(crate) leases: u32,
    pub(crate) candidates: u32,
    pub(crate) expired: u32,
    pub(crate) unconfirmed: u32,
    pub(crate) threshold: f64,
    /// Name, candidates and expired candidates of each zone.
    pub(crate) zones: Vec<(String, u32, u32)>,
    /// Time since the newest renewal of an expired candidate, when the leases were judged.
    pub(crate) newest_expired_renewal: Option<Duration>,
}

/// An event in the history of a shoot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ShootEvent {
    pub(crate) at: Instant,
    /// One sentence for people.
    pub(crate) message: String,
    pub(crate) kind: ShootEventKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ShootEventKind {
    VerdictChanged {
        observer: Arc<str>,
        previous: Option<Outcome>,
        outcome: Outcome,
        evidence: Option<EvidenceCounts>,
        delay: Duration,
    },
    DirectionChanged {
        /// None when the replica has just taken the shoot over.
        previous: Option<Option<Direction>>,
        direction: Option<Direction>,
        held: Option<HoldReason>,
    },
    StepChanged {
        resource: ResourceRef,
        level: Option<i32>,
        /// The step before, and how long it took.
        previous: Option<(Step, Duration)>,
        step: Step,
    },
    WriteEnded {
        resource: ResourceRef,
        direction: Direction,
        write: String,
        outcome: ActionOutcome,
        took: Duration,
    },
    IncidentEnded(IncidentSummary),
}

/// An incident from its first unhealthy verdict until everything was restored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IncidentSummary {
    /// The outcome that began it; none when the replica took the shoot over within it.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) started: Instant,
    pub(crate) last_renewal_to_verdict: Option<Duration>,
    pub(crate) verdict_to_first_write: Option<Duration>,
    pub(crate) verdict_to_last_write: Option<Duration>,
    pub(crate) verdict_to_healthy: Duration,
    pub(crate) verdict_to_restored: Duration,
    pub(crate) scaled_down: u32,
    pub(crate) scaled_up: u32,
    pub(crate) failed_writes: u32,
    pub(crate) peak_expired_fraction: Option<f64>,
    /// The zones at the peak.
    pub(crate) zones: Vec<(String, u32, u32)>,
}

/// The state of a shoot that its next event depends on.
#[derive(Debug, Default)]
pub(crate) struct ShootHistory {
    outcome: Option<Outcome>,
    /// The direction that was recorded last.
    direction: Option<Option<Direction>>,
    steps: BTreeMap<ResourceRef, (Step, Instant)>,
    incident: Option<OpenIncident>,
}

/// An incident that has not ended.
#[derive(Debug)]
struct OpenIncident {
    outcome: Option<Outcome>,
    started: Instant,
    last_renewal_to_verdict: Option<Duration>,
    first_write: Option<Instant>,
    last_write: Option<Instant>,
    healthy: Option<Instant>,
    scaled_down: BTreeSet<ResourceRef>,
    scaled_up: BTreeSet<ResourceRef>,
    failed_writes: u32,
    peak: Option<f64>,
    zones: Vec<(String, u32, u32)>,
}

// === impl OpenIncident ===

impl OpenIncident {
    fn new(started: Instant, outcome: Option<Outcome>) -> Self {
        Self {
            outcome,
            started,
            last_renewal_to_verdict: None,
            first_write: None,
            last_write: None,
            healthy: None,
            scaled_down: BTreeSet::new(),
            scaled_up: BTreeSet::new(),
            failed_writes: 0,
            peak: None,
            zones: Vec::new(),
        }
    }

    fn note_evidence(&mut self, evidence: &EvidenceCounts) {
        if evidence.candidates == 0 {
            return;
        }
        let share = f64::from(evidence.expired) / f64::from(evidence.candidates);
        if self.peak.is_none_or(|peak| share > peak) {
            self.peak = Some(share);
            self.zones.clone_from(&evidence.zones);
        }
    }

    fn note_write(&mut self, now: Instant, action: &Action, outcome: &ActionOutcome) {
        if *outcome != ActionOutcome::Done {
            self.failed_writes += u32::from(*outcome != ActionOutcome::Cancelled);
            return;
        }
        match action.direction {
            Direction::Down => {
                self.first_write.get_or_insert(now);
                self.last_write = Some(now);
                self.scaled_down.insert(action.reference.clone());
            }
            Direction::Up => {
                self.scaled_up.insert(action.reference.clone());
            }
            Direction::Release => {}
        }
    }

    fn end(self, healthy: Instant, now: Instant) -> IncidentSummary {
        let since = |at: Instant| at.saturating_duration_since(self.started);
        let count = |set: &BTreeSet<ResourceRef>| u32::try_from(set.len()).unwrap_or(u32::MAX);
        IncidentSummary {
            outcome: self.outcome,
            started: self.started,
            last_renewal_to_verdict: self.last_renewal_to_verdict,
            verdict_to_first_write: self.first_write.map(since),
            verdict_to_last_write: self.last_write.map(since),
            verdict_to_healthy: since(healthy),
            verdict_to_restored: since(now),
            scaled_down: count(&self.scaled_down),
            scaled_up: count(&self.scaled_up),
            failed_writes: self.failed_writes,
            peak_expired_fraction: self.peak,
            zones: self.zones,
        }
    }
}

// === impl ShootHistory ===

impl ShootHistory {
    /// A verdict was received.
    pub(crate) fn verdict(
        &mut self,
        now: Instant,
        verdict: &ReceivedVerdict,
        evidence: Option<EvidenceCounts>,
    ) -> Option<ShootEvent> {
        let outcome = verdict.outcome;
        let delay = now.saturating_duration_since(verdict.observed);
        self.note_outcome(now, outcome, delay, evidence.as_ref());
        let previous = self.outcome.replace(outcome);
        let is_quiet = |outcome| matches!(outcome, Outcome::Healthy | Outcome::Pending | Outcome::Skipped);
        if previous == Some(outcome) || (is_quiet(outcome) && previous.is_none_or(is_quiet)) {
            return None;
        }
        Some(ShootEvent {
            at: now,
            message: format!(
                "{} reports {}. {}",
                verdict.observer,
                outcome.as_str(),
                verdict.message
            ),
            kind: ShootEventKind::VerdictChanged {
                observer: verdict.observer.clone(),
                previous,
                outcome,
                evidence,
                delay,
            },
        })
    }

    fn note_outcome(
        &mut self,
        now: Instant,
        outcome: Outcome,
        delay: Duration,
        evidence: Option<&EvidenceCounts>,
    ) {
        match outcome.direction() {
            Some(Direction::Down) => {
                let incident = self.incident.get_or_insert_with(|| {
                    let silent = evidence.and_then(|evidence| evidence.newest_expired_renewal);
                    OpenIncident {
                        last_renewal_to_verdict: silent.map(|silent| silent + delay),
                        ..OpenIncident::new(now, Some(outcome))
                    }
                });
                incident.healthy = None;
            }
            Some(Direction::Up) => {
                if let Some(incident) = &mut self.incident {
                    incident.healthy.get_or_insert(now);
                }
            }
            Some(Direction::Release) | None => {}
        }
        if let (Some(incident), Some(evidence)) = (&mut self.incident, evidence) {
            incident.note_evidence(evidence);
        }
    }

    /// The state of the shoot has changed.
    pub(crate) fn published(&mut self, now: Instant, scaling: &ShootScaling) -> Vec<ShootEvent> {
        let mut events = Vec::new();
        events.extend(self.direction_changed(now, scaling));
        if self.incident.is_some() {
            events.extend(self.steps_changed(now, scaling));
        }
        events.extend(self.incident_ended(now, scaling));
        events
    }

    fn direction_changed(&mut self, now: Instant, scaling: &ShootScaling) -> Option<ShootEvent> {
        let direction = scaling.direction;
        // Every shoot is held for a moment while it changes its owner or its prober, and goes up after a start.
        let passing = matches!(
            scaling.held,
            Some(HoldReason::Ownership | HoldReason::Unreported | HoldReason::Cluster)
        );
        let starts = self.direction.is_none() && direction == Some(Direction::Up);
        if self.incident.is_none() && (passing || starts) {
            if starts {
                self.direction = Some(direction);
            }
            return None;
        }
        let previous = self.direction.replace(direction);
        if previous == Some(direction) {
            return None;
        }
        let name = direction_name(direction);
        Some(ShootEvent {
            at: now,
            message: format!("The direction is {name}. {}", scaling.reason),
            kind: ShootEventKind::DirectionChanged {
                previous,
                direction,
                held: scaling.held,
            },
        })
    }

    fn steps_changed(&mut self, now: Instant, scaling: &ShootScaling) -> Vec<ShootEvent> {
        let mut events = Vec::new();
        for progress in &scaling.status.resources {
            let step = progress.step;
            let known = self.steps.get(&progress.reference).copied();
            if known.is_some_and(|(before, _)| before == step) {
                continue;
            }
            self.steps.insert(progress.reference.clone(), (step, now));
            let previous = known.map(|(before, since)| (before, now.saturating_duration_since(since)));
            events.push(ShootEvent {
                at: now,
                message: format!(
                    "{}: {}.",
                    progress.reference,
                    progress.message.trim_end_matches('.')
                ),
                kind: ShootEventKind::StepChanged {
                    resource: progress.reference.clone(),
                    level: progress.level,
                    previous,
                    step,
                },
            });
        }
        events
    }

    fn incident_ended(&mut self, now: Instant, scaling: &ShootScaling) -> Option<ShootEvent> {
        let settled = scaling.direction == Some(Direction::Up)
            && scaling.status.state == FlowState::Settled
            && scaling.held_down() == 0;
        let healthy = self.incident.as_ref().filter(|_| settled)?.healthy?;
        let summary = self.incident.take()?.end(healthy, now);
        self.steps.clear();
        let millis = u64::try_from(summary.verdict_to_restored.as_millis()).unwrap_or(u64::MAX);
        let took = watchdog_api::duration::format(Duration::from_millis(millis));
        Some(ShootEvent {
            at: now,
            message: format!(
                "The incident has ended after {took}: {} resources were scaled down and {} up.",
                summary.scaled_down, summary.scaled_up
            ),
            kind: ShootEventKind::IncidentEnded(summary),
        })
    }

    /// A write has ended.
    pub(crate) fn write_ended(
        &mut self,
        now: Instant,
        action: &Action,
        outcome: &ActionOutcome,
        took: Duration,
    ) -> Option<ShootEvent> {
        let ActionKind::Write(write) = &action.kind else {
            return None;
        };
        if action.direction != Direction::Release {
            let incident = self.incident.get_or_insert_with(|| OpenIncident::new(now, None));
            incident.note_write(now, action, outcome);
            // Nothing is scaled up without a healthy verdict.
            if action.direction == Direction::Up {
                incident.healthy.get_or_insert(now);
            }
        }
        let write = write.to_string();
        let answer = match outcome {
            ActionOutcome::Done => "applied".to_owned(),
            ActionOutcome::Conflict => "the resource had changed".to_owned(),
            ActionOutcome::Refused { why, .. } => format!("refused: {why}"),
            ActionOutcome::Unknown { why, .. } => format!("no answer: {why}"),
            ActionOutcome::Cancelled => "not allowed any more".to_owned(),
        };
        Some(ShootEvent {
            at: now,
            message: format!("{}: {write}: {answer}.", action.reference),
            kind: ShootEventKind::WriteEnded {
                resource: action.reference.clone(),
                direction: action.direction,
                write,
                outcome: outcome.clone(),
                took,
            },
        })
    }
}

#[cfg(test)]
mod tests;
