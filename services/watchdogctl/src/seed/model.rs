//! All that is known of a seed. Pure: the clocks are arguments.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use prost::{Message, Name};
use serde::Serialize;
use tokio::time::Instant;
use watchdog_api::text::printable;
use watchdog_client::follow::{Received, Update};
use watchdog_client::validity::Validity;
use watchdog_client::wire;
use watchdog_proto::probe::v1::{Evidence, Outcome, Verdict, ZoneEvidence};
use watchdog_proto::scaling::v1::ShootScaling;
use watchdog_proto::weeder::v1::Weeder;

use super::cell::{CellInput, CellState, ShootCell};
use crate::api_message::ApiMessage;
use crate::error::CommandError;
use crate::program::Program;
use crate::render::text::missing_replicas;

/// The reports of a program count as current for this time after its stream was lost: a stream is opened again within
/// seconds.
const STREAM_GRACE: Duration = Duration::from_secs(15);

/// Counts of leases that are kept of a shoot, for the strip.
pub(crate) const MAX_SAMPLES: usize = 120;

/// Both clocks, read together. The monotonic one stands still while this machine sleeps; the wall clock may be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockReading {
    pub(crate) instant: Instant,
    pub(crate) wall: Timestamp,
}

impl ClockReading {
    pub(crate) fn now() -> Self {
        Self {
            instant: Instant::now(),
            wall: Timestamp::now(),
        }
    }

    pub(crate) fn unix_millis(&self) -> i64 {
        self.wall.as_millisecond()
    }
}

/// A verdict and until when it is valid.
#[derive(Debug, Clone)]
pub(crate) struct KnownVerdict {
    pub(crate) verdict: ApiMessage<Verdict>,
    pub(crate) validity: Validity,
    /// The end of the validity by the wall clock, which goes on while this machine sleeps.
    ends: Timestamp,
}

impl KnownVerdict {
    pub(crate) fn new(verdict: ApiMessage<Verdict>, sent_at: Instant, now: &ClockReading) -> Self {
        let validity = Validity::of_verdict(&verdict, sent_at);
        let left = validity.valid_until.saturating_duration_since(now.instant);
        let ends = now.wall.checked_add(left).unwrap_or(Timestamp::MAX);
        Self {
            verdict,
            validity,
            ends,
        }
    }

    /// True if neither clock has passed its end.
    pub(crate) fn is_valid(&self, now: &ClockReading) -> bool {
        self.validity.is_valid_at(now.instant) && now.wall < self.ends
    }

    /// As if it were sent now: its age and its validity are those of now.
    pub(crate) fn at(&self, now: Instant) -> ApiMessage<Verdict> {
        let mut verdict = self.verdict.clone();
        let age = now.saturating_duration_since(self.validity.observed);
        let left = self.validity.valid_until.saturating_duration_since(now);
        verdict.0.age = Some(wire::duration(age));
        verdict.0.valid_for = Some(wire::duration(left));
        verdict
    }
}

/// The counts of leases from one time on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LeaseSample {
    /// In milliseconds of Unix time.
    at: i64,
    candidates: u32,
    expired: u32,
    /// Zone, candidates, expired.
    zones: Vec<(String, u32, u32)>,
}

impl LeaseSample {
    fn new(evidence: &Evidence, at: i64) -> Self {
        let zone = |zone: &ZoneEvidence| (zone.zone.clone(), zone.candidates, zone.expired);
        Self {
            at,
            candidates: evidence.candidates,
            expired: evidence.expired,
            zones: evidence.zones.iter().map(zone).collect(),
        }
    }
}

/// All that is known of a shoot.
#[derive(Debug, Default)]
pub(crate) struct ShootRecord {
    pub(crate) verdict: Option<KnownVerdict>,
    pub(crate) scaling: Option<ApiMessage<ShootScaling>>,
    /// The last counts, the oldest first.
    pub(crate) samples: VecDeque<LeaseSample>,
}

impl ShootRecord {
    fn set_verdict(&mut self, received: Option<(ApiMessage<Verdict>, Instant)>, now: &ClockReading) {
        let evidence = received
            .as_ref()
            .and_then(|(verdict, _)| verdict.evidence.as_ref());
        if let Some(evidence) = evidence {
            // Only what has changed since the last one.
            let last = self.samples.back();
            let as_of_last = last.map(|last| LeaseSample::new(evidence, last.at));
            if last.is_none() || last != as_of_last.as_ref() {
                self.samples
                    .push_back(LeaseSample::new(evidence, now.unix_millis()));
            }
            if self.samples.len() > MAX_SAMPLES {
                self.samples.pop_front();
            }
        }
        self.verdict = received.map(|(verdict, sent_at)| KnownVerdict::new(verdict, sent_at, now));
    }

    const fn is_known(&self) -> bool {
        self.verdict.is_some() || self.scaling.is_some()
    }
}

/// The stream of a program.
#[derive(Debug, Clone, Default)]
pub(crate) struct FollowedProgram {
    pub(crate) has_snapshot: bool,
    pub(crate) lost: Option<LostContact>,
    pub(crate) missing: Vec<String>,
    pub(crate) unreadable: u64,
}

/// Since when something does not answer, and why.
#[derive(Debug, Clone)]
pub(crate) struct LostContact {
    pub(crate) since: ClockReading,
    pub(crate) error: CommandError,
}

impl LostContact {
    /// It keeps the time of the first loss and the reason of the last.
    fn note(lost: &mut Option<Self>, error: CommandError, now: &ClockReading) {
        let since = lost.take().map_or(*now, |lost| lost.since);
        *lost = Some(Self { since, error });
    }
}

impl FollowedProgram {
    fn is_current(&self, now: Instant) -> bool {
        let is_recent = |lost: &LostContact| now < lost.since.instant + STREAM_GRACE;
        self.has_snapshot && self.lost.as_ref().is_none_or(is_recent)
    }
}

/// All that is known of a seed.
#[derive(Debug, Default)]
pub(crate) struct SeedModel {
    pub(crate) title: String,
    pub(crate) shoots: BTreeMap<String, ShootRecord>,
    /// The programs that are followed.
    pub(crate) programs: BTreeMap<Program, FollowedProgram>,
    /// Why the seed cannot be connected to, before anything else is known.
    pub(crate) unconnected: Option<LostContact>,
}

impl SeedModel {
    /// Of a seed of which nothing is known yet.
    pub(crate) fn new(title: String) -> Self {
        Self {
            title,
            ..Self::default()
        }
    }

    /// The seed could be connected to; these programs are followed.
    pub(crate) fn on_connected(&mut self, programs: &[Program]) {
        self.unconnected = None;
        let programs = programs
            .iter()
            .map(|program| (*program, FollowedProgram::default()));
        self.programs = programs.collect();
    }

    pub(crate) fn on_unconnected(&mut self, error: CommandError, now: &ClockReading) {
        LostContact::note(&mut self.unconnected, error, now);
    }

    pub(crate) fn on_verdicts(&mut self, update: Update<String, Verdict>, now: &ClockReading) {
        let set = |record: &mut ShootRecord, received| record.set_verdict(received, now);
        self.on_update(Program::LeaseProbe, update, now, set);
    }

    pub(crate) fn on_scaling(&mut self, update: Update<String, ShootScaling>, now: &ClockReading) {
        let set = |record: &mut ShootRecord, received: Option<(ApiMessage<ShootScaling>, _)>| {
            record.scaling = received.map(|(scaling, _)| scaling);
        };
        self.on_update(Program::ScalingCoordinator, update, now, set);
    }

    /// Nothing that weeders do is shown, only whether their replicas answer for the whole seed.
    pub(crate) fn on_weeders<K>(&mut self, update: Update<K, Weeder>, now: &ClockReading) {
        self.on_contact(Program::Weeder, &update, now);
    }

    /// A program cannot be called, or its stream is lost.
    pub(crate) fn on_lost(&mut self, program: Program, error: CommandError, now: &ClockReading) {
        LostContact::note(&mut self.programs.entry(program).or_default().lost, error, now);
    }

    fn on_contact<K, V>(&mut self, program: Program, update: &Update<K, V>, now: &ClockReading) {
        let followed = self.programs.entry(program).or_default();
        match update {
            Update::Snapshot(_, completeness) => {
                (followed.has_snapshot, followed.lost) = (true, None);
                followed.missing = missing_replicas(program, Some(completeness));
            }
            Update::Completeness(completeness) => {
                followed.missing = missing_replicas(program, Some(completeness))
            }
            Update::Skipped(_) => followed.unreadable += 1,
            Update::Lost(failure) => {
                self.on_lost(program, CommandError::of_failure(program.as_str(), failure), now);
            }
            Update::Upsert(..) | Update::Removed(_) => {}
        }
    }

    fn on_update<V: Message + Name + Default>(
        &mut self,
        program: Program,
        update: Update<String, V>,
        now: &ClockReading,
        mut set: impl FnMut(&mut ShootRecord, Option<(ApiMessage<V>, Instant)>),
    ) {
        self.on_contact(program, &update, now);
        let is_upsert = matches!(update, Update::Upsert(..));
        // While a replica is missing, its items stay as old as they are.
        if matches!(&update, Update::Snapshot(_, completeness) if completeness.complete) {
            self.shoots.values_mut().for_each(|record| set(record, None));
        }
        let items = match update {
            Update::Snapshot(items, _) => items.into_iter().map(|(name, item)| (name, Some(item))).collect(),
            Update::Upsert(name, item) => vec![(name, Some(item))],
            Update::Removed(name) => vec![(name, None)],
            Update::Completeness(_) | Update::Skipped(_) | Update::Lost(_) => Vec::new(),
        };
        for (name, item) in items {
            let record = self.shoots.entry(printable(&name)).or_default();
            set(record, item.map(|item| shown(&item)));
        }
        // Not at each of the many renewals.
        if !is_upsert {
            self.shoots.retain(|_, record| record.is_known());
        }
    }

    /// True if a program has reported lately, or is not followed.
    pub(crate) fn is_current(&self, program: Program, now: &ClockReading) -> bool {
        let followed = self.programs.get(&program);
        followed.is_none_or(|followed| followed.is_current(now.instant))
    }

    /// The cell of each shoot as it is now.
    pub(crate) fn cells(&self, now: &ClockReading) -> Vec<ShootCell> {
        let cell = |(name, record): (&String, &_)| ShootCell::new(name, self.input(record, now));
        self.shoots.iter().map(cell).collect()
    }

    /// The number of shoots that are cut off or scaled.
    pub(crate) fn urgent(&self, now: &ClockReading) -> usize {
        let states = self.shoots.values().map(|record| self.state(record, now));
        states.filter(|state| *state < CellState::Unknown).count()
    }

    pub(crate) fn state(&self, record: &ShootRecord, now: &ClockReading) -> CellState {
        CellState::of(self.input(record, now))
    }

    fn input<'a>(&self, record: &'a ShootRecord, now: &ClockReading) -> CellInput<'a> {
        let known = record.verdict.as_ref();
        let is_valid = |known: &KnownVerdict| match known.verdict.outcome() {
            Outcome::Skipped => self.is_current(Program::LeaseProbe, now),
            _ => known.is_valid(now),
        };
        CellInput {
            verdict: known.map(|known| &*known.verdict),
            is_valid: known.is_some_and(is_valid),
            scaling: record.scaling.as_deref(),
            has_current_scaling: self.is_current(Program::ScalingCoordinator, now),
        }
    }
}

/// A value with all its texts printable, and when it was sent. One that the API does not know is left out.
fn shown<V: Message + Name + Default>(received: &Received<V>) -> (ApiMessage<V>, Instant) {
    let value = ApiMessage::printable(&received.value);
    (value.unwrap_or_default(), received.sent_at)
}
