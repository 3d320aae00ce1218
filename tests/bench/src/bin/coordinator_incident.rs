//! Measures the scaling that verdicts lead to, and how soon: one shoot among a thousand is lost and found again and
//! again, then all of them are lost, and found, at the same instant. Measured from outside, at the API server: from the
//! moment at which lease-probe (a stand-in) says it to the requests that change the dependants. The coordinator is a
//! process of its own; its seed and its lease-probe are in this one.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use jiff::Timestamp;
use serde_json::{Value, json};
use watchdog_bench::usage::load_average;
use watchdog_bench::{Spread, peak_memory};
use watchdog_proto::scaling::v1::{Direction, FlowState, ListScalingRequest};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiOptions, ApiServer, AuditEntry, Fault, FaultAction};
use watchdog_test_support::coordinator::Coordinator;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::sandboxed;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

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

/// The name by which the coordinator is known to the API server.
const USER: &str = "coordinator";

/// A coordinator that has not done its work by then hangs.
const BOUND: Duration = Duration::from_secs(300);

/// From the verdict to the first write of a single shoot.
const TARGET: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, Parser)]
struct Args {
    /// Shoots on the seed, with three dependants each
    #[arg(long, default_value_t = 1_000)]
    shoots: usize,
    /// How often the single shoot is lost, and found again
    #[arg(long, default_value_t = 200)]
    repetitions: usize,
    /// How long the API server takes for a request, in milliseconds
    #[arg(long, default_value_t = 5)]
    delay: u64,
    /// How long nothing happens, in seconds
    #[arg(long, default_value_t = 30)]
    rest: u64,
}

/// A seed, its shoots, and the coordinator under test.
struct CoordinatorBench {
    args: Args,
    api: ApiServer,
    probe: FakeProbe,
    coordinator: Coordinator,
    names: Vec<String>,
    _workloads: WorkloadController,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let bench = CoordinatorBench::start(args).await?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{} shoots with {} dependants each; {} ms for a request; load average {:.2}",
        args.shoots,
        DEPENDANTS.len(),
        args.delay,
        load_average()
    )?;
    bench.rest(&mut out).await?;
    bench.one_shoot(&mut out).await?;
    for (outcome, direction) in [
        (Outcome::LeasesExpired, Direction::Down),
        (Outcome::Healthy, Direction::Up),
    ] {
        bench.all_shoots(&mut out, outcome, direction).await?;
    }
    let memory = peak_memory(bench.coordinator.process.id())?;
    writeln!(
        out,
        "memory of the coordinator: {memory:.0} MiB at most; load average {:.2}",
        load_average()
    )?;
    Ok(())
}

impl CoordinatorBench {
    async fn start(args: Args) -> anyhow::Result<Self> {
        let options = ApiOptions {
            namespaces: vec!["garden".to_owned()],
            watch_log: 1 << 16,
            audit_log: 1 << 17,
            ..ApiOptions::default()
        };
        let api = ApiServer::start(options).await?;
        let names: Vec<_> = (0..args.shoots).map(|i| format!("shoot--bench--{i}")).collect();
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
            args,
            api,
            probe,
            coordinator,
            names,
            _workloads: workloads,
        };
        bench.until_all(Direction::Up).await?;
        let delay = FaultAction::Delay { millis: args.delay };
        bench.api.inject(Fault::always(delay).path("/apis/").user(USER));
        Ok(bench)
    }

    /// Nothing happens.
    async fn rest(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let begin = self.last_id();
        tokio::time::sleep(Duration::from_secs(self.args.rest)).await;
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for entry in self.requests(begin) {
            *kinds.entry(format!("{} {}", entry.verb, entry.path)).or_default() += 1;
        }
        writeln!(out, "nothing happens for {} s", self.args.rest)?;
        writeln!(out, "  requests to the seed: {kinds:?}")?;
        Ok(())
    }

    /// One of the shoots is lost and found again.
    async fn one_shoot(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let one = self.names.get(self.names.len() / 2).context("no shoot")?;
        let mut down = (Vec::new(), Vec::new());
        let mut up = (Vec::new(), Vec::new());
        let mut conflicts = 0;
        for _ in 0..self.args.repetitions {
            for (outcome, direction, (first, last)) in [
                (Outcome::LeasesExpired, Direction::Down, &mut down),
                (Outcome::Healthy, Direction::Up, &mut up),
            ] {
                let (begin, given_at) = (self.last_id(), Timestamp::now());
                self.probe.say([one.as_str()], outcome);
                self.coordinator.until_settled(one, direction, BOUND).await?;
                let mut writes = self.writes(begin);
                // The controller reports on a Deployment whose annotations have changed: it may come in between.
                let all = writes.len();
                writes.retain(|write| write.code == 200);
                conflicts += all - writes.len();
                ensure!(
                    writes.len() == writes_in(direction),
                    "{} writes {direction:?}",
                    writes.len()
                );
                first.extend(writes.first().map(|write| since(given_at, write)).transpose()?);
                last.extend(writes.last().map(|write| since(given_at, write)).transpose()?);
            }
        }
        writeln!(
            out,
            "one shoot is lost and found; {conflicts} conflicts with the controllers; load average {:.2}",
            load_average()
        )?;
        for (name, direction, (first, last)) in
            [("lost", Direction::Down, down), ("found", Direction::Up, up)]
        {
            let (first, last) = (spread(first)?, spread(last)?);
            writeln!(
                out,
                "  {name}: from the verdict to the first write: {}",
                precise(first)
            )?;
            writeln!(
                out,
                "  {name}: to the last of {}: {}",
                writes_in(direction),
                precise(last)
            )?;
            if first.p99 > TARGET {
                writeln!(out, "  the target for the first write, p99 {TARGET:?}, is missed")?;
            }
        }
        Ok(())
    }

    /// All shoots get the same verdict at once.
    async fn all_shoots(
        &self,
        out: &mut impl Write,
        outcome: Outcome,
        direction: Direction,
    ) -> anyhow::Result<()> {
        let (begin, given_at) = (self.last_id(), Timestamp::now());
        self.probe.say(self.names.iter().map(String::as_str), outcome);
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
            let at = since(given_at, write)?;
            first.entry(shoot).or_insert(at);
            last.insert(shoot, at);
        }
        let all_requests = self.requests(begin);
        let mut requests = Vec::with_capacity(all_requests.len());
        for entry in all_requests {
            if !entry.path.contains("/leases") && !entry.path.contains("/events") {
                requests.push(since(given_at, &entry)?);
            }
        }
        let whole = writes.last().map(|write| since(given_at, write)).transpose()?;
        let whole = whole.context("nothing was written")?;
        writeln!(out, "all {} shoots {direction:?} at once", self.names.len())?;
        writeln!(
            out,
            "  {} writes, {} of them conflicts, and {} other requests in {:.2} s: {:.0} writes a second; at most {} \
             requests within a second",
            writes.len(),
            writes.len() - applied,
            requests.len() - writes.len(),
            whole.as_secs_f64(),
            writes.len() as f64 / whole.as_secs_f64(),
            busiest_second(&requests)
        )?;
        let first: Vec<_> = first.into_values().collect();
        let earliest = first.iter().min().context("nothing was written")?;
        writeln!(
            out,
            "  first write of all after {:.1} ms; of each shoot: {}",
            earliest.as_secs_f64() * 1e3,
            spread(first.clone())?
        )?;
        writeln!(
            out,
            "  last write of each shoot: {}",
            spread(last.into_values().collect())?
        )?;
        Ok(())
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
                let is = |s: &watchdog_proto::scaling::v1::ShootScaling| {
                    s.direction() == direction && s.state() == FlowState::Settled
                };
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

fn since(given_at: Timestamp, entry: &AuditEntry) -> anyhow::Result<Duration> {
    Ok(entry.time.duration_since(given_at).try_into()?)
}

fn spread(times: Vec<Duration>) -> anyhow::Result<Spread> {
    Spread::of(times).context("nothing was measured")
}

/// With a tenth of a millisecond.
fn precise(spread: Spread) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms ({})",
        ms(spread.p50),
        ms(spread.p99),
        ms(spread.max),
        spread.count
    )
}

/// The most that came within one second.
fn busiest_second(times: &[Duration]) -> usize {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let within = |(i, from): (usize, &Duration)| {
        let end = *from + Duration::from_secs(1);
        sorted.iter().skip(i).take_while(|time| **time < end).count()
    };
    sorted.iter().enumerate().map(within).max().unwrap_or_default()
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
