//! Keeps the history of the shoots since this replica began to lead, bounded for each shoot and in all.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;
use watchdog_watch_stream::item::NamePair;
use watchdog_watch_stream::server::StateStore;

use crate::domain::Direction;
use crate::domain::attempts::{RequestOutcome, WriteAttempt};
use crate::domain::decision::{Outcome, ReceivedVerdict};
use crate::domain::history::{HistoryLimits, ShootEvent, ShootEventKind, ShootHistory};
use crate::domain::incident::{EvidenceCounts, Incident};
use crate::domain::other_writes::OtherWrite;
use crate::domain::overview::ShootScaling;
use crate::metrics::{INCIDENT_STAGES, INCIDENTS, IncidentStage};

/// The history of all shoots.
pub(crate) struct HistoryStore {
    limits: HistoryLimits,
    clock: Clock,
    /// Returns true if this replica leads.
    leads: Box<dyn Fn() -> bool + Send + Sync>,
    identity: Arc<str>,
    /// By shoot and id.
    events: StateStore<NamePair, ShootEvent>,
    state: Mutex<HistoryState>,
}

#[derive(Debug, Default)]
struct HistoryState {
    shoots: HashMap<Arc<str>, ShootHistory>,
    last: u64,
    /// The numbers of the events of each shoot, oldest first.
    by_shoot: HashMap<String, VecDeque<u64>>,
    /// All events by number.
    by_number: BTreeMap<u64, NamePair>,
}

impl HistoryStore {
    pub(crate) fn new(
        limits: HistoryLimits,
        clock: Clock,
        identity: Arc<str>,
        leads: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            limits,
            clock,
            leads: Box::new(leads),
            identity,
            events: StateStore::new(),
            state: Mutex::default(),
        }
    }

    /// The events that are kept.
    pub(crate) fn events(&self) -> StateStore<NamePair, ShootEvent> {
        self.events.clone()
    }

    /// A verdict was received. Every replica receives all verdicts; the leader records them.
    pub(crate) fn verdict(&self, shoot: &str, verdict: &ReceivedVerdict, evidence: Option<EvidenceCounts>) {
        if (self.leads)() {
            let now = Instant::now();
            self.record(shoot, |history| history.verdict(now, verdict, evidence));
        }
    }

    /// The state of a shoot has changed. Returns a sentence about the incident that has ended by that, if one has.
    pub(crate) fn published(&self, shoot: &str, scaling: &ShootScaling) -> Option<String> {
        let now = Instant::now();
        let unix_now = UnixTime(self.clock.micros_at(now));
        self.record(shoot, |history| history.mode(now, unix_now, scaling.mode));
        self.record(shoot, |history| history.published(now, scaling))
    }

    /// A write has ended.
    pub(crate) fn write_ended(
        &self,
        shoot: &str,
        attempt: &WriteAttempt,
        outcome: &RequestOutcome,
        took: Duration,
    ) {
        let now = Instant::now();
        self.record(
            shoot,
            |history| [history.write_ended(now, attempt, outcome, took)],
        );
    }

    /// Somebody else has scaled a resource of a shoot in mode observe.
    pub(crate) fn other_wrote(&self, shoot: &str, other: &OtherWrite) {
        let now = Instant::now();
        self.record(shoot, |history| history.other_wrote(now, other));
    }

    /// The shoot is gone or another replica's. Its events stay.
    pub(crate) fn forget(&self, shoot: &str) {
        self.state.lock().shoots.remove(shoot);
    }

    fn record<E: IntoIterator<Item = ShootEvent>>(
        &self,
        shoot: &str,
        change: impl FnOnce(&mut ShootHistory) -> E,
    ) -> Option<String> {
        let mut state = self.state.lock();
        let events = change(state.shoots.entry(shoot.into()).or_default());
        let mut ended = None;
        for event in events {
            if let ShootEventKind::IncidentEnded(incident) = &event.kind {
                log_incident(shoot, incident);
                measure(incident);
                ended = Some(event.message.clone());
            }
            self.keep(&mut state, shoot, event);
        }
        ended
    }

    /// Adds an event and drops the oldest ones that are too many.
    fn keep(&self, state: &mut HistoryState, shoot: &str, event: ShootEvent) {
        state.last += 1;
        let number = state.last;
        let micros = self.clock.micros_at(event.at);
        // In the order of time; unique by the number, and over replicas by the name.
        let id = format!("{micros:016x}-{number:08x}-{}", self.identity);
        let key = NamePair(shoot.into(), id.into());
        self.events.upsert(key.clone(), event);
        state.by_number.insert(number, key);
        let of_shoot = state.by_shoot.entry(shoot.to_owned()).or_default();
        of_shoot.push_back(number);
        if of_shoot.len() > self.limits.per_shoot
            && let Some(oldest) = of_shoot.pop_front()
            && let Some(key) = state.by_number.remove(&oldest)
        {
            self.events.remove(&key);
        }
        if state.by_number.len() > self.limits.total
            && let Some((_, key)) = state.by_number.pop_first()
        {
            // The oldest of all is the oldest of its shoot.
            if let Some(of_shoot) = state.by_shoot.get_mut(&*key.0) {
                of_shoot.pop_front();
                if of_shoot.is_empty() {
                    state.by_shoot.remove(&*key.0);
                }
            }
            self.events.remove(&key);
        }
    }
}

/// Counts an incident and its stages.
fn measure(incident: &Incident) {
    INCIDENTS.inc(());
    let restored = incident.healthy.zip(incident.restored);
    let restored = restored.map(|(healthy, restored)| restored.saturating_duration_since(healthy));
    for (stage, took) in [
        (
            IncidentStage::LastRenewalToVerdict,
            incident.last_renewal_to_verdict,
        ),
        (
            IncidentStage::VerdictToFirstWrite,
            incident.verdict_to(incident.first_write),
        ),
        (
            IncidentStage::VerdictToLastWrite,
            incident.verdict_to(incident.last_write),
        ),
        (IncidentStage::HealthyToRestored, restored),
    ] {
        if let Some(took) = took {
            INCIDENT_STAGES.record(stage, took);
        }
    }
}

/// The durable record of an incident. docs/reference/monitoring.md describes the line; its fields are stable.
fn log_incident(shoot: &str, incident: &Incident) {
    let seconds = |duration: Duration| (duration.as_secs_f64() * 1_000.0).round() / 1_000.0;
    let verdict_to = |at| incident.verdict_to(at).map(seconds);
    let zones = incident.zones.iter();
    let zones: Vec<String> = zones
        .map(|(zone, candidates, expired)| format!("{zone}={expired}/{candidates}"))
        .collect();
    tracing::info!(
        shoot,
        outcome = incident.outcome.map_or("unknown", Outcome::as_str),
        last_renewal_to_verdict_seconds = incident.last_renewal_to_verdict.map(seconds),
        verdict_to_first_write_seconds = verdict_to(incident.first_write),
        verdict_to_last_write_seconds = verdict_to(incident.last_write),
        verdict_to_healthy_seconds = verdict_to(incident.healthy),
        verdict_to_restored_seconds = verdict_to(incident.restored),
        scaled_down = incident.scaled_down.len(),
        scaled_up = incident.scaled_up.len(),
        failed_writes = incident.failed_writes,
        peak_expired_fraction = incident.peak_expired_fraction,
        zones = zones.join(","),
        in_mode_observe = incident.in_mode_observe(),
        first_to_scale_down = incident.first_to_scale(Direction::Down),
        scale_down_lead_seconds = incident.lead_seconds(Direction::Down),
        first_to_scale_up = incident.first_to_scale(Direction::Up),
        scale_up_lead_seconds = incident.lead_seconds(Direction::Up),
        "an incident has ended"
    );
}

#[cfg(test)]
mod tests {
    use std::io::Seek as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    use watchdog_runtime::args::LogFormat;
    use watchdog_runtime::telemetry;

    use super::*;
    use crate::domain::history::tests::{action, evidence, scaling};
    use crate::domain::status::{FlowState, Step};
    use crate::domain::testing::S;

    fn verdict(outcome: Outcome) -> ReceivedVerdict {
        let now = Instant::now();
        ReceivedVerdict {
            outcome,
            observer: "lease-probe-0".into(),
            observed: now,
            outcome_since: now,
            list_revision: 0,
            first_revision: 0,
            sent: now,
            valid_until: now,
            message: "Because.".into(),
        }
    }

    fn shoots(history: &HistoryStore) -> Vec<String> {
        history
            .events
            .keys()
            .into_iter()
            .map(|key| key.0.to_string())
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_incident_ends_with_one_line_whose_fields_are_stable() {
        let log = Arc::new(tempfile::tempfile().unwrap());
        let (subscriber, _) = telemetry::subscriber(LogFormat::Json, "info", log.clone()).unwrap();
        let _guard = tracing::subscriber::set_default(subscriber);
        let limits = HistoryLimits {
            per_shoot: 100,
            total: 100,
        };
        let history = HistoryStore::new(limits, Clock::start(), "me".into(), || true);
        let publish = |direction, state, step, protected| {
            history.published("a", &scaling(Some(direction), state, step, protected));
        };
        let counts = evidence(3, &[("eu-1a", 2, 2), ("eu-1b", 2, 1)]);
        let expired = verdict(Outcome::LeasesExpired);
        history.verdict("a", &expired, Some(counts));
        publish(Direction::Down, FlowState::Running, Step::Writing, false);
        for outcome in [RequestOutcome::Conflict, RequestOutcome::Done] {
            tokio::time::advance(S).await;
            history.write_ended("a", &action(Direction::Down), &outcome, S);
        }
        tokio::time::advance(60 * S).await;
        history.verdict("a", &verdict(Outcome::Healthy), None);
        publish(Direction::Up, FlowState::Running, Step::Writing, true);
        tokio::time::advance(S / 2).await;
        history.write_ended("a", &action(Direction::Up), &RequestOutcome::Done, S);
        assert_eq!(log.metadata().unwrap().len(), 0);
        publish(Direction::Up, FlowState::Settled, Step::Reached, false);

        (&*log).rewind().unwrap();
        let line: serde_json::Value = serde_json::from_reader(&*log).unwrap();
        let mut line = line.as_object().unwrap().clone();
        line.remove("timestamp");
        let expected = serde_json::json!({
            "level": "INFO",
            "target": "scaling_coordinator::controller::history",
            "message": "an incident has ended",
            "shoot": "a",
            "outcome": "LEASES_EXPIRED",
            "last_renewal_to_verdict_seconds": 32.0,
            "verdict_to_first_write_seconds": 2.0,
            "verdict_to_last_write_seconds": 2.0,
            "verdict_to_healthy_seconds": 62.0,
            "verdict_to_restored_seconds": 62.5,
            "scaled_down": 1,
            "scaled_up": 1,
            "failed_writes": 1,
            "peak_expired_fraction": 0.75,
            "zones": "eu-1a=2/2,eu-1b=1/2",
            "in_mode_observe": false,
        });
        assert_eq!(serde_json::Value::Object(line), expected);
    }

    #[tokio::test]
    async fn the_oldest_events_go_first_for_each_shoot_and_in_all() {
        let limits = HistoryLimits {
            per_shoot: 3,
            total: 5,
        };
        let leads = Arc::new(AtomicBool::new(false));
        let now_leads = {
            let leads = leads.clone();
            move || leads.load(Ordering::Relaxed)
        };
        let history = HistoryStore::new(limits, Clock::start(), "me".into(), now_leads);
        let change = |shoot: &str, times: usize| {
            for i in 0..times {
                let outcome = if i % 2 == 0 {
                    Outcome::LeasesExpired
                } else {
                    Outcome::Healthy
                };
                history.verdict(shoot, &verdict(outcome), None);
            }
        };
        change("a", 4);
        assert!(shoots(&history).is_empty(), "another replica leads");
        leads.store(true, Ordering::Relaxed);
        change("a", 6);
        assert_eq!(shoots(&history), ["a", "a", "a"]);
        change("b", 2);
        let first = history.events.keys().remove(0);
        change("c", 1);
        assert_eq!(shoots(&history), ["a", "a", "b", "b", "c"]);
        assert!(history.events.get(&first).is_none(), "the oldest of all is gone");
        change("c", 3);
        assert_eq!(shoots(&history), ["b", "b", "c", "c", "c"]);
        history.forget("b");
        assert_eq!(shoots(&history).len(), 5, "the events of a shoot stay");
        assert!(history.events.keys().is_sorted());
        let state = history.state.lock();
        assert_eq!((state.by_number.len(), state.by_shoot.len()), (5, 2));
    }
}
