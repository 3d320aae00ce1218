//! An incident of a shoot, from its first unhealthy verdict until everything was restored.
//!
//! It begins with a verdict that wants the dependants down, or with a write. It ends when a verdict is healthy again,
//! nothing is held down and every resource is where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::names::COORDINATOR_FIELD_MANAGER;
use watchdog_api::prober::ResourceRef;
use watchdog_api::unix_time::micros;

use super::Direction;
use super::attempts::{RequestOutcome, WriteAttempt};
use super::decision::Outcome;

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
pub(crate) struct Incident {
    /// The outcome that began it; none when the replica took the shoot over within it.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) started: Instant,
    pub(crate) last_renewal_to_verdict: Option<Duration>,
    pub(crate) first_write: Option<Instant>,
    pub(crate) last_write: Option<Instant>,
    pub(crate) healthy: Option<Instant>,
    /// When it ended.
    pub(crate) restored: Option<Instant>,
    pub(crate) scaled_down: BTreeSet<ResourceRef>,
    pub(crate) scaled_up: BTreeSet<ResourceRef>,
    pub(crate) failed_writes: u32,
    /// True if a write was applied.
    pub(super) written: bool,
    /// When the coordinator decided to scale in each direction, whether or not something was left to scale.
    pub(super) decided: BTreeMap<Direction, Instant>,
    pub(crate) peak_expired_fraction: Option<f64>,
    /// The zones at the peak.
    pub(crate) zones: Vec<(String, u32, u32)>,
    /// The first write in each direction that mode observe has kept back. A scale-down begins anew.
    pub(super) kept_back: BTreeMap<(ResourceRef, Direction), Instant>,
    /// The first scaling in each direction by somebody else, with its name in managedFields.
    pub(super) others: BTreeMap<(ResourceRef, Direction), (Instant, String)>,
}

impl Incident {
    pub(super) fn new(started: Instant) -> Self {
        Self {
            outcome: None,
            started,
            last_renewal_to_verdict: None,
            first_write: None,
            last_write: None,
            healthy: None,
            restored: None,
            scaled_down: BTreeSet::new(),
            scaled_up: BTreeSet::new(),
            failed_writes: 0,
            written: false,
            decided: BTreeMap::new(),
            peak_expired_fraction: None,
            zones: Vec::new(),
            kept_back: BTreeMap::new(),
            others: BTreeMap::new(),
        }
    }

    /// The time from the first verdict until then.
    pub(crate) fn verdict_to(&self, at: Option<Instant>) -> Option<Duration> {
        at.map(|at| at.saturating_duration_since(self.started))
    }

    /// Returns true if the mode was observe, and writes were kept back or somebody else scaled.
    pub(crate) fn in_mode_observe(&self) -> bool {
        !(self.kept_back.is_empty() && self.others.is_empty())
    }

    /// The first scaling by this program and by others. If others left nothing to scale, the decision counts.
    fn first(&self, direction: Direction) -> (Option<Instant>, Option<&(Instant, String)>) {
        let ours = self.kept_back.iter().filter(|((_, of), _)| *of == direction);
        let others = self.others.iter().filter(|((_, of), _)| *of == direction);
        let others = others.map(|(_, first)| first).min_by_key(|(at, _)| *at);
        let decided = others.and(self.decided.get(&direction).copied());
        (ours.map(|(_, at)| *at).min().or(decided), others)
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
    pub(super) fn comparison(&self) -> Option<String> {
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

    /// The resources that were scaled, or would have been, the earliest first.
    pub(crate) fn scale_times(&self) -> Vec<ScaleTimes> {
        let keys: BTreeSet<_> = self.kept_back.keys().chain(self.others.keys()).collect();
        let times = keys.into_iter().map(|key| ScaleTimes {
            resource: key.0.clone(),
            direction: key.1,
            ours: self.kept_back.get(key).copied(),
            others: self.others.get(key).cloned(),
        });
        let mut times: Vec<_> = times.collect();
        times.sort_by_key(|times| {
            let others = times.others.as_ref().map(|(at, _)| *at);
            times.ours.into_iter().chain(others).min()
        });
        times
    }

    /// True if nothing has happened except that somebody else has scaled something, which may be restored.
    pub(super) fn is_of_others(&self) -> bool {
        let is_own = self.others.is_empty() && !self.scaled_up.is_empty();
        self.outcome.is_none() && self.first_write.is_none() && !is_own
    }

    pub(super) fn note_decision(&mut self, now: Instant, direction: Option<Direction>) {
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

    pub(super) fn note_evidence(&mut self, evidence: &EvidenceCounts) {
        if evidence.candidates == 0 {
            return;
        }
        let share = f64::from(evidence.expired) / f64::from(evidence.candidates);
        if self.peak_expired_fraction.is_none_or(|peak| share > peak) {
            self.peak_expired_fraction = Some(share);
            self.zones.clone_from(&evidence.zones);
        }
    }

    pub(super) fn note_write(&mut self, now: Instant, attempt: &WriteAttempt, outcome: &RequestOutcome) {
        match outcome {
            RequestOutcome::Done => self.written = true,
            RequestOutcome::KeptBack => {
                note_first(&mut self.kept_back, &attempt.reference, attempt.direction, now);
            }
            RequestOutcome::Cancelled { .. } => return,
            RequestOutcome::Conflict | RequestOutcome::Refused { .. } | RequestOutcome::Unknown { .. } => {
                self.failed_writes += 1;
                return;
            }
        }
        match attempt.direction {
            Direction::Down => {
                self.first_write.get_or_insert(now);
                self.last_write = Some(now);
                self.scaled_down.insert(attempt.reference.clone());
            }
            Direction::Up => {
                self.scaled_up.insert(attempt.reference.clone());
            }
            Direction::Release => {}
        }
    }
}

/// Microseconds from one instant to another; negative if that is earlier.
pub(crate) fn signed_micros(from: Instant, to: Instant) -> i64 {
    match to.checked_duration_since(from) {
        Some(later) => micros(later),
        None => -micros(from.saturating_duration_since(to)),
    }
}

/// Notes the first scaling of a resource in a direction. One up that a later one down made void does not count.
pub(super) fn note_first<T>(
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
