//! A consumer of verdicts, as scaling-coordinator is one, that notes when each arrived.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_stream::StreamExt;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::watch_verdicts_response::Event;
use watchdog_proto::stream::v1::Scope;
use watchdog_test_support::wait;
use watchdog_test_support::watchdog::{Service, Setup};

use crate::fleet::now;

/// The largest message that is read.
const MAX_MESSAGE: usize = 256 * 1024;

/// Pause before a stream is tried again.
const RECONNECT: Duration = Duration::from_millis(100);

/// An outcome and when it arrived first, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedOutcome {
    pub outcome: pb::Outcome,
    /// When the first verdict with it arrived, since the one before had another.
    pub at: i64,
    /// When lease-probe observed the newest verdict with it.
    pub observed_at: i64,
}

/// A verdict arrived whose outcome differs from the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeChange {
    /// The shoot's namespace.
    pub shoot: String,
    /// The new outcome.
    pub outcome: pb::Outcome,
    /// When it arrived, in microseconds since 1970.
    pub at: i64,
}

/// The verdicts that all streams brought.
#[derive(Debug, Default)]
struct SubscriberVerdicts {
    latest: BTreeMap<String, ReceivedOutcome>,
    changes: Vec<OutcomeChange>,
}

/// Follows the verdicts of some replicas.
#[derive(Debug)]
pub struct Subscriber {
    received: Arc<Mutex<SubscriberVerdicts>>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

fn request(scope: Scope) -> pb::WatchVerdictsRequest {
    pb::WatchVerdictsRequest {
        shoots: Vec::new(),
        scope: scope.into(),
    }
}

impl Subscriber {
    /// Follows these replicas, each over a stream of its own.
    ///
    /// # Errors
    /// When an address cannot be used.
    pub fn start(setup: &Setup, services: &[Service]) -> anyhow::Result<Self> {
        let received: Arc<Mutex<SubscriberVerdicts>> = Arc::default();
        let mut tasks = Vec::new();
        for service in services {
            let mut client =
                LeaseProbeServiceClient::new(setup.channel(service)?).max_decoding_message_size(MAX_MESSAGE);
            let received = received.clone();
            tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                // A replica ends a stream on which more was taken back at once than it remembers, as when another
                // replica joins: a follower connects again and has everything anew.
                loop {
                    if let Ok(answer) = client.watch_verdicts(request(Scope::Replica)).await {
                        let mut stream = answer.into_inner();
                        while let Some(Ok(response)) = stream.next().await {
                            received.lock().note(response);
                        }
                    }
                    tokio::time::sleep(RECONNECT).await;
                }
            })));
        }
        Ok(Self {
            received,
            _tasks: tasks,
        })
    }

    /// The last outcome of every shoot.
    pub fn latest(&self) -> BTreeMap<String, ReceivedOutcome> {
        self.received.lock().latest.clone()
    }

    /// The changes of outcomes since this was called last, in the order in which they arrived.
    pub fn take_changes(&self) -> Vec<OutcomeChange> {
        std::mem::take(&mut self.received.lock().changes)
    }

    /// Waits until this many shoots have this outcome.
    ///
    /// # Errors
    /// When they have not within `bound`; says how many have.
    pub async fn until(&self, count: usize, outcome: pb::Outcome, bound: Duration) -> anyhow::Result<()> {
        wait::until_true(&format!("{count} shoots are {outcome:?}"), bound, || async {
            let found = self
                .received
                .lock()
                .latest
                .values()
                .filter(|latest| latest.outcome == outcome)
                .count();
            anyhow::ensure!(found >= count, "{found} are");
            Ok(true)
        })
        .await
    }

    /// Waits until every shoot that `included` accepts has this outcome, observed at or after `since`.
    ///
    /// # Errors
    /// When one has not within `bound`; says how many have not.
    pub async fn until_observed(
        &self,
        included: impl Fn(&str) -> bool,
        outcome: pb::Outcome,
        since: i64,
        bound: Duration,
    ) -> anyhow::Result<()> {
        wait::until_true(&format!("shoots are {outcome:?}"), bound, || async {
            let received = self.received.lock();
            let missing = received
                .latest
                .iter()
                .filter(|(shoot, _)| included(shoot))
                .filter(|(_, latest)| latest.outcome != outcome || latest.observed_at < since)
                .count();
            anyhow::ensure!(missing == 0, "{missing} are not");
            Ok(true)
        })
        .await
    }
}

impl SubscriberVerdicts {
    fn note(&mut self, response: pb::WatchVerdictsResponse) {
        let Some(Event::Upsert(verdict)) = response.event else {
            return;
        };
        let outcome = verdict.outcome();
        let observed_at = verdict
            .observe_time
            .map_or(0, |time| time.seconds * 1_000_000 + i64::from(time.nanos) / 1_000);
        if let Some(known) = self.latest.get_mut(&verdict.shoot)
            && known.outcome == outcome
        {
            known.observed_at = observed_at;
            return;
        }
        let at = now();
        self.changes.push(OutcomeChange {
            shoot: verdict.shoot.clone(),
            outcome,
            at,
        });
        let latest = ReceivedOutcome {
            outcome,
            at,
            observed_at,
        };
        self.latest.insert(verdict.shoot, latest);
    }
}

/// Many streams whose messages are only counted.
#[derive(Debug)]
pub struct CountingSubscribers {
    counters: Arc<StreamCounters>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug, Default)]
struct StreamCounters {
    messages: AtomicU64,
    lost: AtomicU64,
}

impl CountingSubscribers {
    /// Opens this many streams of the whole seed, each over a connection of its own, to the replicas in turn.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub async fn start(setup: &Setup, services: &[Service], count: usize) -> anyhow::Result<Self> {
        let counters: Arc<StreamCounters> = Arc::default();
        let mut tasks = Vec::with_capacity(count);
        for service in services.iter().cycle().take(count) {
            let mut client = LeaseProbeServiceClient::new(setup.channel(service)?);
            let mut stream = client.watch_verdicts(request(Scope::Seed)).await?.into_inner();
            let counters = counters.clone();
            tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                while let Some(Ok(_)) = stream.next().await {
                    counters.messages.fetch_add(1, Ordering::Relaxed);
                }
                counters.lost.fetch_add(1, Ordering::Relaxed);
            })));
        }
        Ok(Self {
            counters,
            _tasks: tasks,
        })
    }

    /// Messages so far, and streams that have ended.
    pub fn counts(&self) -> [u64; 2] {
        let StreamCounters { messages, lost } = &*self.counters;
        [messages, lost].map(|counter| counter.load(Ordering::Relaxed))
    }
}
