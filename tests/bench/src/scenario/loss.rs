//! Many shoots lose all their nodes at the same instant, and get them back: how late are the verdicts?

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::resource_usage::ProcessUsage;
use watchdog_test_support::watchdog::Service;

use super::{INTERVAL, healthy, say_measuring, share};
use crate::fleet::ShootReport;
use crate::fleet::kubelets::MAX_RENEW_INTERVAL;
use crate::rig::subscriber::OutcomeChange;
use crate::rig::{Rig, RigOptions};
use crate::{Spread, mib, print, round};

/// Age at which a lease is expired, in microseconds, with a grace period of 40 s.
const EXPIRY_AGE: i64 = 33_000_000;

/// Share of expired leases from which a shoot counts as lost: the default.
const FRACTION: f64 = 0.6;

/// 32 s to the expiry, and the time that a machine under load needs to tell it.
const LOSS_BOUND: Duration = Duration::from_secs(120);

/// From the crossing to the last verdict, in milliseconds: half of the time that kube-controller-manager leaves.
const LATEST: f64 = 4_000.0;

/// The parameters of the measurement.
#[derive(Debug, Clone, clap::Args, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LossOptions {
    /// Shoots
    #[arg(long, default_value_t = 1_000)]
    pub shoots: usize,
    /// Nodes of each shoot
    #[arg(long, default_value_t = 50)]
    pub nodes: usize,
    /// 0: renewals just stop. Else all nodes renew a last time within so many milliseconds, and all leases expire that
    /// close together
    #[arg(long, default_value_t = 1_000)]
    pub within: u64,
    /// Seconds for which the shoots stay lost after the last verdict; the CPU that this costs is measured
    #[arg(long, default_value_t = 0.0)]
    pub stay_lost: f64,
}

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LossFigures {
    scenario: &'static str,
    #[serde(flatten)]
    options: LossOptions,
    /// Between the first and the last shoot's crossing of the threshold.
    crossings_within_ms: f64,
    /// From the crossing to the verdict at the subscriber.
    detection_lag: Option<Spread>,
    /// From the renewal with which enough nodes are back to the verdict at the subscriber.
    recovery_lag: Option<Spread>,
    node_lists: u64,
    cpu_seconds_of_loss: f64,
    fleet_cpu_seconds_of_loss: f64,
    /// Cores of lease-probe while the shoots stay lost.
    cores_while_lost: Option<f64>,
    /// Mean seconds between two lists of the leases of a shoot in that time, over all shoots.
    list_interval_while_lost_seconds: Option<f64>,
    peak_mib: f64,
    seed_requests_of_loss: BTreeMap<String, usize>,
}

/// How many of the nodes must be expired.
fn required(nodes: usize) -> usize {
    // At most the number of nodes.
    ((nodes as f64 * FRACTION).ceil() as usize).max(1)
}

/// When the share of expired leases reached the threshold.
pub fn crossing(shoot: &ShootReport) -> Option<i64> {
    Some(shoot.renewed.get(required(shoot.renewed.len()) - 1)? + EXPIRY_AGE)
}

/// When the share of expired leases fell below the threshold.
fn recovered(shoot: &ShootReport) -> Option<i64> {
    let nodes = shoot.renewed.len();
    shoot.resumed.get(nodes - required(nodes)).copied()
}

/// How late each verdict was, after the time that the fleet says.
fn lags<'a>(
    latest: &'a BTreeMap<String, OutcomeChange>,
    shoots: &'a [ShootReport],
    moment: impl Fn(&ShootReport) -> Option<i64> + 'a,
) -> impl Iterator<Item = i64> + 'a {
    shoots
        .iter()
        .filter_map(move |shoot| Some(latest.get(&shoot.name)?.at - moment(shoot)?))
}

/// Measures.
pub async fn run(options: LossOptions) -> anyhow::Result<()> {
    let rig = Rig::start(RigOptions::new(options.shoots, options.nodes, INTERVAL)).await?;
    let (services, subscriber) = healthy::start(&rig, 1).await?;
    // Every lease has been seen to change, so that its age is known, and often enough that some renewal was young when
    // it was listed: until then the clocks of the nodes may be taken for behind, which delays a verdict.
    tokio::time::sleep(INTERVAL * 6).await;

    let (request, node_lists) = (rig.last_request(), rig.fleet.report().node_lists);
    let (used, fleet_used) = (ProcessUsage::of(&services)?.cpu, rig.fleet_cpu()?);
    say_measuring(&services);
    rig.fleet
        .lose(options.shoots, Duration::from_millis(options.within));
    subscriber
        .until(options.shoots, Outcome::LeasesExpired, LOSS_BOUND)
        .await?;
    let latest = subscriber.latest();
    let shoots = rig.fleet.shoot_reports();
    let cpu_of_loss = ProcessUsage::of(&services)?.cpu - used;
    let fleet_cpu_of_loss = rig.fleet_cpu()? - fleet_used;
    let node_lists = rig.fleet.report().node_lists - node_lists;
    let seed_requests_of_loss = rig.requests_since(request);
    let crossings = || shoots.iter().filter_map(crossing);
    let spread = crossings().max().unwrap_or(0) - crossings().min().unwrap_or(0);
    let late: Vec<i64> = lags(&latest, &shoots, crossing).collect();
    ensure!(
        late.iter().all(|lag| *lag >= 0),
        "a loss was reported before it was one"
    );

    let staying = stay_lost(&rig, &services, options.stay_lost).await?;
    let healed = rig.fleet.recover(0, Duration::ZERO);
    subscriber
        .until(options.shoots, Outcome::Healthy, LOSS_BOUND)
        .await?;
    let latest = subscriber.latest();
    let shoots = rig.fleet.shoot_reports();
    let back: Vec<i64> = lags(&latest, &shoots, recovered).collect();
    let last_back = shoots.iter().filter_map(recovered).max().unwrap_or(i64::MAX);
    ensure!(
        back.len() == options.shoots && last_back <= healed + MAX_RENEW_INTERVAL,
        "the fleet did not recover as it should"
    );
    let figures = LossFigures {
        scenario: "loss",
        options,
        crossings_within_ms: round(spread as f64 / 1e3),
        detection_lag: Spread::of_micros(late),
        recovery_lag: Spread::of_micros(back),
        node_lists,
        cpu_seconds_of_loss: round(cpu_of_loss.as_secs_f64()),
        fleet_cpu_seconds_of_loss: round(fleet_cpu_of_loss.as_secs_f64()),
        cores_while_lost: staying.map(|(cores, _)| cores),
        list_interval_while_lost_seconds: staying.map(|(_, interval)| interval),
        peak_mib: mib(ProcessUsage::of(&services)?.peak_kb),
        seed_requests_of_loss,
    };
    print(&figures)?;
    figures.check()
}

/// Cores of lease-probe, and mean seconds between two lists of a shoot, while nothing changes; none for no time.
async fn stay_lost(rig: &Rig, services: &[Service], seconds: f64) -> anyhow::Result<Option<(f64, f64)>> {
    if seconds <= 0.0 {
        return Ok(None);
    }
    let (used, lists) = (ProcessUsage::of(services)?.cpu, rig.fleet.report().lease_lists);
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let cpu = (ProcessUsage::of(services)?.cpu - used).as_secs_f64();
    let lists = rig.fleet.report().lease_lists - lists;
    let interval = share(seconds * rig.options.shoots as f64, lists);
    Ok(Some((round(cpu / seconds), interval)))
}

impl LossFigures {
    /// Succeeds if the verdicts came in time, and no shoot's nodes were listed twice.
    fn check(&self) -> anyhow::Result<()> {
        let lag = self.detection_lag.context("no loss was reported")?;
        ensure!(lag.max <= LATEST, "losses are reported late");
        ensure!(
            self.node_lists <= self.options.shoots as u64,
            "nodes were listed more than once"
        );
        Ok(())
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
            renewed: vec![1, 2, 3, 4, 5],
            resumed: vec![11, 12, 13, 14, 15],
        };
        assert_eq!(crossing(&shoot), Some(3 + EXPIRY_AGE));
        // Two of five expired are below 60 %: with the third node back.
        assert_eq!(recovered(&shoot), Some(13));
    }
}
