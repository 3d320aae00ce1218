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
use watchdog_proto::probe::v1::{Evidence, Verdict, ZoneEvidence};
use watchdog_proto::scaling::v1::ShootScaling;

use super::cell::{CellInput, CellState, ShootCell};
use crate::api_message::ApiMessage;
use crate::error::CommandError;
use crate::fetch::missing;
use crate::program::Program;

/// The reports of a program count as current for this time after its stream was lost: a stream is opened again within
/// seconds.
const STREAM_GRACE: Duration = Duration::from_secs(15);

/// A wall clock that gains this much on the monotonic one means that this machine slept.
const SLEEP: Duration = Duration::from_secs(5);

/// Counts of leases that are kept of a shoot, for the strip.
pub(crate) const MAX_SAMPLES: usize = 120;

/// Both clocks, read together.
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

    /// True if the machine slept between an earlier reading and this one.
    fn slept_since(&self, earlier: &Self) -> bool {
        let monotonic = self.instant.saturating_duration_since(earlier.instant);
        let wall = Duration::try_from(self.wall.duration_since(earlier.wall)).unwrap_or_default();
        wall > monotonic + SLEEP
    }
}

/// A verdict and until when it is valid.
#[derive(Debug, Clone)]
pub(crate) struct KnownVerdict {
    pub(crate) verdict: ApiMessage<Verdict>,
    pub(crate) validity: Validity,
}

impl KnownVerdict {
    pub(crate) fn new(verdict: ApiMessage<Verdict>, sent_at: Instant) -> Self {
        let validity = Validity::of_verdict(&verdict, sent_at);
        Self { verdict, validity }
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
    fn set_verdict(&mut self, received: Option<Received<ApiMessage<Verdict>>>, now: &ClockReading) {
        let evidence = received.as_ref().and_then(|one| one.value.evidence.as_ref());
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
        self.verdict = received.map(|received| KnownVerdict::new(received.value, received.sent_at));
    }

    const fn is_known(&self) -> bool {
        self.verdict.is_some() || self.scaling.is_some()
    }
}

/// The stream of a program, or the answers of one that is asked again and again.
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
    last_read: Option<ClockReading>,
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
        let since = self.unconnected.take().map_or(*now, |lost| lost.since);
        self.unconnected = Some(LostContact { since, error });
    }

    pub(crate) fn on_verdicts(&mut self, update: Update<String, Verdict>, now: &ClockReading) {
        let set = |record: &mut ShootRecord, received| record.set_verdict(received, now);
        self.on_update(Program::LeaseProbe, update, now, set);
    }

    pub(crate) fn on_scaling(&mut self, update: Update<String, ShootScaling>, now: &ClockReading) {
        let set = |record: &mut ShootRecord, received: Option<Received<ApiMessage<ShootScaling>>>| {
            record.scaling = received.map(|received| received.value);
        };
        self.on_update(Program::ScalingCoordinator, update, now, set);
    }

    /// A program that is asked again and again has answered; it did not reach the replicas that are missing.
    pub(crate) fn on_answer(&mut self, program: Program, missing: Vec<String>) {
        let followed = self.programs.entry(program).or_default();
        (followed.has_snapshot, followed.lost, followed.missing) = (true, None, missing);
    }

    /// A program cannot be called, or its stream is lost.
    pub(crate) fn on_lost(&mut self, program: Program, error: CommandError, now: &ClockReading) {
        let followed = self.programs.entry(program).or_default();
        // It keeps the time of the first loss and the reason of the last.
        let since = followed.lost.take().map_or(*now, |lost| lost.since);
        followed.lost = Some(LostContact { since, error });
    }

    fn on_update<V: Message + Name + Default>(
        &mut self,
        program: Program,
        update: Update<String, V>,
        now: &ClockReading,
        mut set: impl FnMut(&mut ShootRecord, Option<Received<ApiMessage<V>>>),
    ) {
        let followed = self.programs.entry(program).or_default();
        match update {
            Update::Snapshot(items, completeness) => {
                (followed.has_snapshot, followed.lost) = (true, None);
                followed.missing = missing(program, Some(&completeness));
                // While a replica is missing, its items stay as old as they are.
                if completeness.complete {
                    self.shoots.values_mut().for_each(|record| set(record, None));
                }
                for (name, received) in items {
                    let record = self.shoots.entry(printable(&name)).or_default();
                    set(record, Some(shown(received)));
                }
                self.shoots.retain(|_, record| record.is_known());
            }
            Update::Upsert(name, received) => {
                let name = printable(&name);
                set(self.shoots.entry(name).or_default(), Some(shown(received)));
            }
            Update::Removed(name) => {
                let name = printable(&name);
                if let Some(record) = self.shoots.get_mut(&name) {
                    set(record, None);
                }
                self.shoots.retain(|_, record| record.is_known());
            }
            Update::Completeness(completeness) => {
                followed.missing = missing(program, Some(&completeness));
            }
            Update::Skipped(_) => {
                followed.unreadable += 1;
            }
            Update::Lost(failure) => {
                self.on_lost(program, CommandError::of_failure(program.as_str(), &failure), now);
            }
        }
    }

    /// Notes that time has passed. To be called often: between two calls the machine may have slept.
    pub(crate) fn on_time(&mut self, now: &ClockReading) {
        let slept = self.last_read.is_some_and(|last| now.slept_since(&last));
        self.last_read = Some(*now);
        if slept {
            // The monotonic clock stood still, so validity did too.
            let records = self.shoots.values_mut();
            let verdicts = records.filter_map(|record| record.verdict.as_mut());
            verdicts.for_each(|known| known.validity.valid_until = now.instant);
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
        CellInput {
            verdict: known.map(|known| &*known.verdict),
            is_valid: known.is_some_and(|known| known.validity.is_valid_at(now.instant)),
            scaling: record.scaling.as_deref(),
            has_current_verdicts: self.is_current(Program::LeaseProbe, now),
            has_current_scaling: self.is_current(Program::ScalingCoordinator, now),
        }
    }
}

/// A value with all its texts printable. One that the API does not know is left out.
fn shown<V: Message + Name + Default>(received: Received<V>) -> Received<ApiMessage<V>> {
    Received {
        value: ApiMessage::printable(&received.value).unwrap_or_default(),
        sent_at: received.sent_at,
        set_at: received.set_at,
    }
}
