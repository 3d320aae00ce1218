//! Runs the real probers on a history, under a clock of its own that is paused.

use std::sync::Arc;
use std::time::Duration;

use lease_probe::controller::prober::{ProbeContext, Prober};
use lease_probe::domain::outcome::Outcome;
use lease_probe::domain::verdict::Verdict;
use parking_lot::Mutex;
use scaling_coordinator::domain::decision::ReceivedVerdict;
use tokio::sync::watch;
use watchdog_api::config::UnknownFields;
use watchdog_api::prober::{self, ProberConfig};
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::publish::publish_if_changed;
use watchdog_test_support::fixtures;

use crate::judge::{Direction, SeenVerdict};
use crate::node_lifecycle_input::TimeSpan;
use crate::objects;
use crate::other_writers::Writes;
use crate::random::{Micros, Random, SECOND};
use crate::script::{History, ShootHistory, ShootScript};
use crate::transport::{SimConnector, TrafficLog};
use crate::witnesses::{SecondWitness, decided, outcome};

/// Virtual time 0, in microseconds since the Unix epoch.
pub(crate) const EPOCH: i64 = 1_790_000_000 * SECOND;

/// More than all answers take together.
const ANSWER_MEMORY: usize = 64 << 20;

/// The streams of random numbers of the probers: the history has stream 0.
const PROBERS: u64 = 1;

/// The number of the second witness's first prober.
const SECOND_WITNESS: usize = 100;

/// A shoot with its history.
#[derive(Debug, Clone)]
pub(crate) struct PlayedShoot {
    pub(crate) name: Arc<str>,
    pub(crate) script: ShootScript,
    pub(crate) history: ShootHistory,
    pub(crate) writes: Writes,
}

/// The verdicts of the probers on one shoot.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProbedShoot {
    pub(crate) verdicts: Vec<SeenVerdict>,
    /// Until when renewals were written that the last list of leases shows.
    pub(crate) listed: Micros,
    /// When it was asked for.
    pub(crate) asked: Micros,
    /// The verdicts as the coordinator receives them.
    /// With the instant at which each was sent.
    pub(crate) received: Vec<(tokio::time::Instant, ReceivedVerdict)>,
    pub(crate) traffic: TrafficLog,
}

/// The clock of a history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VirtualClock(Clock);

impl VirtualClock {
    /// Shows 0 now.
    pub(crate) fn start() -> Self {
        Self(Clock::starting_at(EPOCH))
    }

    pub(crate) fn now(self) -> Micros {
        self.0.now_micros() - EPOCH
    }

    pub(crate) async fn sleep_until(self, at: Micros) {
        tokio::time::sleep_until(self.instant(at)).await;
    }

    /// That of a host whose clock is ahead by this much.
    fn ahead(self, by: Micros) -> Clock {
        Clock::starting_at(self.0.now_micros() + by)
    }

    pub(crate) fn instant(self, at: Micros) -> tokio::time::Instant {
        self.0.instant_at(EPOCH + at)
    }
}

/// Probes all shoots of a history, by one process after the other or by two witnesses; what was seen, by shoot.
pub(crate) fn probe(history: &History, shoots: &[Arc<PlayedShoot>]) -> Vec<ProbedShoot> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let clock = VirtualClock::start();
        let stops = history.stops.clone();
        tokio::spawn(async move {
            for stop in stops {
                clock.sleep_until(stop.from).await;
                // What happens meanwhile is found at the end.
                tokio::time::advance(duration(stop.to - clock.now())).await;
            }
        });
        let Some(second) = &history.second else {
            return witness(clock, history, (0, &history.probers, 0), shoots).await;
        };
        let others = as_seen_by(second, shoots);
        let (first, other) = tokio::join!(
            witness(clock, history, (0, &history.probers, 0), shoots),
            witness(
                clock,
                history,
                (SECOND_WITNESS, &second.probers, second.clock_ahead),
                &others
            ),
        );
        let runs = [&*history.probers, &*second.probers];
        let both = first.iter().zip(&other);
        both.map(|(first, other)| decided([first, other], runs, second.freezes, history.length))
            .collect()
    })
}

/// The same shoots, with more faults of the API server that a prober talks to, and of the watches of its inputs.
fn as_seen_by(witness: &SecondWitness, shoots: &[Arc<PlayedShoot>]) -> Vec<Arc<PlayedShoot>> {
    let through = |shoot: &Arc<PlayedShoot>| {
        let mut other = PlayedShoot::clone(shoot);
        other.script.server.segments.extend(&witness.segments);
        other.script.input_changes = other.script.input_changes.later_by(witness.lags);
        Arc::new(other)
    };
    shoots.iter().map(through).collect()
}

/// Runs one prober after the other, the first with this number, on a host whose clock is ahead by this much.
async fn witness(
    clock: VirtualClock,
    history: &History,
    (first, probers, clock_ahead): (usize, &[TimeSpan], Micros),
    shoots: &[Arc<PlayedShoot>],
) -> Vec<ProbedShoot> {
    let probed: Vec<_> = shoots
        .iter()
        .map(|_| Arc::new(Mutex::new(ProbedShoot::default())))
        .collect();
    for (number, run) in (first..).zip(probers) {
        clock.sleep_until(run.from).await;
        let process = ProberProcess {
            clock,
            of_host: clock.ahead(clock_ahead),
            seed: history.seed,
            config: config(
                history.interval,
                shoots.iter().any(|shoot| shoot.script.external_cuts.is_some()),
            ),
            shoots,
            probed: &probed,
        };
        process.run(number, *run).await;
    }
    clock.sleep_until(history.length).await;
    let take = |probed: &Arc<Mutex<ProbedShoot>>| std::mem::take(&mut *probed.lock());
    probed.iter().map(take).collect()
}

/// Gardener's configuration with this interval.
fn config(interval: Micros, external: bool) -> Arc<ProberConfig> {
    let mut head = format!("probeInterval: {}s", interval / SECOND);
    if external {
        head.push_str("\nexternalKubeConfigSecretName: external");
    }
    let parsed = prober::parse(fixtures::prober(&head, "0s").as_bytes(), UnknownFields::Refused);
    Arc::new(parsed.unwrap().config)
}

/// One lease-probe.
struct ProberProcess<'a> {
    clock: VirtualClock,
    of_host: Clock,
    seed: u64,
    config: Arc<ProberConfig>,
    shoots: &'a [Arc<PlayedShoot>],
    probed: &'a [Arc<Mutex<ProbedShoot>>],
}

impl ProberProcess<'_> {
    /// Where the process takes its random numbers from, so that a history is the same for the same seed.
    fn random(&self, number: usize) -> impl Fn() -> f64 + Send + Sync + use<> {
        let random = Mutex::new(Random::stream(self.seed, PROBERS + number as u64));
        move || random.lock().unit()
    }

    async fn run(&self, number: usize, run: TimeSpan) {
        let clock = self.clock;
        let shared = ProbeContext::new(
            objects::seed_client(clock, self.shoots),
            self.of_host,
            format!("lease-probe-{number}").into(),
            ANSWER_MEMORY,
            self.random(number),
        );
        let mut running = tokio::task::JoinSet::new();
        let mut senders = Vec::new();
        for (shoot, probed) in self.shoots.iter().zip(self.probed) {
            let connector = |external| SimConnector {
                clock,
                shoot: shoot.clone(),
                external,
                probed: probed.clone(),
            };
            let (sender, receiver) = watch::channel(shoot.script.inputs(&self.config, run.from, None));
            senders.push((&shoot.script, sender));
            let recorder = Recorder {
                clock,
                of_host: self.of_host,
                probed: probed.clone(),
            };
            let report = move |verdict| recorder.record(verdict);
            let connectors = [false, true].map(connector);
            let prober = Prober::new(shared.clone(), receiver, report, shoot.name.clone(), connectors);
            running.spawn(Box::pin(prober.run(self.shoots.len())));
        }
        let changes = senders
            .iter()
            .flat_map(|(script, _)| script.input_changes.instants());
        let mut changes: Vec<_> = changes.filter(|at| (run.from..run.to).contains(at)).collect();
        changes.sort_unstable();
        for at in changes {
            clock.sleep_until(at).await;
            for (script, sender) in &senders {
                let inputs = script.inputs(&self.config, at, Some(&sender.borrow()));
                publish_if_changed(sender, &inputs);
            }
        }
        clock.sleep_until(run.to).await;
        running.abort_all();
        while let Some(ended) = running.join_next().await {
            assert!(ended.is_err_and(|error| error.is_cancelled()), "a prober ended");
        }
    }
}

struct Recorder {
    clock: VirtualClock,
    of_host: Clock,
    probed: Arc<Mutex<ProbedShoot>>,
}

impl Recorder {
    fn record(&self, verdict: Verdict) {
        let mut probed = self.probed.lock();
        let direction = match verdict.outcome {
            Outcome::Healthy => Direction::Up,
            _ if verdict.outcome.is_loss() => Direction::Down,
            _ => Direction::Hold,
        };
        let list_revision = verdict.list_revision();
        let counts = verdict.evidence.map_or(String::new(), |evidence| {
            format!(
                " ({} of {} expired, {} unconfirmed)",
                evidence.expired, evidence.candidates, evidence.unconfirmed
            )
        });
        let (listed, asked) = (probed.listed, probed.asked);
        let (micros, sent) = (self.of_host.now_micros(), tokio::time::Instant::now());
        let instant = |at: UnixTime| match at.0 >= micros {
            true => sent + duration(at.0 - micros),
            false => sent - duration(micros - at.0),
        };
        let received = ReceivedVerdict {
            outcome: outcome(&verdict.outcome),
            observer: verdict.observer.clone(),
            observed: instant(verdict.observed_at),
            outcome_since: instant(verdict.outcome_since),
            list_revision,
            first_revision: verdict.first_list_revision,
            valid_until: instant(verdict.valid_until),
            message: "".into(),
            evidence: None,
        };
        probed.received.push((sent, received));
        probed.verdicts.push(SeenVerdict {
            at: self.clock.now(),
            listed,
            asked,
            direction,
            outcome: format!("{}{counts} {}", verdict.outcome.as_str(), verdict.message),
        });
    }
}

/// As tokio has it.
pub(crate) fn duration(of: Micros) -> Duration {
    Duration::from_micros(of.unsigned_abs())
}
