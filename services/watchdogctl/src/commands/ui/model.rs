//! All that the page knows of a seed. Pure: the clocks are arguments.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;
use watchdog_client::follow::{Received, Update};
use watchdog_client::message::Completeness;
use watchdog_client::validity::Validity;
use watchdog_proto::probe::v1::{Evidence, Verdict};
use watchdog_proto::scaling::v1::ShootScaling;

use super::cell::{CellInput, ShootCell};
use super::shoot_view;
use crate::program::Program;

/// The reports of a program count as current for this time after its stream was lost: a stream is opened again within
/// seconds.
const STREAM_GRACE: Duration = Duration::from_secs(15);

/// A wall clock that gains this much on the monotonic one means that this machine slept.
const SLEEP: Duration = Duration::from_secs(5);

/// Counts of leases that are kept of a shoot, for the strip.
const MAX_SAMPLES: usize = 120;

/// Both clocks, read together.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockReading {
    pub(super) instant: Instant,
    pub(super) wall: Timestamp,
}

impl ClockReading {
    pub(super) fn now() -> Self {
        Self {
            instant: Instant::now(),
            wall: Timestamp::now(),
        }
    }

    pub(super) fn unix_millis(&self) -> i64 {
        self.wall.as_millisecond()
    }

    /// True if the machine slept between an earlier reading and this one.
    fn slept_since(&self, earlier: &Self) -> bool {
        let monotonic = self.instant.saturating_duration_since(earlier.instant);
        let wall = Duration::try_from(self.wall.duration_since(earlier.wall)).unwrap_or_default();
        wall > monotonic + SLEEP
    }
}

/// A verdict and until when it is valid.
#[derive(Debug, Clone)]
pub(super) struct KnownVerdict {
    pub(super) verdict: Verdict,
    pub(super) validity: Validity,
}

impl KnownVerdict {
    pub(super) fn new(verdict: Verdict, sent_at: Instant) -> Self {
        let validity = Validity::of_verdict(&verdict, sent_at);
        Self { verdict, validity }
    }
}

/// The counts of leases from one time on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LeaseSample {
    /// In milliseconds of Unix time.
    at: i64,
    candidates: u32,
    expired: u32,
    /// Zone, candidates, expired.
    zones: Vec<(String, u32, u32)>,
}

impl LeaseSample {
    fn new(evidence: &Evidence, at: i64) -> Self {
        let zones = evidence.zones.iter();
        Self {
            at,
            candidates: evidence.candidates,
            expired: evidence.expired,
            zones: zones
                .map(|zone| (zone.zone.clone(), zone.candidates, zone.expired))
                .collect(),
        }
    }
}

/// All that is known of a shoot.
#[derive(Debug, Default)]
pub(super) struct ShootRecord {
    pub(super) verdict: Option<KnownVerdict>,
    pub(super) scaling: Option<ShootScaling>,
    /// The last counts, the oldest first.
    pub(super) samples: VecDeque<LeaseSample>,
    cell: Option<ShootCell>,
    /// The version of the seed in which the cell changed.
    cell_version: u64,
    /// Counts the changes.
    version: u64,
}

impl ShootRecord {
    fn set_verdict(&mut self, received: Option<Received<Verdict>>, now: &ClockReading) {
        self.verdict = received.map(|received| KnownVerdict::new(received.value, received.sent_at));
        let evidence = self.verdict.as_ref();
        let Some(evidence) = evidence.and_then(|known| known.verdict.evidence.as_ref()) else {
            return;
        };
        let mut sample = LeaseSample::new(evidence, now.unix_millis());
        if let Some(last) = self.samples.back() {
            let at = std::mem::replace(&mut sample.at, last.at);
            if sample == *last {
                return;
            }
            sample.at = at;
        }
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    const fn is_known(&self) -> bool {
        self.verdict.is_some() || self.scaling.is_some()
    }
}

/// The stream of a program, or the answers of one that is asked again and again.
#[derive(Debug)]
struct FollowedProgram {
    program: Program,
    /// False if its address was not given.
    is_followed: bool,
    has_snapshot: bool,
    lost: Option<LostStream>,
    missing: Vec<String>,
    unreadable: u64,
}

#[derive(Debug)]
struct LostStream {
    since: ClockReading,
    why: String,
}

impl FollowedProgram {
    fn is_current(&self, now: Instant) -> bool {
        let is_recent = |lost: &LostStream| now < lost.since.instant + STREAM_GRACE;
        !self.is_followed || (self.has_snapshot && self.lost.as_ref().is_none_or(is_recent))
    }

    fn view(&self) -> serde_json::Value {
        let state = match &self.lost {
            _ if !self.is_followed => "not-followed",
            Some(_) => "lost",
            None if self.has_snapshot => "connected",
            None => "connecting",
        };
        json!({
            "program": self.program.as_str(),
            "state": state,
            "since": self.lost.as_ref().map(|lost| lost.since.unix_millis()),
            "why": self.lost.as_ref().map(|lost| &lost.why),
            "missing": self.missing,
            "unreadable": self.unreadable,
        })
    }
}

/// A message for the page, and the version of the seed that it brings the page to.
pub(super) struct SeedMessage {
    pub(super) version: u64,
    pub(super) json: String,
}

/// All that is known of a seed.
pub(super) struct SeedModel {
    title: String,
    shoots: BTreeMap<String, ShootRecord>,
    lease_probe: FollowedProgram,
    coordinator: FollowedProgram,
    weeder: FollowedProgram,
    /// Counts the changes of cells and streams.
    version: u64,
    /// The version since which no shoot is gone: a page that is older gets all cells again.
    whole_since: u64,
    last_tick: Option<ClockReading>,
}

impl SeedModel {
    /// Of a seed of which nothing is known yet. Only these programs are followed.
    pub(super) fn new(title: String, followed: &[Program]) -> Self {
        let program = |program| FollowedProgram {
            program,
            is_followed: followed.contains(&program),
            has_snapshot: false,
            lost: None,
            missing: Vec::new(),
            unreadable: 0,
        };
        Self {
            title,
            shoots: BTreeMap::new(),
            lease_probe: program(Program::LeaseProbe),
            coordinator: program(Program::ScalingCoordinator),
            weeder: program(Program::Weeder),
            version: 0,
            whole_since: 0,
            last_tick: None,
        }
    }

    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn on_verdicts(&mut self, update: Update<String, Verdict>, now: &ClockReading) {
        Self::on_stream(&mut self.lease_probe, &update, now);
        self.apply(update, now, |record, received| record.set_verdict(received, now));
    }

    pub(super) fn on_scaling(&mut self, update: Update<String, ShootScaling>, now: &ClockReading) {
        Self::on_stream(&mut self.coordinator, &update, now);
        let set = |record: &mut ShootRecord, received: Option<Received<ShootScaling>>| {
            record.scaling = received.map(|received| received.value);
        };
        self.apply(update, now, set);
    }

    /// A program that is asked again and again has answered; it did not reach the replicas that are missing.
    pub(super) fn on_answer(&mut self, program: Program, missing: Vec<String>) {
        let followed = self.program_mut(program);
        let is_news = !followed.has_snapshot || followed.lost.is_some() || followed.missing != missing;
        (followed.has_snapshot, followed.lost, followed.missing) = (true, None, missing);
        self.version += u64::from(is_news);
    }

    /// A program cannot be called at all.
    pub(super) fn on_unreachable(&mut self, program: Program, why: String, now: &ClockReading) {
        Self::on_lost(self.program_mut(program), why, now);
        self.version += 1;
    }

    const fn program_mut(&mut self, program: Program) -> &mut FollowedProgram {
        match program {
            Program::LeaseProbe => &mut self.lease_probe,
            Program::ScalingCoordinator => &mut self.coordinator,
            Program::Weeder => &mut self.weeder,
        }
    }

    fn on_lost(followed: &mut FollowedProgram, why: String, now: &ClockReading) {
        // It was lost when it was lost first, and is for the last reason.
        let since = followed.lost.take().map_or(*now, |lost| lost.since);
        followed.lost = Some(LostStream { since, why });
    }

    fn on_stream<V>(followed: &mut FollowedProgram, update: &Update<String, V>, now: &ClockReading) {
        let missing = |completeness: &Completeness| {
            let is_unnamed = !completeness.complete && completeness.missing_replicas.is_empty();
            let unnamed = is_unnamed.then(|| "no leader, or replicas not listed yet".to_owned());
            completeness
                .missing_replicas
                .iter()
                .cloned()
                .chain(unnamed)
                .collect()
        };
        match update {
            Update::Snapshot(_, completeness) => {
                (followed.has_snapshot, followed.lost) = (true, None);
                followed.missing = missing(completeness);
            }
            Update::Completeness(completeness) => followed.missing = missing(completeness),
            Update::Skipped(_) => followed.unreadable += 1,
            Update::Lost(failure) => Self::on_lost(followed, failure.to_string(), now),
            Update::Upsert(..) | Update::Removed(_) => {}
        }
    }

    fn apply<V>(
        &mut self,
        update: Update<String, V>,
        now: &ClockReading,
        mut set: impl FnMut(&mut ShootRecord, Option<Received<V>>),
    ) {
        match update {
            Update::Snapshot(items, completeness) => {
                // While a replica is missing, its items stay as old as they are.
                if completeness.complete {
                    for (name, record) in &mut self.shoots {
                        if !items.contains_key(name) {
                            set(record, None);
                        }
                    }
                }
                for (name, received) in items {
                    set(self.shoots.entry(name).or_default(), Some(received));
                }
                self.forget_unknown();
                self.version += 1;
                self.refresh_all(now);
            }
            Update::Upsert(name, received) => {
                set(self.shoots.entry(name.clone()).or_default(), Some(received));
                self.refresh(&name, now);
            }
            Update::Removed(name) => {
                if let Some(record) = self.shoots.get_mut(&name) {
                    set(record, None);
                }
                self.forget_unknown();
                self.refresh(&name, now);
            }
            Update::Completeness(_) | Update::Skipped(_) | Update::Lost(_) => self.version += 1,
        }
    }

    fn forget_unknown(&mut self) {
        let before = self.shoots.len();
        self.shoots.retain(|_, record| record.is_known());
        if self.shoots.len() < before {
            self.version += 1;
            self.whole_since = self.version;
        }
    }

    /// Looks what has become stale. To be called often.
    pub(super) fn tick(&mut self, now: &ClockReading) {
        let slept = self.last_tick.is_some_and(|last| now.slept_since(&last));
        self.last_tick = Some(*now);
        if slept {
            // The monotonic clock stood still, so validity did too.
            for known in self
                .shoots
                .values_mut()
                .filter_map(|record| record.verdict.as_mut())
            {
                known.validity.valid_until = now.instant;
            }
        }
        self.refresh_all(now);
    }

    fn refresh_all(&mut self, now: &ClockReading) {
        let names: Vec<String> = self.shoots.keys().cloned().collect();
        for name in names {
            self.refresh_cell(&name, now);
        }
    }

    /// A shoot has changed.
    fn refresh(&mut self, name: &str, now: &ClockReading) {
        if let Some(record) = self.shoots.get_mut(name) {
            record.version += 1;
        }
        self.refresh_cell(name, now);
    }

    fn refresh_cell(&mut self, name: &str, now: &ClockReading) {
        let has_current_verdicts = self.lease_probe.is_current(now.instant);
        let has_current_scaling = self.coordinator.is_current(now.instant);
        let Some(record) = self.shoots.get_mut(name) else {
            return;
        };
        let input = CellInput {
            verdict: record.verdict.as_ref(),
            scaling: record.scaling.as_ref(),
            has_current_verdicts,
            has_current_scaling,
        };
        let cell = Some(ShootCell::new(name, input, now.instant));
        if record.cell != cell {
            self.version += 1;
            record.cell = cell;
            record.cell_version = self.version;
            record.version += 1;
        }
    }

    /// The cells that changed after a version; all for a page that has none or misses that a shoot is gone.
    pub(super) fn seed_message(&self, after: Option<u64>, now: &ClockReading) -> SeedMessage {
        let after = after.filter(|after| *after >= self.whole_since);
        let is_newer = |record: &&ShootRecord| after.is_none_or(|after| record.cell_version > after);
        let cells: Vec<&ShootCell> = self
            .shoots
            .values()
            .filter(is_newer)
            .filter_map(|record| record.cell.as_ref())
            .collect();
        let message = json!({
            "at": now.unix_millis(),
            "title": self.title,
            "whole": after.is_none(),
            "programs": [self.lease_probe.view(), self.coordinator.view(), self.weeder.view()],
            "cells": cells,
        });
        SeedMessage {
            version: self.version,
            json: message.to_string(),
        }
    }

    /// The version of a shoot; none if it is not known.
    pub(super) fn shoot_version(&self, name: &str) -> Option<u64> {
        self.shoots.get(name).map(|record| record.version)
    }

    /// All about a shoot; only its name if it is not known.
    pub(super) fn shoot_json(&self, name: &str, now: &ClockReading) -> String {
        let message = match self.shoots.get(name) {
            Some(record) => {
                let state = record.cell.as_ref().map(|cell| cell.state);
                let is_current = self.coordinator.is_current(now.instant);
                shoot_view::json(name, record, state, is_current, now)
            }
            None => json!({ "name": name, "at": now.unix_millis(), "state": null }),
        };
        message.to_string()
    }
}

#[cfg(test)]
mod tests;
