//! The history of a shoot: the events that an operator asks about later, and the summary of an incident.
//!
//! An incident begins with a verdict that wants the dependants down, or with a write. It ends when a verdict is healthy
//! again, nothing is held down and every resource is where it was. Steps are recorded within an incident only: at a
//! start every healthy shoot takes the same ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::names::COORDINATOR_FIELD_MANAGER;
use watchdog_api::policy::ModeInForce;
use watchdog_api::prober::ResourceRef;
use watchdog_api::unix_time::UnixTime;

use super::decision::{HoldReason, Outcome, ReceivedVerdict};
use super::flow::{Action, ActionKind, ActionOutcome};
use super::other_writes::OtherWrite;
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
    /// Somebody else has scaled a resource of a shoot in mode observe.
    OtherWrote(OtherWrite),
    ModeChanged {
        previous: ModeInForce,
        mode: ModeInForce,
        reason: ModeChangeReason,
    },
    IncidentEnded(IncidentSummary),
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

/// When this program would have scaled a resource of a shoot in mode observe, and when another one did.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScaleTimes {
    pub(crate) resource: ResourceRef,
    pub(crate) direction: Direction,
    pub(crate) ours: Option<Instant>,
    /// The first other writer, by its name in managedFields, and when it scaled.
    pub(crate) others: Option<(Instant, String)>,
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
    /// True if the mode was observe, and writes were kept back or somebody else scaled.
    pub(crate) in_mode_observe: bool,
    /// When the coordinator decided to scale in each direction, whether or not something was left to scale.
    pub(crate) decided: BTreeMap<Direction, Instant>,
    /// Of the resources of a shoot in mode observe, the earliest first.
    pub(crate) scale_times: Vec<ScaleTimes>,
}

/// The state of a shoot that its next event depends on.
#[derive(Debug, Default)]
pub(crate) struct ShootHistory {
    outcome: Option<Outcome>,
    /// The direction that was recorded last.
    direction: Option<Option<Direction>>,
    steps: BTreeMap<ResourceRef, (Step, Instant)>,
    incident: Option<OpenIncident>,
    /// None when the replica has just taken the shoot over.
    mode: Option<ModeInForce>,
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
    /// True if a write was applied.
    written: bool,
    decided: BTreeMap<Direction, Instant>,
    peak: Option<f64>,
    zones: Vec<(String, u32, u32)>,
    /// The first write in each direction that mode observe has kept back. A scale-down begins anew.
    kept_back: BTreeMap<(ResourceRef, Direction), Instant>,
    /// The first scaling in each direction by somebody else, with its name in managedFields.
    others: BTreeMap<(ResourceRef, Direction), (Instant, String)>,
}

// === impl IncidentSummary ===

impl IncidentSummary {
    /// The first scaling by this program and by others. If others left nothing to scale, the decision counts.
    fn first(&self, direction: Direction) -> (Option<Instant>, Option<&(Instant, String)>) {
        let times = || {
            self.scale_times
                .iter()
                .filter(|times| times.direction == direction)
        };
        let ours = times().filter_map(|times| times.ours).min();
        let others = times().filter_map(|times| times.others.as_ref());
        let others = others.min_by_key(|(at, _)| *at);
        let decided = others.and(self.decided.get(&direction).copied());
        (ours.or(decided), others)
    }

    /// The program that scaled first in a direction, or would have; none if nobody did.
    pub(crate) fn first_to_scale(&self, direction: Direction) -> Option<&str> {
        match self.first(direction) {
            (Some(ours), Some((other, writer))) if *other < ours => Some(writer),
            (Some(_), _) => Some(COORDINATOR_FIELD_MANAGER),
            (None, other) => other.map(|(_, writer)| &**writer),
        }
    }

    /// By how much this program would have been earlier than all others; negative if it would have been later.
    pub(crate) fn lead_seconds(&self, direction: Direction) -> Option<f64> {
        let (Some(ours), Some((other, _))) = self.first(direction) else {
            return None;
        };
        let lead = signed_micros(ours, *other) as f64 / 1e6;
        Some((lead * 1_000.0).round() / 1_000.0)
    }

    /// One sentence about who was first, for a shoot in mode observe.
    fn comparison(&self) -> Option<String> {
        let first = self.first_to_scale(Direction::Down)?;
        let is_us = first == COORDINATOR_FIELD_MANAGER;
        Some(match (self.lead_seconds(Direction::Down), is_us) {
            (Some(lead), true) => {
                let (_, other) = self.first(Direction::Down);
                let other = other.map_or("another writer", |(_, writer)| writer);
                format!("{first} would have scaled down {lead} s before {other}")
            }
            (Some(lead), false) => {
                format!(
                    "{first} scaled down {} s before {COORDINATOR_FIELD_MANAGER} would have",
                    -lead
                )
            }
            (None, true) => format!("only {first} would have scaled down"),
            (None, false) => format!("only {first} scaled down"),
        })
    }
}

/// Microseconds from one instant to another; negative if that is earlier.
pub(crate) fn signed_micros(from: Instant, to: Instant) -> i64 {
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    match to.checked_duration_since(from) {
        Some(later) => micros(later),
        None => -micros(from.saturating_duration_since(to)),
    }
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
            written: false,
            decided: BTreeMap::new(),
            peak: None,
            zones: Vec::new(),
            kept_back: BTreeMap::new(),
            others: BTreeMap::new(),
        }
    }

    /// True if nothing has happened except that somebody else has scaled something, which may be restored.
    fn is_of_others(&self) -> bool {
        let is_own = self.others.is_empty() && !self.scaled_up.is_empty();
        self.outcome.is_none() && self.first_write.is_none() && !is_own
    }

    fn note_decision(&mut self, now: Instant, direction: Option<Direction>) {
        match direction {
            Some(Direction::Down) => {
                self.decided.remove(&Direction::Up);
                self.decided.entry(Direction::Down).or_insert(now);
            }
            Some(Direction::Up) if self.decided.contains_key(&Direction::Down) => {
                self.decided.entry(Direction::Up).or_insert(now);
            }
            Some(Direction::Up | Direction::Release) | None => {}
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
        match outcome {
            ActionOutcome::Done => self.written = true,
            ActionOutcome::KeptBack => {
                note_first(&mut self.kept_back, &action.reference, action.direction, now);
            }
            ActionOutcome::Cancelled => return,
            ActionOutcome::Conflict | ActionOutcome::Refused { .. } | ActionOutcome::Unknown { .. } => {
                self.failed_writes += 1;
                return;
            }
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
            in_mode_observe: !(self.kept_back.is_empty() && self.others.is_empty()),
            decided: self.decided,
            scale_times: scale_times(&self.kept_back, &self.others),
            zones: self.zones,
        }
    }
}

/// Notes the first scaling of a resource in a direction. One up that a later one down made void does not count.
fn note_first<T>(
    first: &mut BTreeMap<(ResourceRef, Direction), T>,
    reference: &ResourceRef,
    direction: Direction,
    scaling: T,
) {
    if direction == Direction::Down {
        first.remove(&(reference.clone(), Direction::Up));
    }
    first.entry((reference.clone(), direction)).or_insert(scaling);
}

fn scale_times(
    kept_back: &BTreeMap<(ResourceRef, Direction), Instant>,
    others: &BTreeMap<(ResourceRef, Direction), (Instant, String)>,
) -> Vec<ScaleTimes> {
    let keys: BTreeSet<_> = kept_back.keys().chain(others.keys()).collect();
    let times = keys.into_iter().map(|key| ScaleTimes {
        resource: key.0.clone(),
        direction: key.1,
        ours: kept_back.get(key).copied(),
        others: others.get(key).cloned(),
    });
    let mut times: Vec<_> = times.collect();
    times.sort_by_key(|times| {
        times
            .ours
            .into_iter()
            .chain(times.others.as_ref().map(|(at, _)| *at))
            .min()
    });
    times
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
                let new = || OpenIncident::new(now, None);
                let incident = self.incident.get_or_insert_with(new);
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
        let incident = self.incident.as_ref().filter(|_| settled)?;
        // Without a verdict of our own it was healthy all the time.
        let own = incident.is_of_others().then_some(incident.started);
        let healthy = incident.healthy.or(own)?;
        let incident = self.incident.take()?;
        let written = incident.written;
        let summary = incident.end(healthy, now);
        self.steps.clear();
        let millis = u64::try_from(summary.verdict_to_restored.as_millis()).unwrap_or(u64::MAX);
        let took = watchdog_api::duration::format(Duration::from_millis(millis));
        let verb = match (summary.in_mode_observe, written) {
            (true, true) => "were or would have been",
            (true, false) => "would have been",
            (false, _) => "were",
        };
        let comparison = summary.comparison().map(|comparison| format!("; {comparison}"));
        Some(ShootEvent {
            at: now,
            message: format!(
                "The incident has ended after {took}: {} resources {verb} scaled down and {} up{}.",
                summary.scaled_down,
                summary.scaled_up,
                comparison.unwrap_or_default()
            ),
            kind: ShootEventKind::IncidentEnded(summary),
        })
    }

    /// Somebody else has scaled a resource of a shoot in mode observe. A scale-down begins an incident also without a
    /// verdict.
    pub(crate) fn other_wrote(&mut self, now: Instant, other: &OtherWrite) -> Option<ShootEvent> {
        if other.direction == Direction::Down {
            self.incident.get_or_insert_with(|| OpenIncident::new(now, None));
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
            ActionOutcome::Cancelled => "no longer allowed".to_owned(),
            ActionOutcome::KeptBack => "not sent, because the mode is observe".to_owned(),
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
