//! Many shoots lose all their nodes at the same instant, and get them back: how late are the verdicts?

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::watchdog::Service;

use super::healthy::{self, Start};
use super::{Millis, prober_config, round, share, usage_of};
use crate::fleet::admin::Loss;
use crate::fleet::kubelets::MAX_RENEW_INTERVAL;
use crate::fleet::{self, Report, ShootReport};
use crate::rig::perf::Perf;
use crate::rig::subscriber::ReceivedOutcome;
use crate::rig::{Rig, RigOptions};
use crate::usage::load_average;

/// Age at which a lease is expired, in microseconds, with a grace period of 40 s.
pub const EXPIRY_AGE: i64 = 32_000_000;

/// Share of expired leases from which a shoot counts as lost: the default.
const FRACTION: f64 = 0.6;

/// 32 s to the expiry, and the time that a machine under load needs to tell it.
const LOSS_BOUND: Duration = Duration::from_secs(120);

/// From the crossing to the last verdict, in milliseconds: half of the time that kube-controller-manager leaves.
const LATEST: f64 = 4_000.0;

/// The parameters of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct LossOptions {
    /// Shoots
    #[arg(long, default_value_t = 1_000)]
    pub shoots: usize,
    /// Nodes of each shoot
    #[arg(long, default_value_t = 50)]
    pub nodes: usize,
    /// How many shoots are lost; all by default
    #[arg(long)]
    pub lost: Option<usize>,
    /// Mean seconds between two probes of a shoot
    #[arg(long, default_value_t = 10.0)]
    pub interval: f64,
    /// 0: renewals just stop. Else all nodes renew a last time within so many milliseconds, and all leases expire that
    /// close together
    #[arg(long, default_value_t = 1_000)]
    pub within: u32,
    /// Seconds for which the shoots stay lost after the last verdict; the CPU that this costs is measured
    #[arg(long, default_value_t = 0.0)]
    pub stay_lost: f64,
    /// Replicas of lease-probe
    #[arg(long, default_value_t = 1)]
    pub replicas: usize,
    /// Sample the replicas from the cut to the last verdict, with perf, into this file; the figures are not those of a
    /// run without
    #[arg(long)]
    pub perf: Option<PathBuf>,
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
    pub lost: usize,
    pub within_millis: u32,
    pub replicas: usize,
    pub load_average_before: f64,
    pub start: Start,
    /// Between the first and the last shoot's crossing of the threshold.
    pub crossings_within_ms: f64,
    /// From the crossing to the verdict at the subscriber.
    pub detection_lag: Option<Millis>,
    /// From the renewal with which enough nodes are back to the verdict at the subscriber.
    pub recovery_lag: Option<Millis>,
    pub node_lists: u64,
    pub cpu_seconds_of_loss: f64,
    pub fleet_cpu_seconds_of_loss: f64,
    /// Cores of lease-probe while the shoots stay lost.
    pub cores_while_lost: Option<f64>,
    /// Mean seconds between two lists of the leases of a shoot in that time, over all shoots.
    pub list_interval_while_lost_seconds: Option<f64>,
    pub peak_mib: f64,
    pub seed_requests_of_loss: Option<BTreeMap<String, u64>>,
}

/// How many of the nodes must be expired.
#[must_use]
pub fn required(nodes: usize) -> usize {
    // At most the number of nodes.
    ((nodes as f64 * FRACTION).ceil() as usize).max(1)
}

/// When the share of expired leases reached the threshold.
#[must_use]
pub fn crossing(shoot: &ShootReport) -> Option<i64> {
    Some(shoot.renewed.get(required(shoot.renewed.len()) - 1)? + EXPIRY_AGE)
}

/// When the share of expired leases fell below the threshold.
#[must_use]
pub fn recovered(shoot: &ShootReport) -> Option<i64> {
    let nodes = shoot.renewed.len();
    shoot.resumed.get(nodes - required(nodes)).copied()
}

/// How late each verdict was, after the time that the fleet says.
pub(crate) fn lags<'a>(
    latest: &'a BTreeMap<String, ReceivedOutcome>,
    shoots: &'a [ShootReport],
    moment: impl Fn(&ShootReport) -> Option<i64> + 'a,
) -> impl Iterator<Item = i64> + 'a {
    shoots
        .iter()
        .filter_map(move |shoot| Some(latest.get(&shoot.name)?.at - moment(shoot)?))
}

/// Measures.
///
/// # Errors
/// When something does not come up, or a loss or recovery is not reported, or reported before it was one.
pub async fn run(options: LossOptions) -> anyhow::Result<Outcomes> {
    let load_average_before = load_average();
    let interval = Duration::from_secs_f64(options.interval);
    let lost = options.lost.unwrap_or(options.shoots).min(options.shoots);
    let rig = Rig::start(RigOptions {
        shoots: options.shoots,
        nodes: options.nodes,
        machines: true,
        dependants: false,
        real: false,
        prober: prober_config(interval),
    })
    .await?;
    let (services, subscriber, start) = healthy::start(&rig, options.replicas).await?;
    // Every lease has been seen to change, so that its age is known, and often enough that some renewal was young when
    // it was listed: until then the clocks of the nodes may be taken for behind, which delays a verdict.
    tokio::time::sleep(interval * 6).await;

    let request = rig.seed.last_request().await?;
    let (used, fleet) = (usage_of(&services)?, rig.admin.report().await?);
    let perf = options.perf.as_deref();
    let sampling = perf
        .map(|file| Perf::start(&rig.scratch, &services, file))
        .transpose()?;
    rig.admin
        .lose(Loss {
            shoots: lost,
            fraction: 1.0,
            last_within_millis: options.within,
        })
        .await?;
    subscriber.until(lost, Outcome::LeasesExpired, LOSS_BOUND).await?;
    let latest = subscriber.latest();
    if let (Some(sampling), Some(file)) = (sampling, perf) {
        sampling.stop(file).await?;
    }
    let shoots: Vec<ShootReport> = rig.admin.shoots().await?.into_iter().take(lost).collect();
    let used = usage_of(&services)?.cpu - used.cpu;
    let fleet_after = rig.admin.report().await?;
    let crossings = || shoots.iter().filter_map(crossing);
    let spread = crossings().max().unwrap_or(0) - crossings().min().unwrap_or(0);
    let late: Vec<i64> = lags(&latest, &shoots, crossing).collect();
    ensure!(
        late.iter().all(|lag| *lag >= 0),
        "a loss was reported before it was one"
    );
    let seed_requests_of_loss = rig.seed.requests_since(request).await?;

    let staying = stay_lost(&rig, &services, options.stay_lost).await?;
    rig.admin.recover().await?;
    let healed = fleet::now();
    subscriber
        .until(options.shoots, Outcome::Healthy, LOSS_BOUND)
        .await?;
    let latest = subscriber.latest();
    let shoots: Vec<ShootReport> = rig.admin.shoots().await?.into_iter().take(lost).collect();
    let back: Vec<i64> = lags(&latest, &shoots, recovered).collect();
    ensure!(
        back.len() == lost
            && shoots
                .iter()
                .filter_map(recovered)
                .all(|at| at <= healed + MAX_RENEW_INTERVAL),
        "the fleet did not recover as it should"
    );
    let delta = |of: fn(&Report) -> u64| of(&fleet_after) - of(&fleet);
    Ok(Outcomes {
        scenario: "loss",
        shoots: options.shoots,
        nodes: options.nodes,
        lost,
        within_millis: options.within,
        replicas: options.replicas,
        load_average_before,
        start,
        crossings_within_ms: round(spread as f64 / 1e3),
        detection_lag: Millis::of_micros(late),
        recovery_lag: Millis::of_micros(back),
        node_lists: delta(|r| r.node_lists),
        cpu_seconds_of_loss: round(used.as_secs_f64()),
        cores_while_lost: staying.map(|(cores, _)| cores),
        list_interval_while_lost_seconds: staying.map(|(_, interval)| interval),
        fleet_cpu_seconds_of_loss: round(fleet_after.cpu_seconds - fleet.cpu_seconds),
        peak_mib: round(super::peak_of(&services)?),
        seed_requests_of_loss,
    })
}

/// Cores of lease-probe, and mean seconds between two lists of a shoot, while nothing changes; none for no time.
async fn stay_lost(rig: &Rig, services: &[Service], seconds: f64) -> anyhow::Result<Option<(f64, f64)>> {
    if seconds <= 0.0 {
        return Ok(None);
    }
    let (used, fleet) = (usage_of(services)?, rig.admin.report().await?);
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let cpu = (usage_of(services)?.cpu - used.cpu).as_secs_f64();
    let after = rig.admin.report().await?;
    let window = (after.at - fleet.at) as f64 / 1e6;
    let interval = share(
        window * rig.options.shoots as f64,
        after.lease_lists - fleet.lease_lists,
    );
    Ok(Some((round(cpu / window), interval)))
}

impl Outcomes {
    /// Succeeds if the verdicts came in time, and no shoot's nodes were listed twice.
    ///
    /// # Errors
    /// Names the first target that was missed.
    pub fn check(&self) -> anyhow::Result<()> {
        let lag = self.detection_lag.context("no loss was reported")?;
        ensure!(lag.max <= LATEST, "losses are reported late");
        ensure!(
            self.node_lists <= self.lost as u64,
            "nodes were listed more than once"
        );
        Ok(())
    }
}

impl std::fmt::Display for Outcomes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |millis: &Option<Millis>| millis.map_or("none".to_owned(), |millis| millis.to_string());
        writeln!(
            f,
            "{} of {} shoots x {} nodes lost, last renewals within {} ms (0: as they come), {} replica(s); load \
             average before: {}",
            self.lost, self.shoots, self.nodes, self.within_millis, self.replicas, self.load_average_before
        )?;
        writeln!(
            f,
            "  crossings within {} ms; crossing to verdict: {}",
            self.crossings_within_ms,
            show(&self.detection_lag)
        )?;
        writeln!(f, "  enough nodes back to verdict: {}", show(&self.recovery_lag))?;
        if let (Some(cores), Some(interval)) = (self.cores_while_lost, self.list_interval_while_lost_seconds)
        {
            writeln!(
                f,
                "  while lost: {cores} cores, a list of each shoot every {interval} s"
            )?;
        }
        writeln!(
            f,
            "  {} node lists, {} s of CPU (the fleet: {} s), {} MiB at most; seed requests {:?}",
            self.node_lists,
            self.cpu_seconds_of_loss,
            self.fleet_cpu_seconds_of_loss,
            self.peak_mib,
            self.seed_requests_of_loss
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_that_of_the_rule() {
        assert_eq!([1, 5, 20, 50].map(required), [1, 3, 12, 30]);
        let shoot = ShootReport {
            name: "a".into(),
            first_list: 0,
            last_list: 0,
            longest_gap: 0,
            renewed: vec![1, 2, 3, 4, 5],
            resumed: vec![11, 12, 13, 14, 15],
        };
        assert_eq!(crossing(&shoot), Some(3 + EXPIRY_AGE));
        // Two of five expired are below 60 %: with the third node back.
        assert_eq!(recovered(&shoot), Some(13));
    }
}
