//! Consumers of verdicts, as scaling-coordinator is one, that note when each arrived.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use watchdog_client::consumer::follow;
use watchdog_client::follow::Update;
use watchdog_proto::probe::v1::{Outcome, Verdict, WatchVerdictsRequest, WatchVerdictsResponse};
use watchdog_proto::stream::v1::Scope;
use watchdog_test_support::wait;
use watchdog_test_support::watchdog::{Service, Setup};

use crate::fleet::now;

/// A verdict arrived whose outcome differs from the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeChange {
    /// The shoot's namespace.
    pub shoot: String,
    /// The new outcome.
    pub outcome: Outcome,
    /// When it arrived, in microseconds since 1970.
    pub at: i64,
    /// When lease-probe observed the newest verdict with it.
    pub observed_at: i64,
}

/// The verdicts that all streams brought.
#[derive(Debug, Default)]
struct SubscriberVerdicts {
    latest: BTreeMap<String, OutcomeChange>,
    changes: Vec<OutcomeChange>,
    updates: u64,
    lost: u64,
}

/// Follows the verdicts of some replicas.
#[derive(Debug)]
pub struct Subscriber {
    received: Arc<Mutex<SubscriberVerdicts>>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Subscriber {
    /// Follows these replicas, each over a connection and a stream of its own.
    pub fn start<'a>(
        setup: &Setup,
        services: impl IntoIterator<Item = &'a Service>,
        scope: Scope,
    ) -> anyhow::Result<Self> {
        let received: Arc<Mutex<SubscriberVerdicts>> = Arc::default();
        let request = WatchVerdictsRequest {
            shoots: Vec::new(),
            scope: scope.into(),
        };
        let mut tasks = Vec::new();
        for service in services {
            let channel = setup.channel(service)?;
            let (request, received) = (request.clone(), received.clone());
            tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                let note = |update| received.lock().note(update);
                let never = CancellationToken::new();
                follow::<WatchVerdictsResponse>(channel, request, &never, note).await;
            })));
        }
        Ok(Self {
            received,
            _tasks: tasks,
        })
    }

    /// Updates so far, and how often a stream was lost.
    pub fn counts(&self) -> (u64, u64) {
        let received = self.received.lock();
        (received.updates, received.lost)
    }

    /// The last change of every shoot.
    pub fn latest(&self) -> BTreeMap<String, OutcomeChange> {
        self.received.lock().latest.clone()
    }

    /// The changes of outcomes since this was called last, in the order in which they arrived.
    pub fn take_changes(&self) -> Vec<OutcomeChange> {
        std::mem::take(&mut self.received.lock().changes)
    }

    /// Waits until this many shoots have this outcome.
    pub async fn until(&self, count: usize, outcome: Outcome, bound: Duration) -> anyhow::Result<()> {
        self.until_last(count, bound, |last| last.outcome == outcome)
            .await
    }

    /// Waits until the last changes of this many shoots are as they should be.
    pub async fn until_last(
        &self,
        count: usize,
        bound: Duration,
        good: impl Fn(&OutcomeChange) -> bool,
    ) -> anyhow::Result<()> {
        wait::until_true("enough shoots have the outcome", bound, || async {
            let received = self.received.lock();
            let found = received.latest.values().filter(|last| good(last)).count();
            anyhow::ensure!(found >= count, "{found} of {count} have");
            Ok(true)
        })
        .await
    }
}

impl SubscriberVerdicts {
    fn note(&mut self, update: Update<String, Verdict>) {
        match update {
            Update::Lost(_) => self.lost += 1,
            Update::Upsert(shoot, verdict) => self.note_verdict(shoot, &verdict.value),
            Update::Snapshot(verdicts, _) => {
                for (shoot, verdict) in verdicts {
                    self.note_verdict(shoot, &verdict.value);
                }
            }
            _ => {}
        }
    }

    fn note_verdict(&mut self, shoot: String, verdict: &Verdict) {
        self.updates += 1;
        let outcome = verdict.outcome();
        let observed_at = verdict
            .observe_time
            .map_or(0, |time| time.seconds * 1_000_000 + i64::from(time.nanos) / 1_000);
        if let Some(known) = self.latest.get_mut(&shoot)
            && known.outcome == outcome
        {
            known.observed_at = observed_at;
            return;
        }
        let change = OutcomeChange {
            shoot: shoot.clone(),
            outcome,
            at: now(),
            observed_at,
        };
        self.changes.push(change.clone());
        self.latest.insert(shoot, change);
    }
}
