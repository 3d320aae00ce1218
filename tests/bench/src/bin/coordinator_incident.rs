//! Measures the scaling that verdicts lead to, and how soon: one shoot among a thousand is lost and found again and
//! again, then all of them are lost, and found, at the same instant. Measured from outside, at the API server: from the
//! moment at which lease-probe (a stand-in) says it to the requests that change the dependants. The coordinator is a
//! process of its own; its seed and its lease-probe are in this one.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use watchdog_bench::{Spread, busiest_second, mib, micros_since, print, requests_by_kind, sandbox_seed};
use watchdog_proto::scaling::v1::{Direction, FlowState, GetSeedSummaryRequest};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiServer, AuditEntry, Fault, FaultAction};
use watchdog_test_support::coordinator::Coordinator;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::real::deployment;
use watchdog_test_support::resource_usage::ProcessUsage;
use watchdog_test_support::sandboxed;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

/// The scenario to measure.
#[derive(Debug, Parser)]
struct Options {
    /// Shoots on the seed.
    #[arg(long, default_value_t = 1_000)]
    shoots: usize,
    /// While all shoots are lost, two of the coordinator's watches (of the Clusters and of kube-controller-manager)
    /// fail every 1 to 5 s. Only the loss of all shoots is measured.
    #[arg(long)]
    failing_watches: bool,
}

/// How often the single shoot is lost, and found again.
const REPETITIONS: usize = 200;

/// How long the API server takes for a request.
const DELAY_MILLIS: u64 = 5;

/// How long nothing happens.
const REST: Duration = Duration::from_secs(30);

/// The dependants and their replicas.
const DEPENDANTS: [(&str, i32); 3] = [(KCM, 2), (MCM, 1), (CA, 1)];

/// The name by which the coordinator is known to the API server.
const USER: &str = "coordinator";

/// A coordinator that has not done its work by then hangs.
const BOUND: Duration = Duration::from_secs(300);

/// How long is waited for all shoots while watches fail: longer than kube-controller-manager's grace period.
const FAILING_BOUND: Duration = Duration::from_secs(120);

/// A seed, its shoots, and the coordinator under test.
struct CoordinatorBench {
    api: ApiServer,
    probe: FakeProbe,
    coordinator: Coordinator,
    names: Vec<String>,
    _workloads: WorkloadController,
}

/// The figures.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CoordinatorFigures {
    shoots: usize,
    /// Requests to the seed while nothing happens, for [`REST`].
    requests_at_rest: BTreeMap<String, usize>,
    one_lost: FlowFigures,
    one_found: FlowFigures,
    all_lost: FlowFigures,
    all_found: FlowFigures,
    peak_mib: f64,
}

/// The effects of the same verdict on one shoot again and again, or on all at once.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FlowFigures {
    writes: usize,
    /// With the controllers.
    conflicts: usize,
    /// The writes among them.
    requests: usize,
    requests_in_busiest_second: usize,
    verdict_to_first_write: Option<Spread>,
    verdict_to_last_write: Option<Spread>,
}

/// A verdict, and the coordinator's requests since, the leader election and Kubernetes Events not counted.
struct Flow {
    given_at: Timestamp,
    requests: Vec<AuditEntry>,
}

impl Flow {
    /// From the verdict to the writes on dependants that took effect, in microseconds, by shoot and in order.
    fn writes(&self) -> anyhow::Result<BTreeMap<&str, Vec<(i64, &AuditEntry)>>> {
        let mut writes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for write in self.requests.iter().filter(|request| is_write(request)) {
            let shoot = write.path.split('/').nth(5).unwrap_or_default();
            // The controller reports on a Deployment whose annotations have changed: it may come in between.
            if write.code == 200 {
                let at = micros_since(self.given_at, write)?;
                writes.entry(shoot).or_default().push((at, write));
            }
        }
        Ok(writes)
    }
}

/// True for writes on the dependants.
fn is_write(request: &AuditEntry) -> bool {
    request.is_write() && request.path.contains("/deployments/")
}

impl FlowFigures {
    fn of(flows: &[Flow]) -> anyhow::Result<Self> {
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for flow in flows {
            for writes in flow.writes()?.into_values() {
                first.extend(writes.first().map(|(at, _)| *at));
                last.extend(writes.last().map(|(at, _)| *at));
            }
        }
        let requests = || flows.iter().flat_map(|flow| &flow.requests);
        let writes = || requests().filter(|request| is_write(request));
        Ok(Self {
            writes: writes().count(),
            conflicts: writes().filter(|write| write.code != 200).count(),
            requests: requests().count(),
            requests_in_busiest_second: busiest_second(requests().map(|request| request.time)),
            verdict_to_first_write: Spread::of_micros(first),
            verdict_to_last_write: Spread::of_micros(last),
        })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let bench = CoordinatorBench::start(options.shoots).await?;
    if options.failing_watches {
        let failing = tokio::spawn(fail_watches(bench.api.clone()));
        let down = bench.until_down().await;
        failing.abort();
        return print(&FlowFigures::of(&[down?])?);
    }
    let begin = bench.last_id();
    tokio::time::sleep(REST).await;
    let requests_at_rest = requests_by_kind(&bench.requests(begin));
    let (mut one_lost, mut one_found) = (Vec::new(), Vec::new());
    let one = bench.names.get(..1).context("no shoot")?;
    for _ in 0..REPETITIONS {
        one_lost.push(bench.flow(one, Direction::Down).await?);
        one_found.push(bench.flow(one, Direction::Up).await?);
    }
    let all_lost = bench.flow(&bench.names, Direction::Down).await?;
    let all_found = bench.flow(&bench.names, Direction::Up).await?;
    print(&CoordinatorFigures {
        shoots: options.shoots,
        requests_at_rest,
        one_lost: FlowFigures::of(&one_lost)?,
        one_found: FlowFigures::of(&one_found)?,
        all_lost: FlowFigures::of(&[all_lost])?,
        all_found: FlowFigures::of(&[all_found])?,
        peak_mib: mib(ProcessUsage::of([&bench.coordinator.service])?.peak_kb),
    })
}

/// Two watches fail again and again, each by itself: it ends, and its connection breaks when it is opened again.
async fn fail_watches(api: ApiServer) {
    let fail = async |watch: &str, pauses: [u64; 5]| {
        for pause in pauses.into_iter().cycle() {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let fault = Fault::always(FaultAction::Cut).verb("watch").user(USER).times(1);
            api.inject(match watch {
                KCM => fault.query(KCM),
                path => fault.path(path),
            });
            api.drop_watches();
        }
    };
    // Between 1 and 5 s, in no common rhythm.
    tokio::join!(
        fail(
            "/apis/extensions.gardener.cloud/",
            [1_900, 4_700, 1_100, 3_300, 2_600]
        ),
        fail(KCM, [3_100, 1_300, 4_300, 2_200, 3_700]),
    );
}

impl CoordinatorBench {
    async fn start(shoots: usize) -> anyhow::Result<Self> {
        let api = sandbox_seed().await?;
        let names: Vec<_> = (0..shoots).map(|i| format!("shoot--bench--{i}")).collect();
        for name in &names {
            api.create(&keys::NAMESPACES, "", json!({"metadata": {"name": name}}))?;
            let cluster = json!({"metadata": {"name": name}, "spec": {"shoot": fixtures::shoot("40s")}});
            api.create(&keys::CLUSTERS, "", cluster)?;
            for (dependant, replicas) in DEPENDANTS {
                api.create(&keys::DEPLOYMENTS, name, deployment(dependant, replicas))?;
            }
        }
        let seed = sandboxed::client(&api.kubeconfig("controllers")).await?;
        let workloads = WorkloadController::start(&seed, WorkloadOptions::new(Duration::ZERO));
        let scratch = Scratch::new("coordinator-incident")?;
        let probe = FakeProbe::start().await?;
        probe.say(names.iter().map(String::as_str), Outcome::Healthy);
        let config = scratch.write("prober.yaml", fixtures::prober("probeInterval: 10s", "0s"))?;
        let (kubeconfig, address) = (api.kubeconfig(USER), probe.address());
        let command = Coordinator::command(&scratch, "coordinator-0", &kubeconfig, &config, address)?;
        let coordinator = Coordinator::start(command, &scratch).await?;
        let bench = Self {
            api,
            probe,
            coordinator,
            names,
            _workloads: workloads,
        };
        bench.until_settled(Direction::Up, 0).await?;
        let delay = FaultAction::Delay { millis: DELAY_MILLIS };
        bench.api.inject(Fault::always(delay).path("/apis/").user(USER));
        Ok(bench)
    }

    /// Gives shoots (one, or all of them) the verdict of a direction, and waits until it is settled.
    async fn flow(&self, shoots: &[String], direction: Direction) -> anyhow::Result<Flow> {
        // One write on each dependant down; one to restore each and one to clean it up.
        let (outcome, writes_on_one) = match direction {
            Direction::Down => (Outcome::LeasesExpired, DEPENDANTS.len()),
            _ => (Outcome::Healthy, 2 * DEPENDANTS.len()),
        };
        let (begin, given_at) = (self.last_id(), Timestamp::now());
        self.probe.say(shoots, outcome);
        self.until_settled(direction, shoots.len()).await?;
        let flow = self.since(begin, given_at);
        let writes: usize = flow.writes()?.values().map(Vec::len).sum();
        ensure!(
            writes == writes_on_one * shoots.len(),
            "{writes} writes {direction:?}"
        );
        Ok(flow)
    }

    /// All shoots are lost: the writes that scaled their kube-controller-manager down within [`FAILING_BOUND`].
    async fn until_down(&self) -> anyhow::Result<Flow> {
        let (begin, given_at) = (self.last_id(), Timestamp::now());
        self.probe.say(&self.names, Outcome::LeasesExpired);
        let all = self.until_settled(Direction::Down, self.names.len());
        // Those that are not down by then are what is measured.
        tokio::time::timeout(FAILING_BOUND, all).await.unwrap_or(Ok(()))?;
        let mut flow = self.since(begin, given_at);
        flow.requests.retain(|request| request.path.ends_with(KCM));
        Ok(flow)
    }

    fn since(&self, begin: u64, given_at: Timestamp) -> Flow {
        let mut requests = self.requests(begin);
        requests.retain(|entry| !entry.path.contains("/leases") && !entry.path.contains("/events"));
        requests.sort_by_key(|request| request.time);
        Flow { given_at, requests }
    }

    /// Waits until everything is settled: this many shoots down, or all up.
    async fn until_settled(&self, direction: Direction, down: usize) -> anyhow::Result<()> {
        let all = self.names.len();
        let wanted = if direction == Direction::Down { down } else { all };
        wait::until_true(&format!("settled {direction:?}"), BOUND, || async {
            let request = GetSeedSummaryRequest::default();
            let answer = self.coordinator.client.clone().get_seed_summary(request).await?;
            let summary = answer.into_inner().summary.unwrap_or_default();
            let in_direction = summary.directions.iter().find(|d| d.direction() == direction);
            let settled = summary.states.iter().find(|s| s.state() == FlowState::Settled);
            let are = |found: Option<u32>, wanted: usize| found.map(|n| n as usize) == Some(wanted);
            Ok(are(in_direction.map(|d| d.shoots), wanted) && are(settled.map(|s| s.shoots), all))
        })
        .await
    }

    fn last_id(&self) -> u64 {
        self.api.counters().requests
    }

    fn requests(&self, since: u64) -> Vec<AuditEntry> {
        let mut entries = self.api.audit_since(since);
        entries.retain(|entry| entry.user == USER);
        entries
    }
}
