//! Hostile API servers of every kind beside honest ones, with a memory limit: are the honest shoots probed in time, is
//! a loss among them reported in time, and does the process survive?

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use watchdog_proto::probe::v1::Outcome;
use watchdog_sandbox::hostile::{HostileServer, Hostility};
use watchdog_test_support::fixtures::{self, PROBE_SECRET};
use watchdog_test_support::real::{create_cluster, create_kubeconfig_secret, create_namespace};

use super::loss::{crossing, lags};
use super::{INTERVAL, SCHEDULE_LAG, ScrapedHistogram};
use crate::fleet::seeding;
use crate::rig::memory_limit::MemoryLimit;
use crate::rig::subscriber::Subscriber;
use crate::rig::{Rig, RigOptions};
use crate::usage::{Usage, load_average};
use crate::{Spread, round};

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
pub struct HostileFigures {
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
    pub age_to_verdict: Option<Spread>,
    pub outcomes_of_hostile: BTreeMap<String, usize>,
    pub peak_resident_mib: f64,
    pub peak_limited_mib: f64,
}

impl HostileFigures {
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
            self.peak_resident_mib < MEMORY_LIMIT_MIB as f64,
            "too much memory"
        );
        Ok(())
    }
}

/// Starts servers of each kind in turn, which run until the process ends, and returns their kubeconfigs. They have a
/// thread of their own, so that they do not delay the clocks of the measurement.
async fn start_servers() -> anyhow::Result<Vec<String>> {
    let (ready, started) = oneshot::channel();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let start = async {
        let mut servers = Vec::new();
        let kinds = Hostility::ALL.into_iter().cycle().take(HOSTILE_SHOOTS);
        for (number, kind) in kinds.enumerate() {
            let h2 = (number / Hostility::ALL.len()).is_multiple_of(2);
            servers.push(HostileServer::start(kind, h2).await?);
        }
        anyhow::Ok(servers)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            let servers = start.await;
            let kubeconfig = |server: &HostileServer| server.kubeconfig.clone();
            let kubeconfigs = servers
                .as_ref()
                .map(|servers| servers.iter().map(kubeconfig).collect());
            // Nobody waits for it when the measurement has failed.
            let _ = ready.send(kubeconfigs.map_err(|error| format!("{error:#}")));
            std::future::pending::<()>().await;
        })
    });
    started.await?.map_err(anyhow::Error::msg)
}

/// Measures.
///
/// # Errors
/// When something does not come up, lease-probe ends, or a loss is not reported or falsely so.
pub async fn run() -> anyhow::Result<HostileFigures> {
    let load_average_before = load_average();
    let rig = Rig::start(RigOptions::new(SHOOTS, NODES, INTERVAL)).await?;
    put_on_seed(&rig, &start_servers().await?).await?;
    let services = rig.lease_probes(1).await?;
    let pid = services.first().context("one replica")?.process.id();
    let limit = MemoryLimit::of_process(pid, MEMORY_LIMIT_MIB)?;
    let subscriber = Subscriber::start(&rig.setup, &services)?;
    subscriber.until(SHOOTS, Outcome::Healthy, BOUND).await?;
    let is_honest = |shoot: &str| !shoot.starts_with(HOSTILE);
    subscriber
        .until_observed(is_honest, Outcome::Healthy, 0, BOUND)
        .await?;
    tokio::time::sleep(INTERVAL * 2).await;
    rig.admin.post("/mark").await?;
    drop(subscriber.take_changes());
    let before = (
        Usage::of_services(&services)?.cpu,
        ScrapedHistogram::read(&services, SCHEDULE_LAG).await?,
    );
    tokio::time::sleep(WINDOW).await;
    let cpu = (Usage::of_services(&services)?.cpu - before.0).as_secs_f64();
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
    let query = format!("/lose?shoots={LOST}&last_within=1000");
    rig.admin.post(&query).await?;
    subscriber.until(LOST, Outcome::LeasesExpired, BOUND).await?;
    let latest = subscriber.latest();
    let lost: Vec<_> = rig.admin.shoots().await?.into_iter().take(LOST).collect();
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
    let (resident, limited) = (Usage::of_process(pid)?.peak_mib, limit.most_used_mib()?);
    // The group can be removed when its process has ended.
    drop(services);
    drop(limit);
    Ok(HostileFigures {
        scenario: "hostile",
        shoots: SHOOTS,
        nodes: NODES,
        hostile: HOSTILE_SHOOTS,
        lost: LOST,
        memory_limit_mib: MEMORY_LIMIT_MIB,
        load_average_before,
        cores: round(cpu / WINDOW.as_secs_f64()),
        schedule_lag_p50_below_ms: lag.at_most_millis(50),
        schedule_lag_p99_below_ms: lag.at_most_millis(99),
        longest_gap_ms: round(longest_gap as f64 / 1e3),
        detection_lag_p50_below_ms: detection.at_most_millis(50),
        detection_lag_p99_below_ms: detection.at_most_millis(99),
        age_to_verdict: Spread::of_micros(lags(&latest, &lost, crossing)),
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
