//! Hostile API servers of every kind beside honest ones, with a memory limit: are the honest shoots probed in time, is
//! a loss among them reported in time, and does the process survive?

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::sync::oneshot;
use watchdog_proto::probe::v1::Outcome;
use watchdog_sandbox::hostile::{HostileServer, Hostility};
use watchdog_test_support::fixtures::{self, PROBE_SECRET};
use watchdog_test_support::real::{create_cluster, create_kubeconfig_secret, create_namespace};

use super::loss::{crossing, lags};
use super::{Millis, ScrapedHistogram, prober_config, round, usage_of};
use crate::fleet::admin::Loss;
use crate::fleet::seeding;
use crate::peak_memory;
use crate::rig::memory_limit::MemoryLimit;
use crate::rig::subscriber::Subscriber;
use crate::rig::{Rig, RigOptions};
use crate::usage::load_average;

/// Honest shoots are healthy, and lost, within this time.
const BOUND: Duration = Duration::from_secs(180);

/// Begins the names of hostile shoots.
const HOSTILE: &str = "shoot--hostile--";

/// How late probes start, as lease-probe reports it.
const SCHEDULE_LAG: &str = "watchdog_probe_schedule_lag_seconds";

/// How late a loss is reported, as lease-probe reports it: from the instant at which the rules find it.
const DETECTION_LAG: &str = "watchdog_detection_lag_seconds";

/// The parameters of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct HostileOptions {
    /// Honest shoots
    #[arg(long, default_value_t = 1_000)]
    pub shoots: usize,
    /// Nodes of each
    #[arg(long, default_value_t = 20)]
    pub nodes: usize,
    /// Hostile shoots, of each kind as many
    #[arg(long, default_value_t = 200)]
    pub hostile: usize,
    /// Only these kinds, by their names in the source; default: all
    #[arg(long, value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// Limit of the memory of lease-probe, in MiB
    #[arg(long, default_value_t = 512)]
    pub memory: u64,
    /// Honest shoots that lose all nodes
    #[arg(long, default_value_t = 100)]
    pub lost: usize,
    /// Mean seconds between two probes of a shoot
    #[arg(long, default_value_t = 10.0)]
    pub interval: f64,
    /// Seconds of measuring before the loss
    #[arg(long, default_value_t = 60.0)]
    pub window: f64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "the names, with their units, are what readers of the JSON see"
)]
pub struct Outcomes {
    pub scenario: &'static str,
    pub shoots: usize,
    pub nodes: usize,
    pub hostile: usize,
    pub lost: usize,
    pub memory_limit_mib: u64,
    pub load_average_before: f64,
    pub cores: f64,
    pub schedule_lag_p50_below_ms: Option<f64>,
    pub schedule_lag_p99_below_ms: Option<f64>,
    /// Between two lists of one honest shoot.
    pub longest_gap_ms: f64,
    pub detection_lag_p50_below_ms: Option<f64>,
    pub detection_lag_p99_below_ms: Option<f64>,
    /// From the age at which enough leases may count as expired to the verdict at the subscriber. The proof that their
    /// kubelets are silent may take longer.
    pub age_to_verdict: Option<Millis>,
    pub outcomes_of_hostile: BTreeMap<String, usize>,
    pub peak_resident_mib: f64,
    pub peak_limited_mib: f64,
}

impl Outcomes {
    /// Succeeds if the honest shoots are served and the memory stayed below the limit.
    ///
    /// # Errors
    /// Names the first target that was missed.
    pub fn check(&self) -> anyhow::Result<()> {
        let below = |value: Option<f64>, most: f64| value.is_some_and(|value| value <= most);
        ensure!(below(self.schedule_lag_p99_below_ms, 250.0), "probes start late");
        ensure!(
            below(self.detection_lag_p99_below_ms, 250.0),
            "a loss is reported late"
        );
        ensure!(
            self.peak_resident_mib < self.memory_limit_mib as f64,
            "too much memory"
        );
        Ok(())
    }
}

/// Servers in a thread of their own, so that they do not delay the clocks of the measurement. They end with this value.
struct Servers {
    kubeconfigs: Vec<String>,
    _end: oneshot::Sender<()>,
}

impl Servers {
    async fn start(kinds: Vec<Hostility>, count: usize) -> anyhow::Result<Self> {
        let (end, ended) = oneshot::channel::<()>();
        let (ready, started) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                let mut servers = Vec::new();
                for (number, kind) in kinds.iter().cycle().take(count).enumerate() {
                    let h2 = (number / kinds.len()).is_multiple_of(2);
                    servers.push(HostileServer::start(*kind, h2).await);
                }
                let kubeconfig = |server: &Result<HostileServer, _>| {
                    server.as_ref().ok().map(|server| server.kubeconfig.clone())
                };
                let all: Option<Vec<String>> = servers.iter().map(kubeconfig).collect();
                // Nobody waits for it when the measurement has failed.
                let _ = ready.send(all);
                let _ = ended.await;
            });
        });
        Ok(Self {
            kubeconfigs: started.await?.context("start the hostile servers")?,
            _end: end,
        })
    }
}

fn kinds(options: &HostileOptions) -> anyhow::Result<Vec<Hostility>> {
    let is_wanted = |kind: &Hostility| {
        options.kinds.is_empty() || options.kinds.iter().any(|name| *name == format!("{kind:?}"))
    };
    let kinds: Vec<_> = Hostility::ALL.into_iter().filter(is_wanted).collect();
    ensure!(!kinds.is_empty(), "no kind has such a name");
    Ok(kinds)
}

/// Measures.
///
/// # Errors
/// When something does not come up, lease-probe ends, or a loss is not reported or falsely so.
pub async fn run(options: HostileOptions) -> anyhow::Result<Outcomes> {
    let load_average_before = load_average();
    let interval = Duration::from_secs_f64(options.interval);
    let rig = Rig::start(RigOptions {
        shoots: options.shoots,
        nodes: options.nodes,
        machines: true,
        dependants: false,
        real: false,
        prober: prober_config(interval),
    })
    .await?;
    let servers = Servers::start(kinds(&options)?, options.hostile).await?;
    put_on_seed(&rig, &servers.kubeconfigs).await?;
    let services = rig.lease_probes(1).await?;
    let pid = services.first().context("one replica")?.process.id();
    let limit = MemoryLimit::of_process(pid, options.memory)?;
    let subscriber = Subscriber::start(&rig.setup, &services).await?;
    subscriber.until(options.shoots, Outcome::Healthy, BOUND).await?;
    let is_honest = |shoot: &str| !shoot.starts_with(HOSTILE);
    subscriber
        .until_observed(is_honest, Outcome::Healthy, 0, BOUND)
        .await?;
    tokio::time::sleep(interval * 2).await;
    rig.admin.mark().await?;
    drop(subscriber.take_changes());
    let before = (
        usage_of(&services)?.cpu,
        ScrapedHistogram::read(&services, SCHEDULE_LAG).await?,
    );
    tokio::time::sleep(Duration::from_secs_f64(options.window)).await;
    let cpu = (usage_of(&services)?.cpu - before.0).as_secs_f64();
    let lag = ScrapedHistogram::read(&services, SCHEDULE_LAG)
        .await?
        .since(&before.1);
    let gaps = rig.admin.shoots().await?;
    let longest_gap = gaps.iter().map(|shoot| shoot.longest_gap).max().unwrap_or(0);
    let changes = subscriber.take_changes();
    ensure!(
        changes.iter().all(|change| !is_honest(&change.shoot)),
        "an honest shoot changed"
    );
    rig.admin
        .lose(Loss {
            shoots: options.lost,
            fraction: 1.0,
            last_within_millis: 1_000,
        })
        .await?;
    subscriber
        .until(options.lost, Outcome::LeasesExpired, BOUND)
        .await?;
    let latest = subscriber.latest();
    let lost: Vec<_> = rig.admin.shoots().await?.into_iter().take(options.lost).collect();
    let detection = ScrapedHistogram::read(&services, DETECTION_LAG).await?;
    let mut outcomes_of_hostile: BTreeMap<String, usize> = BTreeMap::new();
    for (_, latest) in latest.iter().filter(|(shoot, _)| !is_honest(shoot)) {
        ensure!(
            !matches!(
                latest.outcome,
                Outcome::LeasesExpired | Outcome::ExternalUnreachable
            ),
            "a hostile shoot is reported as lost"
        );
        *outcomes_of_hostile
            .entry(latest.outcome.as_str_name().to_owned())
            .or_default() += 1;
    }
    let (resident, limited) = (peak_memory(pid)?, limit.most_used_mib()?);
    // The group can be removed when its process has ended.
    drop(services);
    drop(limit);
    Ok(Outcomes {
        scenario: "hostile",
        shoots: options.shoots,
        nodes: options.nodes,
        hostile: options.hostile,
        lost: options.lost,
        memory_limit_mib: options.memory,
        load_average_before,
        cores: round(cpu / options.window),
        schedule_lag_p50_below_ms: lag.at_most_millis(50),
        schedule_lag_p99_below_ms: lag.at_most_millis(99),
        longest_gap_ms: round(longest_gap as f64 / 1e3),
        detection_lag_p50_below_ms: detection.at_most_millis(50),
        detection_lag_p99_below_ms: detection.at_most_millis(99),
        age_to_verdict: Millis::of_micros(lags(&latest, &lost, crossing)),
        outcomes_of_hostile,
        peak_resident_mib: round(resident),
        peak_limited_mib: round(limited),
    })
}

async fn put_on_seed(rig: &Rig, kubeconfigs: &[String]) -> anyhow::Result<()> {
    let file = rig
        .scratch
        .write("hostile-seed.kubeconfig", &rig.seed.kubeconfig)?;
    let client = seeding::client(&file).await?;
    for (index, kubeconfig) in kubeconfigs.iter().enumerate() {
        let name = format!("{HOSTILE}{index:05}");
        create_namespace(&client, &name).await?;
        create_kubeconfig_secret(&client, &name, PROBE_SECRET, kubeconfig).await?;
        create_cluster(&client, &name, fixtures::shoot("40s")).await?;
    }
    Ok(())
}

impl std::fmt::Display for Outcomes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} honest shoots x {} nodes beside {} hostile ones, {} MiB; load average before: {}",
            self.shoots, self.nodes, self.hostile, self.memory_limit_mib, self.load_average_before
        )?;
        writeln!(
            f,
            "  {} cores; lag of the schedule below {:?} ms (p50), {:?} ms (p99); longest gap of an honest shoot {} ms",
            self.cores, self.schedule_lag_p50_below_ms, self.schedule_lag_p99_below_ms, self.longest_gap_ms
        )?;
        let age = self
            .age_to_verdict
            .map_or("none".to_owned(), |age| age.to_string());
        writeln!(
            f,
            "  {} lost: lag of the detection below {:?} ms (p50), {:?} ms (p99); age of 32 s to verdict: {age}",
            self.lost, self.detection_lag_p50_below_ms, self.detection_lag_p99_below_ms
        )?;
        writeln!(
            f,
            "  memory: {} MiB resident at most, {} MiB in the cgroup; hostile shoots: {:?}",
            self.peak_resident_mib, self.peak_limited_mib, self.outcomes_of_hostile
        )
    }
}
