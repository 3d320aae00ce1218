//! A shoot whose kubelets renew at given moments, and whose API server takes its time to answer.

use std::sync::Arc;
use std::time::Duration;

use lease_probe::cluster::kubeconfig::Access;
use lease_probe::cluster::shoot_client::{ExternalEndpoint, ShootClient};
use lease_probe::cluster::transport::{Budget, Suspicion};
use lease_probe::controller::prober::{ProbeContext, ProbeInputs, ProbeReporter, Prober};
use lease_probe::domain::endpoint::Endpoint;
use lease_probe::domain::outcome::{Outcome, ProbeFailure};
use lease_probe::domain::renewals::LeaseList;
use lease_probe::domain::verdict::Verdict;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::config::UnknownFields;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::lease::LeaseItem;
use watchdog_api::machine::{MachineItem, MachinePhase};
use watchdog_api::node::NodeItem;
use watchdog_api::prober::{self, ProberConfig};
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;
use watchdog_test_support::fixtures;

/// Milliseconds since the prober was started.
pub(crate) type Millis = i64;

/// Of the default grace period of 40 s.
pub(crate) const EXPIRY_AGE: Millis = 33_000;

/// A quarter of the default lease duration.
pub(crate) const RENEW_INTERVAL: Millis = 10_000;

/// For how long a shoot is probed.
pub(crate) const LASTS: Millis = 420_000;

/// The renewals of the kubelets and the latency of the API server.
#[derive(Debug, Clone)]
pub(crate) struct TestShoot {
    /// Per node, in order: when it renews.
    pub(crate) renewals: Vec<Vec<Millis>>,
    /// For the list of the leases.
    pub(crate) leases_take: Millis,
    /// For the list of the nodes and machines.
    pub(crate) nodes_take: Millis,
    /// Until then the API server answers 429 to the list of the leases, asks to be left alone for 1 s and closes the
    /// connection.
    pub(crate) throttles_until: Millis,
    /// Until then the seed answers 429 to that list, and asks to be left alone until then.
    pub(crate) seed_throttles_until: Millis,
    /// The answers of the external endpoint, after which it hangs. There is none if it has no answers.
    pub(crate) external: Vec<Result<(), ProbeFailure>>,
}

impl TestShoot {
    /// A shoot whose lists take 20 ms.
    pub(crate) const fn new(renewals: Vec<Vec<Millis>>) -> Self {
        Self {
            renewals,
            leases_take: 20,
            nodes_take: 20,
            throttles_until: 0,
            seed_throttles_until: 0,
            external: Vec::new(),
        }
    }

    /// Since a kubelet sent a renewal: it may have taken as long as a list to reach the API server.
    pub(crate) const fn expiry_age(&self) -> Millis {
        EXPIRY_AGE + self.leases_take
    }

    /// When a node last renewed before `now`.
    pub(crate) fn last(&self, node: usize, now: Millis) -> Option<Millis> {
        let renewals = &self.renewals[node];
        renewals[..renewals.partition_point(|t| *t <= now)]
            .last()
            .copied()
    }
}

/// The probes and verdicts of a run.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// Start and end of every probe.
    pub(crate) probes: Vec<(Millis, Millis)>,
    /// The reported outcomes, with their times.
    pub(crate) reported: Vec<(Millis, Outcome)>,
    /// When the nodes and machines were asked for.
    pub(crate) nodes_listed: Vec<Millis>,
    /// The requests that failed.
    pub(crate) failures: Vec<(Endpoint, &'static str)>,
}

impl Observed {
    /// The last outcome reported by `now`.
    pub(crate) fn at(&self, now: Millis) -> &Outcome {
        &self.reported[self.reported.partition_point(|(at, _)| *at <= now) - 1].1
    }

    /// The probes of the half minute before and after, for people.
    pub(crate) fn around(&self, now: Millis) -> Vec<(Millis, Millis)> {
        let near = |probe: &&(Millis, Millis)| (probe.0 - now).abs() < 30_000;
        self.probes.iter().filter(near).copied().collect()
    }

    /// When the probe ends that is under way at that moment; else the moment itself.
    pub(crate) fn end_of_probe_at(&self, now: Millis) -> Millis {
        let under_way = self
            .probes
            .iter()
            .find(|(start, end)| *start < now && now <= *end);
        under_way.map_or(now, |(_, end)| *end)
    }
}

/// Gardener's configuration with this interval.
fn config(interval: &str) -> ProberConfig {
    let text = fixtures::prober(&format!("probeInterval: {interval}"), "0s");
    let parsed = prober::parse(text.as_bytes(), UnknownFields::Refused);
    parsed.unwrap().config
}

/// The context of a process whose seed is not asked anything.
fn context(clock: Clock) -> Arc<ProbeContext> {
    let seed = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    Arc::new(ProbeContext {
        seed: kube::Client::try_from(seed).unwrap(),
        clock,
        identity: "lease-probe-0".into(),
        random: Box::new(rand::random),
        probing: Arc::default(),
        close: Arc::default(),
    })
}

/// The name of a node by its number.
fn name(node: usize) -> Arc<str> {
    format!("node-{node}").into()
}

/// That many nodes with a Machine each.
fn nodes_and_machines(count: usize) -> (Vec<NodeItem>, Vec<MachineItem>) {
    let both = (0..count).map(name).map(|name| {
        let node = NodeItem {
            name: name.clone(),
            pool: None,
            zone: None,
            provider_id: None,
            not_managed_by_mcm: false,
            conditions: vec![],
        };
        let machine = MachineItem {
            name: name.clone(),
            node: Some(name),
            provider_id: None,
            phase: MachinePhase::Other,
        };
        (node, machine)
    });
    both.unzip()
}

/// Probes the shoot for [`LASTS`], under a clock of its own that is paused.
pub(crate) fn run(shoot: TestShoot, interval: &str) -> Observed {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(probe(shoot, config(interval)))
}

async fn probe(shoot: TestShoot, config: ProberConfig) -> Observed {
    let clock = Clock::start();
    let began = clock.now_micros();
    let observed = Arc::new(Mutex::new(Observed::default()));
    let none = || Err(ProbeFailure::Kubeconfig("none is needed".to_owned()));
    let external = (!shoot.external.is_empty()).then(none);
    let world = ScriptedShoot {
        answers: shoot.external.clone().into_iter(),
        shoot: Arc::new(shoot),
        clock,
        began,
        observed: observed.clone(),
    };
    let inputs = ProbeInputs {
        settings: Arc::new(ShootSettings::default()),
        config: Arc::new(config),
        internal: none(),
        external,
    };
    let (_changes, inputs) = watch::channel(inputs);
    let prober = Prober::new(context(clock), inputs, world.clone(), world.clone(), world);
    let lasts = Duration::from_millis(LASTS.unsigned_abs());
    let run = prober.run(1, CancellationToken::new());
    assert!(
        tokio::time::timeout(lasts, run).await.is_err(),
        "the prober ended"
    );
    std::mem::take(&mut *observed.lock())
}

#[derive(Clone)]
struct ScriptedShoot {
    answers: std::vec::IntoIter<Result<(), ProbeFailure>>,
    shoot: Arc<TestShoot>,
    clock: Clock,
    began: i64,
    observed: Arc<Mutex<Observed>>,
}

impl ScriptedShoot {
    fn now(&self) -> Millis {
        (self.clock.now_micros() - self.began) / 1_000
    }
}

impl ProbeReporter for ScriptedShoot {
    fn verdict(&self, verdict: Verdict) {
        let now = self.now();
        let mut observed = self.observed.lock();
        if let Some(last) = observed.probes.last_mut() {
            last.1 = now;
        }
        observed.reported.push((now, verdict.outcome));
    }

    fn failure(&self, endpoint: Endpoint, failure: &ProbeFailure) {
        let is_throttled = matches!(
            failure,
            ProbeFailure::Throttled(_) | ProbeFailure::MachinesThrottled(_)
        );
        let is_expected = endpoint == Endpoint::External || is_throttled;
        assert!(is_expected, "{failure}");
        self.observed.lock().failures.push((endpoint, failure.as_str()));
    }
}

impl ShootClient for ScriptedShoot {
    async fn leases(&mut self, _: &Access, _: Budget) -> Result<LeaseList, ProbeFailure> {
        let (started, sent) = (self.now(), UnixTime(self.clock.now_micros()));
        self.observed.lock().probes.push((started, Millis::MAX));
        if started < self.shoot.throttles_until {
            return Err(ProbeFailure::Throttled(Some(Duration::from_secs(1))));
        }
        let half = Duration::from_millis(self.shoot.leases_take.unsigned_abs()) / 2;
        tokio::time::sleep(half).await;
        let now = self.now();
        // A control plane writes all the time.
        let revision = |at: Millis| (at + 1_000_000_000).unsigned_abs();
        let lease = |node| {
            let last = self.shoot.last(node, now);
            LeaseItem {
                name: name(node),
                revision: last.map_or(0, revision),
                renew_time: last
                    .map(|millis| jiff::Timestamp::from_microsecond(self.began + millis * 1_000).unwrap()),
                lease_duration_seconds: Some(40),
            }
        };
        let leases = (0..self.shoot.renewals.len()).map(lease).collect();
        tokio::time::sleep(half).await;
        Ok(LeaseList {
            leases,
            malformed: 0,
            revision: revision(now),
            sent,
            received: UnixTime(self.clock.now_micros()),
        })
    }

    async fn count_nodes(&mut self, _: Budget) -> Option<usize> {
        Some(self.shoot.renewals.len())
    }

    async fn nodes_and_machines(
        &mut self,
        _: &Access,
        _: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), ProbeFailure> {
        let now = self.now();
        self.observed.lock().nodes_listed.push(now);
        if now < self.shoot.seed_throttles_until {
            let wait = (self.shoot.seed_throttles_until - now).unsigned_abs();
            let wait = Duration::from_secs(wait.div_ceil(1_000));
            return Err(ProbeFailure::MachinesThrottled(Some(wait)));
        }
        tokio::time::sleep(Duration::from_millis(self.shoot.nodes_take.unsigned_abs())).await;
        Ok(nodes_and_machines(self.shoot.renewals.len()))
    }

    async fn disconnected(&self) {
        if self.now() >= self.shoot.throttles_until {
            std::future::pending().await
        }
    }

    fn take_suspicion(&mut self) -> Option<Suspicion> {
        None
    }
}

impl ExternalEndpoint for ScriptedShoot {
    async fn answers(&mut self, _: &Access, _: Budget) -> Result<(), ProbeFailure> {
        match self.answers.next() {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}
