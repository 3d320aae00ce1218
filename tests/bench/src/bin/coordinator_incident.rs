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
use serde_json::{Value, json};
use watchdog_bench::usage::{Usage, load_average};
use watchdog_bench::{Spread, busiest_second, micros_since, print, round};
use watchdog_proto::scaling::v1::{Direction, FlowState, ListScalingRequest, ShootScaling};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiOptions, ApiServer, AuditEntry, Fault, FaultAction};
use watchdog_test_support::coordinator::Coordinator;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
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
const DEPENDANTS: [(&str, i64); 3] = [(KCM, 2), (MCM, 1), (CA, 1)];

/// Writes on the dependants of one shoot: one each down; one to restore each and one to clean it up.
fn writes_in(direction: Direction) -> usize {
    if direction == Direction::Down {
        DEPENDANTS.len()
    } else {
        2 * DEPENDANTS.len()
    }
}

/// The verdict that leads to a direction.
fn outcome(direction: Direction) -> Outcome {
    if direction == Direction::Down {
        Outcome::LeasesExpired
    } else {
        Outcome::Healthy
    }
}

/// The name by which the coordinator is known to the API server.
const USER: &str = "coordinator";

/// A coordinator that has not done its work by then hangs.
const BOUND: Duration = Duration::from_secs(300);

/// How long is waited for all shoots while watches fail: longer than kube-controller-manager's grace period.
const FAILING_BOUND: Duration = Duration::from_secs(120);

/// From the verdict to the first write of a single shoot, p99.
const TARGET_MILLIS: f64 = 50.0;

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
    dependants_of_each: usize,
    request_delay_ms: u64,
    load_average_before: f64,
    rest_seconds: f64,
    /// Requests to the seed while nothing happens.
    requests_at_rest: BTreeMap<String, usize>,
    one_lost: OneShoot,
    one_found: OneShoot,
    all_lost: AllShoots,
    all_found: AllShoots,
    peak_mib: f64,
    load_average_after: f64,
}

/// One shoot is lost, or found, again and again.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OneShoot {
    verdict_to_first_write: Spread,
    first_write_target_met: bool,
    verdict_to_last_write: Spread,
    /// With the controllers.
    conflicts: usize,
}

/// All shoots get the same verdict at once.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AllShoots {
    writes: usize,
    conflicts: usize,
    other_requests: usize,
    first_write_after_ms: f64,
    last_write_after_seconds: f64,
    writes_per_second: f64,
    requests_in_busiest_second: usize,
    first_write_of_each_shoot: Option<Spread>,
    last_write_of_each_shoot: Option<Spread>,
}

/// All shoots are lost while watches fail.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AllDown {
    shoots: usize,
    /// Shoots whose kube-controller-manager was scaled to 0.
    down: usize,
    /// From the verdict to the write, in milliseconds.
    kube_controller_manager_down: Option<Spread>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let load_average_before = load_average();
    let bench = CoordinatorBench::start(options.shoots).await?;
    if options.failing_watches {
        let failing = tokio::spawn(fail_watches(bench.api.clone()));
        let down = bench.until_down().await;
        failing.abort();
        return print(&down?);
    }
    let requests_at_rest = bench.rest().await;
    let (one_lost, one_found) = bench.one_shoot().await?;
    let all_lost = bench.all_shoots(Direction::Down).await?;
    let all_found = bench.all_shoots(Direction::Up).await?;
    print(&CoordinatorFigures {
        shoots: options.shoots,
        dependants_of_each: DEPENDANTS.len(),
        request_delay_ms: DELAY_MILLIS,
        load_average_before,
        rest_seconds: REST.as_secs_f64(),
        requests_at_rest,
        one_lost,
        one_found,
        all_lost,
        all_found,
        peak_mib: round(Usage::of_process(bench.coordinator.process.id())?.peak_mib),
        load_average_after: load_average(),
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
        let options = ApiOptions {
            namespaces: vec!["garden".to_owned()],
            watch_log: 1 << 16,
            audit_log: 1 << 17,
            ..ApiOptions::default()
        };
        let api = ApiServer::start(options).await?;
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
        let coordinator = Coordinator::start(&scratch, &config, &api.kubeconfig(USER), &probe).await?;
        let bench = Self {
            api,
            probe,
            coordinator,
            names,
            _workloads: workloads,
        };
        bench.until_all(Direction::Up).await?;
        let delay = FaultAction::Delay { millis: DELAY_MILLIS };
        bench.api.inject(Fault::always(delay).path("/apis/").user(USER));
        Ok(bench)
    }

    /// The requests while nothing happens.
    async fn rest(&self) -> BTreeMap<String, usize> {
        let begin = self.last_id();
        tokio::time::sleep(REST).await;
        let mut kinds = BTreeMap::new();
        for entry in self.requests(begin) {
            *kinds.entry(format!("{} {}", entry.verb, entry.path)).or_default() += 1;
        }
        kinds
    }

    /// One of the shoots is lost and found again.
    async fn one_shoot(&self) -> anyhow::Result<(OneShoot, OneShoot)> {
        let one = self.names.get(self.names.len() / 2).context("no shoot")?;
        let (mut lost, mut found) = (Vec::new(), Vec::new());
        for _ in 0..REPETITIONS {
            for (direction, times) in [(Direction::Down, &mut lost), (Direction::Up, &mut found)] {
                let (begin, given_at) = (self.last_id(), Timestamp::now());
                self.probe.say([one.as_str()], outcome(direction));
                self.coordinator.until_settled(one, direction, BOUND).await?;
                let mut writes = self.writes(begin);
                // The controller reports on a Deployment whose annotations have changed: it may come in between.
                let all = writes.len();
                writes.retain(|write| write.code == 200);
                let expected = writes_in(direction);
                ensure!(writes.len() == expected, "{} writes {direction:?}", writes.len());
                let first = micros_since(given_at, writes.first().context("no write")?)?;
                let last = micros_since(given_at, writes.last().context("no write")?)?;
                times.push((first, last, all - expected));
            }
        }
        let figures = |times: Vec<(i64, i64, usize)>| {
            let first = Spread::of_micros(times.iter().map(|(first, ..)| *first))?;
            Some(OneShoot {
                verdict_to_first_write: first,
                first_write_target_met: first.p99 <= TARGET_MILLIS,
                verdict_to_last_write: Spread::of_micros(times.iter().map(|(_, last, _)| *last))?,
                conflicts: times.iter().map(|(.., conflicts)| conflicts).sum(),
            })
        };
        let both = figures(lost).zip(figures(found));
        both.context("nothing was measured")
    }

    /// All shoots get the same verdict at once.
    async fn all_shoots(&self, direction: Direction) -> anyhow::Result<AllShoots> {
        let (begin, given_at) = (self.last_id(), Timestamp::now());
        let names = self.names.iter().map(String::as_str);
        self.probe.say(names, outcome(direction));
        self.until_all(direction).await?;
        let writes = self.writes(begin);
        let applied = writes.iter().filter(|write| write.code == 200).count();
        ensure!(
            applied == writes_in(direction) * self.names.len(),
            "{applied} writes were applied"
        );
        let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
        for write in &writes {
            let shoot = write.path.split('/').nth(5).unwrap_or_default();
            let at = micros_since(given_at, write)?;
            first.entry(shoot).or_insert(at);
            last.insert(shoot, at);
        }
        let mut requests = self.requests(begin);
        requests.retain(|entry| !entry.path.contains("/leases") && !entry.path.contains("/events"));
        let earliest = *first.values().min().context("nothing was written")? as f64 / 1e3;
        let whole = *last.values().max().context("nothing was written")? as f64 / 1e6;
        Ok(AllShoots {
            writes: writes.len(),
            conflicts: writes.len() - applied,
            other_requests: requests.len() - writes.len(),
            first_write_after_ms: round(earliest),
            last_write_after_seconds: round(whole),
            writes_per_second: round(writes.len() as f64 / whole),
            requests_in_busiest_second: busiest_second(requests.iter().map(|entry| entry.time)),
            first_write_of_each_shoot: Spread::of_micros(first.into_values()),
            last_write_of_each_shoot: Spread::of_micros(last.into_values()),
        })
    }

    /// All shoots are lost: how many are down, and when, after at most [`FAILING_BOUND`].
    async fn until_down(&self) -> anyhow::Result<AllDown> {
        let (begin, given_at) = (self.last_id(), Timestamp::now());
        let names = self.names.iter().map(String::as_str);
        self.probe.say(names, outcome(Direction::Down));
        // Those that are not down by then are what is measured.
        let all = tokio::time::timeout(FAILING_BOUND, self.until_all(Direction::Down)).await;
        all.unwrap_or(Ok(()))?;
        let mut down = BTreeMap::new();
        for write in self.writes(begin) {
            if write.code == 200 && write.path.ends_with(KCM) {
                let shoot = write.path.split('/').nth(5).unwrap_or_default().to_owned();
                down.insert(shoot, micros_since(given_at, &write)?);
            }
        }
        Ok(AllDown {
            shoots: self.names.len(),
            down: down.len(),
            kube_controller_manager_down: Spread::of_micros(down.into_values()),
        })
    }

    async fn until_all(&self, direction: Direction) -> anyhow::Result<()> {
        let settled = || async {
            let mut settled = 0;
            let mut page_token = String::new();
            loop {
                let request = ListScalingRequest {
                    page_size: 1_000,
                    page_token,
                    ..Default::default()
                };
                let page = self.coordinator.client.clone().list_scaling(request).await?;
                let page = page.into_inner();
                let is = |s: &ShootScaling| s.direction() == direction && s.state() == FlowState::Settled;
                settled += page.scalings.iter().filter(|scaling| is(scaling)).count();
                page_token = page.next_page_token;
                if page_token.is_empty() {
                    return Ok(settled == self.names.len());
                }
            }
        };
        wait::until_true(&format!("all are settled {direction:?}"), BOUND, settled).await
    }

    fn last_id(&self) -> u64 {
        self.api.counters().requests
    }

    fn requests(&self, since: u64) -> Vec<AuditEntry> {
        let mut entries = self.api.audit_since(since);
        entries.retain(|entry| entry.user == USER);
        entries
    }

    /// Writes on the dependants.
    fn writes(&self, since: u64) -> Vec<AuditEntry> {
        let mut entries = self.requests(since);
        entries.retain(|entry| entry.is_write() && entry.path.contains("/deployments/"));
        entries.sort_by_key(|entry| entry.time);
        entries
    }
}

fn deployment(name: &str, replicas: i64) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": name, "image": "simulated"}]},
            },
        },
    })
}
