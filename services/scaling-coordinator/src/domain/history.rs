//! The history of a shoot: the events that an operator asks about later.
//!
//! Steps are recorded within an incident only: at a start every healthy shoot takes the same ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::policy::ModeInForce;
use watchdog_api::prober::ResourceRef;
use watchdog_api::unix_time::UnixTime;

use super::attempts::{RequestOutcome, WriteAttempt};
use super::decision::{HoldReason, Outcome, ReceivedVerdict};
use super::incident::{EvidenceCounts, Incident, note_first};
use super::other_writes::OtherWrite;
use super::overview::ShootScaling;
use super::status::{FlowState, Step};
use super::{Direction, direction_name};

/// How many events of the history are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Of one shoot.
    pub per_shoot: usize,
    /// Of all shoots.
    pub total: usize,
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
        outcome: RequestOutcome,
        took: Duration,
    },
    /// Somebody else has scaled a resource of a shoot in mode observe.
    OtherWrote(OtherWrite),
    ModeChanged {
        previous: ModeInForce,
        mode: ModeInForce,
        reason: ModeChangeReason,
    },
    IncidentEnded(Incident),
}

/// Why the mode of a shoot has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModeChangeReason {
    /// The Shoot asks for it.
    Annotation,
    /// The mode that the Shoot asked for has reached its end.
    Ended,
    /// The Shoot asks for no mode any more, or for a malformed one.
    Withdrawn,
}

/// The state of a shoot that its next event depends on.
#[derive(Debug, Default)]
pub(crate) struct ShootHistory {
    outcome: Option<Outcome>,
    /// The direction that was recorded last.
    direction: Option<Option<Direction>>,
    steps: BTreeMap<ResourceRef, (Step, Instant)>,
    /// The incident that has not ended.
    incident: Option<Incident>,
    /// None when the replica has just taken the shoot over.
    mode: Option<ModeInForce>,
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
                let incident = self.incident.get_or_insert_with(|| Incident::new(now));
                if incident.is_of_others() {
                    let silent = evidence.and_then(|evidence| evidence.newest_expired_renewal);
                    incident.last_renewal_to_verdict = silent.map(|silent| silent + delay);
                    (incident.outcome, incident.started) = (Some(outcome), now);
                }
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

    /// This mode is in force; `unix_now` is `now` by the wall clock, in which the ends of modes are written.
    pub(crate) fn mode(&mut self, now: Instant, unix_now: UnixTime, mode: ModeInForce) -> Option<ShootEvent> {
        let previous = self.mode.replace(mode)?;
        if (previous.mode, previous.until) == (mode.mode, mode.until) {
            return None;
        }
        let has_ended = previous.until.is_some_and(|until| until <= unix_now);
        let (reason, why) = match (mode.from_annotation, has_ended) {
            (true, _) => (
                ModeChangeReason::Annotation,
                "The Shoot's annotation asks for it.",
            ),
            (false, true) => (
                ModeChangeReason::Ended,
                "The mode of the Shoot's annotation has ended; the default of the seed is in force.",
            ),
            (false, false) => (
                ModeChangeReason::Withdrawn,
                "The Shoot's annotation is gone or malformed; the default of the seed is in force.",
            ),
        };
        let until = mode.until.map(|until| format!(" until {until}"));
        Some(ShootEvent {
            at: now,
            message: format!("The mode is {}{}. {why}", mode.mode, until.unwrap_or_default()),
            kind: ShootEventKind::ModeChanged {
                previous,
                mode,
                reason,
            },
        })
    }

    /// The state of the shoot has changed.
    pub(crate) fn published(&mut self, now: Instant, scaling: &ShootScaling) -> Vec<ShootEvent> {
        if let Some(incident) = &mut self.incident {
            incident.note_decision(now, scaling.direction);
        }
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
        // Every shoot is held for a moment while the leader or a witness changes, and goes up after a start.
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
        let incident = self.incident.as_ref().filter(|_| settled)?;
        // Without a verdict of our own it was healthy all the time.
        let own = incident.is_of_others().then_some(incident.started);
        let healthy = incident.healthy.or(own)?;
        let mut incident = self.incident.take()?;
        (incident.healthy, incident.restored) = (Some(healthy), Some(now));
        self.steps.clear();
        let took = now.saturating_duration_since(incident.started);
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let took = watchdog_api::duration::format(Duration::from_millis(millis));
        let verb = match (incident.in_mode_observe(), incident.written) {
            (true, true) => "were or would have been",
            (true, false) => "would have been",
            (false, _) => "were",
        };
        let comparison = incident.comparison().map(|comparison| format!("; {comparison}"));
        Some(ShootEvent {
            at: now,
            message: format!(
                "The incident has ended after {took}: {} resources {verb} scaled down and {} up{}.",
                incident.scaled_down.len(),
                incident.scaled_up.len(),
                comparison.unwrap_or_default()
            ),
            kind: ShootEventKind::IncidentEnded(incident),
        })
    }

    /// Somebody else has scaled a resource of a shoot in mode observe. A scale-down begins an incident also without a
    /// verdict.
    pub(crate) fn other_wrote(&mut self, now: Instant, other: &OtherWrite) -> Option<ShootEvent> {
        if other.direction == Direction::Down {
            self.incident.get_or_insert_with(|| Incident::new(now));
        }
        let others = &mut self.incident.as_mut()?.others;
        let first = (now, other.writer.clone());
        note_first(others, &other.reference, other.direction, first);
        Some(ShootEvent {
            at: now,
            message: format!(
                "{}: scaled from {} to {} by {}.",
                other.reference, other.from, other.to, other.writer
            ),
            kind: ShootEventKind::OtherWrote(other.clone()),
        })
    }

    /// A write has ended.
    pub(crate) fn write_ended(
        &mut self,
        now: Instant,
        attempt: &WriteAttempt,
        outcome: &RequestOutcome,
        took: Duration,
    ) -> ShootEvent {
        if attempt.direction != Direction::Release {
            let incident = self.incident.get_or_insert_with(|| Incident::new(now));
            incident.note_write(now, attempt, outcome);
            // Nothing is scaled up without a healthy verdict.
            if attempt.direction == Direction::Up {
                incident.healthy.get_or_insert(now);
            }
        }
        let write = attempt.write.to_string();
        let answer = match outcome {
            RequestOutcome::Done => "applied".to_owned(),
            RequestOutcome::Conflict => "the resource had changed".to_owned(),
            RequestOutcome::Refused { why, .. } => format!("refused: {why}"),
            RequestOutcome::Unknown { why, .. } => format!("no answer: {why}"),
            RequestOutcome::Cancelled { why } => format!("no longer allowed: {why}"),
            RequestOutcome::KeptBack => "not sent, because the mode is observe".to_owned(),
        };
        ShootEvent {
            at: now,
            message: format!("{}: {write}: {answer}.", attempt.reference),
            kind: ShootEventKind::WriteEnded {
                resource: attempt.reference.clone(),
                direction: attempt.direction,
                write,
                outcome: outcome.clone(),
                took,
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
