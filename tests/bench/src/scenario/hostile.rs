//! Hostile API servers of every kind beside honest ones, with a memory limit: are the honest shoots probed in time, is
//! a loss among them reported in time, and does the process survive?

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::runtime::Builder;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::stream::v1::Scope;
use watchdog_sandbox::hostile::{HostileServer, Hostility};
use watchdog_test_support::fixtures::{self, PROBE_SECRET};
use watchdog_test_support::real::{create_cluster, create_kubeconfig_secret, create_namespace};
use watchdog_test_support::resource_usage::ProcessUsage;
use watchdog_test_support::sandboxed;
use watchdog_test_support::separate_runtime::SeparateRuntime;

use super::{INTERVAL, SCHEDULE_LAG, ScrapedHistogram};
use crate::rig::memory_limit::MemoryLimit;
use crate::rig::subscriber::{OutcomeChange, Subscriber};
use crate::rig::{Rig, RigOptions};
use crate::{mib, print, round};

/// Honest shoots are healthy, and lost, within this time.
const BOUND: Duration = Duration::from_secs(180);

/// Begins the names of hostile shoots.
const HOSTILE: &str = "shoot--hostile--";

/// How late a loss is reported, as lease-probe reports it: from the instant at which the rules find it.
const DETECTION_LAG: &str = "watchdog_detection_lag_seconds";

/// Honest shoots.
const SHOOTS: usize = 1_000;

/// Nodes of each.
const NODES: usize = 20;

/// Hostile shoots, of each kind as many.
const HOSTILE_SHOOTS: usize = 200;

/// Limit of the memory of lease-probe, in MiB.
const MEMORY_LIMIT_MIB: u64 = 512;

/// Honest shoots that lose all nodes, within a second.
const LOST: usize = 100;

/// Time of measuring before the loss.
const WINDOW: Duration = Duration::from_secs(60);

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HostileFigures {
    scenario: &'static str,
    cores: f64,
    schedule_lag_p50_below_ms: Option<f64>,
    schedule_lag_p99_below_ms: Option<f64>,
    detection_lag_p50_below_ms: Option<f64>,
    detection_lag_p99_below_ms: Option<f64>,
    peak_resident_mib: f64,
    peak_limited_mib: f64,
}

impl HostileFigures {
    /// Succeeds if the honest shoots are served and the memory stayed below the limit.
    fn check(&self) -> anyhow::Result<()> {
        let below = |value: Option<f64>, most: f64| value.is_some_and(|value| value <= most);
        ensure!(below(self.schedule_lag_p99_below_ms, 250.0), "probes start late");
        ensure!(
            below(self.detection_lag_p99_below_ms, 250.0),
            "a loss is reported late"
        );
        ensure!(
            self.peak_resident_mib < MEMORY_LIMIT_MIB as f64,
            "too much memory"
        );
        Ok(())
    }
}

/// Starts servers of each kind in turn, on a thread of their own, so that they do not delay the clocks of the
/// measurement.
async fn start_servers() -> anyhow::Result<(Vec<HostileServer>, SeparateRuntime)> {
    let mut threads = Builder::new_multi_thread();
    threads.worker_threads(1);
    let runtime = SeparateRuntime::start(threads)?;
    let servers = runtime.run(async {
        let mut servers = Vec::new();
        let kinds = Hostility::ALL.into_iter().cycle().take(HOSTILE_SHOOTS);
        for (number, kind) in kinds.enumerate() {
            let h2 = (number / Hostility::ALL.len()).is_multiple_of(2);
            servers.push(HostileServer::start(kind, h2).await?);
        }
        Ok(servers)
    });
    Ok((servers.await?, runtime))
}

/// Measures.
pub async fn run() -> anyhow::Result<()> {
    let rig = Rig::start(RigOptions::new(SHOOTS, NODES, INTERVAL)).await?;
    let (servers, _runtime) = start_servers().await?;
    put_on_seed(&rig, &servers).await?;
    let services = rig.lease_probes(1).await?;
    let pid = services.first().context("one replica")?.process.id();
    let limit = MemoryLimit::of_process(pid, MEMORY_LIMIT_MIB)?;
    let subscriber = Subscriber::start(&rig.setup, &services, Scope::Replica)?;
    let is_honest = |shoot: &str| !shoot.starts_with(HOSTILE);
    let is_healthy = |last: &OutcomeChange| is_honest(&last.shoot) && last.outcome == Outcome::Healthy;
    subscriber.until_last(SHOOTS, BOUND, is_healthy).await?;
    tokio::time::sleep(INTERVAL * 2).await;
    drop(subscriber.take_changes());
    let used = ProcessUsage::of(&services)?.cpu;
    let lag = ScrapedHistogram::read(&services, SCHEDULE_LAG).await?;
    tokio::time::sleep(WINDOW).await;
    let cpu = (ProcessUsage::of(&services)?.cpu - used).as_secs_f64();
    let lag = ScrapedHistogram::read(&services, SCHEDULE_LAG).await?.since(&lag);
    let changes = subscriber.take_changes();
    ensure!(
        changes.iter().all(|change| !is_honest(&change.shoot)),
        "an honest shoot changed"
    );
    rig.fleet.lose(LOST, Duration::from_secs(1));
    subscriber.until(LOST, Outcome::LeasesExpired, BOUND).await?;
    let detection = ScrapedHistogram::read(&services, DETECTION_LAG).await?;
    for (shoot, latest) in subscriber.latest() {
        let is_lost = matches!(
            latest.outcome,
            Outcome::LeasesExpired | Outcome::ExternalUnreachable
        );
        ensure!(
            is_honest(&shoot) || !is_lost,
            "a hostile shoot is reported as lost"
        );
    }
    let (resident, limited) = (mib(ProcessUsage::of(&services)?.peak_kb), limit.most_used_mib()?);
    // The group can be removed when its process has ended.
    drop(services);
    drop(limit);
    let figures = HostileFigures {
        scenario: "hostile",
        cores: round(cpu / WINDOW.as_secs_f64()),
        schedule_lag_p50_below_ms: lag.at_most_millis(50),
        schedule_lag_p99_below_ms: lag.at_most_millis(99),
        detection_lag_p50_below_ms: detection.at_most_millis(50),
        detection_lag_p99_below_ms: detection.at_most_millis(99),
        peak_resident_mib: resident,
        peak_limited_mib: round(limited),
    };
    print(&figures)?;
    figures.check()
}

async fn put_on_seed(rig: &Rig, servers: &[HostileServer]) -> anyhow::Result<()> {
    let client = sandboxed::client(&rig.kubeconfig).await?;
    for (index, server) in servers.iter().enumerate() {
        let name = format!("{HOSTILE}{index:05}");
        create_namespace(&client, &name).await?;
        create_kubeconfig_secret(&client, &name, PROBE_SECRET, &server.kubeconfig).await?;
        create_cluster(&client, &name, fixtures::shoot("40s")).await?;
    }
    Ok(())
}
