//! All API servers fail for a while and come back before their kubelets do. No shoot is lost by that, unless its nodes
//! are cut off in the meantime.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::resource_usage::ProcessUsage;
use watchdog_test_support::wait;
use watchdog_test_support::watchdog::Service;

use super::INTERVAL;
use super::healthy;
use crate::fleet::kubelets::MAX_RENEW_INTERVAL;
use crate::fleet::{self, Availability, ShootReport};
use crate::rig::subscriber::{OutcomeChange, Subscriber};
use crate::rig::{Rig, RigOptions};
use crate::{Spread, mib, print, round};

/// After an outage kubelets are back within 7 s: the longest pause between two of their retries.
const RESUME_WITHIN: Duration = Duration::from_secs(7);

/// From the end of an outage until every verdict follows from the leases again, on a machine under load.
const VERDICT_BOUND: Duration = Duration::from_secs(180);

/// Shoots with a false verdict that are listed by name.
const LISTED: usize = 5;

/// Nodes of each shoot.
const NODES: usize = 20;

/// A shoot takes up to two file descriptors in the fleet: the connection from before the outage, and an attempt.
const FILES_PER_SHOOT: u64 = 2;

/// File descriptors for everything else.
const OTHER_FILES: u64 = 1_000;

/// Options of the measurement.
#[derive(Debug, Clone, clap::Args, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutageOptions {
    /// Shoots
    #[arg(long, default_value_t = 1_000)]
    pub shoots: usize,
    /// Seconds that each outage lasts, one outage after the other
    #[arg(
        long = "for",
        value_name = "SECONDS",
        value_delimiter = ',',
        default_values_t = [20.0, 28.0, 32.0, 36.0, 45.0, 60.0]
    )]
    pub durations: Vec<f64>,
    /// Share of the shoots whose nodes are cut off in the middle of the outage and do not come back with it, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    pub lost: f64,
    /// How the API servers fail
    #[arg(long = "how", value_enum, default_value_t = Availability::Hang)]
    pub mode: Availability,
}

/// Figures of the measurement.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OutageFigures {
    scenario: &'static str,
    #[serde(flatten)]
    options: OutageOptions,
    outages: Vec<OutageResult>,
    peak_mib: f64,
}

/// Figures of one outage.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OutageResult {
    /// Shoots whose outcome changed at all.
    affected: usize,
    /// Shoots with the verdict `LEASES_EXPIRED` whose nodes were not cut off.
    false_losses: usize,
    /// The first of them, by name.
    first_false_losses: Vec<String>,
    /// Shoots whose nodes were cut off that never got the verdict `LEASES_EXPIRED`.
    undetected_losses: usize,
    /// From the end of the outage to the verdicts on the shoots that were lost.
    loss_after_end: Option<Spread>,
    /// From the last renewal of any of its nodes to the verdict on a shoot that was lost.
    loss_after_last_renewal: Option<Spread>,
    /// From the end of the outage until a shoot was `HEALTHY` for good; those that were lost and those that were
    /// `HEALTHY` all the time are not counted.
    healthy_after_end: Option<Spread>,
    /// CPU time of lease-probe from the beginning of the outage until all of these verdicts.
    cpu_seconds: f64,
    /// Connections to API servers in that time.
    new_connections: u64,
}

/// Measures.
pub async fn run(options: OutageOptions) -> anyhow::Result<()> {
    let files = options.shoots as u64 * FILES_PER_SHOOT + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ensure!(
        files <= limit,
        "{} shoots need {files} open files in one process, and {limit} are allowed: raise the limit with ulimit -n",
        options.shoots
    );
    let rig = Rig::start(RigOptions::new(options.shoots, NODES, INTERVAL)).await?;
    let (services, subscriber) = healthy::start(&rig, 1).await?;
    let mut outages = Vec::new();
    for seconds in &options.durations {
        let result = outage(&rig, &services, &subscriber, &options, *seconds)
            .await
            .with_context(|| format!("an outage of {seconds} s"))?;
        outages.push(result);
    }
    let figures = OutageFigures {
        scenario: "outage",
        options,
        outages,
        peak_mib: mib(ProcessUsage::of(&services)?.peak_kb),
    };
    print(&figures)?;
    figures.check()
}

/// One outage, from a healthy fleet to a healthy fleet.
async fn outage(
    rig: &Rig,
    services: &[Service],
    subscriber: &Subscriber,
    options: &OutageOptions,
    seconds: f64,
) -> anyhow::Result<OutageResult> {
    until_renewals_observed(rig).await?;
    drop(subscriber.take_changes());
    let used = ProcessUsage::of(services)?.cpu;
    let connections = rig.fleet.report().connections_accepted;

    // At most the number of shoots.
    let lost = (options.lost.clamp(0.0, 1.0) * options.shoots as f64).round() as usize;
    rig.fleet.begin_outage(options.mode);
    // The outage itself.
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let until = rig.fleet.recover(lost, RESUME_WITHIN);
    let reports = rig.fleet.shoot_reports();
    let lost_shoots = reports.iter().take(lost).map(|shoot| shoot.name.as_str());
    let lost_shoots: BTreeSet<&str> = lost_shoots.collect();
    let is_lost = |last: &OutcomeChange| lost_shoots.contains(last.shoot.as_str());
    let is_healthy = |last: &OutcomeChange, end: i64| {
        let all_back = end + fleet::micros(RESUME_WITHIN);
        last.outcome == Outcome::Healthy && last.observed_at >= all_back
    };
    let healthy = |last: &OutcomeChange| !is_lost(last) && is_healthy(last, until);
    subscriber
        .until_last(options.shoots - lost, VERDICT_BOUND, healthy)
        .await?;
    let detected = |last: &OutcomeChange| {
        is_lost(last) && last.outcome == Outcome::LeasesExpired && last.observed_at >= until
    };
    // A loss without a verdict is a result: `undetected_losses`.
    if let Err(error) = subscriber.until_last(lost, VERDICT_BOUND, detected).await {
        eprintln!("losses without a verdict: {error:#}");
    }
    let changes = subscriber.take_changes();
    let cpu = ProcessUsage::of(services)?.cpu - used;
    let new_connections = rig.fleet.report().connections_accepted - connections;

    if lost > 0 {
        let healed = rig.fleet.recover(0, RESUME_WITHIN);
        let healthy = |last: &OutcomeChange| is_healthy(last, healed);
        subscriber
            .until_last(options.shoots, VERDICT_BOUND, healthy)
            .await?;
    }
    Ok(OutageResult {
        cpu_seconds: round(cpu.as_secs_f64()),
        new_connections,
        ..evaluate(&changes, &reports, lost, until)
    })
}

/// Waits until lease-probe has listed every shoot two renew intervals from now or later: it has seen every lease
/// change.
async fn until_renewals_observed(rig: &Rig) -> anyhow::Result<()> {
    let listed_after = fleet::now() + 2 * MAX_RENEW_INTERVAL;
    wait::until_true(
        "lease-probe has listed every shoot",
        VERDICT_BOUND + INTERVAL,
        || async { Ok(rig.fleet.oldest_list() >= listed_after) },
    )
    .await
}

/// Judges the changes of outcomes during and after an outage in which the first `lost` shoots were cut off.
fn evaluate(changes: &[OutcomeChange], shoots: &[ShootReport], lost: usize, end: i64) -> OutageResult {
    let mut first_loss: BTreeMap<&str, i64> = BTreeMap::new();
    let mut last: BTreeMap<&str, &OutcomeChange> = BTreeMap::new();
    for change in changes {
        if change.outcome == Outcome::LeasesExpired {
            first_loss.entry(&change.shoot).or_insert(change.at);
        }
        last.insert(&change.shoot, change);
    }
    let loss = |shoot: &ShootReport| first_loss.get(shoot.name.as_str()).copied();
    let lost_shoots = shoots.iter().take(lost);
    let losses: Vec<(i64, i64)> = lost_shoots
        .filter_map(|shoot| Some((loss(shoot)?, *shoot.renewed.last()?)))
        .collect();
    let healthy_shoots = || shoots.iter().skip(lost);
    let false_losses: Vec<String> = healthy_shoots()
        .filter(|shoot| loss(shoot).is_some())
        .map(|shoot| shoot.name.clone())
        .collect();
    let recoveries = healthy_shoots().filter_map(|shoot| {
        let change = last.get(shoot.name.as_str())?;
        (change.outcome == Outcome::Healthy).then(|| change.at - end)
    });
    OutageResult {
        affected: last.len(),
        false_losses: false_losses.len(),
        undetected_losses: lost - losses.len(),
        loss_after_end: Spread::of_micros(losses.iter().map(|(at, _)| at - end)),
        loss_after_last_renewal: Spread::of_micros(losses.iter().map(|(at, renewed)| at - renewed)),
        healthy_after_end: Spread::of_micros(recoveries),
        first_false_losses: false_losses.into_iter().take(LISTED).collect(),
        cpu_seconds: 0.0,
        new_connections: 0,
    }
}

impl OutageFigures {
    /// Fails unless every shoot got the verdict that it deserves.
    fn check(&self) -> anyhow::Result<()> {
        let sum = |count: fn(&OutageResult) -> usize| self.outages.iter().map(count).sum::<usize>();
        let (wrong, missed) = (sum(|o| o.false_losses), sum(|o| o.undetected_losses));
        ensure!(
            wrong == 0 && missed == 0,
            "{wrong} healthy shoots were reported as LEASES_EXPIRED, {missed} lost shoots were not"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: i64 = 100_000_000;

    fn shoot(name: &str) -> ShootReport {
        ShootReport {
            name: name.into(),
            renewed: vec![END - 40_000_000, END - 32_000_000],
            resumed: vec![],
        }
    }

    fn change(shoot: &str, outcome: Outcome, seconds_after_end: i64) -> OutcomeChange {
        OutcomeChange {
            shoot: shoot.into(),
            outcome,
            at: END + seconds_after_end * 1_000_000,
            observed_at: 0,
        }
    }

    #[test]
    fn a_loss_is_false_unless_the_nodes_were_cut_off() {
        let shoots = ["lost-0", "lost-1", "calm", "false", "unreachable"].map(shoot);
        let changes = [
            change("unreachable", Outcome::ApiServerUnreachable, -20),
            change("false", Outcome::LeasesExpired, 3),
            change("unreachable", Outcome::Healthy, 4),
            change("false", Outcome::Healthy, 6),
            change("lost-0", Outcome::LeasesExpired, 8),
            change("false", Outcome::LeasesExpired, 9),
            change("false", Outcome::Healthy, 10),
        ];
        let result = evaluate(&changes, &shoots, 2, END);
        assert_eq!(result.affected, 3);
        assert_eq!(
            (result.false_losses, &result.first_false_losses[..]),
            (1, &["false".to_owned()][..])
        );
        assert_eq!(result.undetected_losses, 1);
        let longest = |times: Option<Spread>| times.map(|times| (times.count, times.max));
        assert_eq!(longest(result.loss_after_end), Some((1, 8_000.0)));
        assert_eq!(longest(result.loss_after_last_renewal), Some((1, 40_000.0)));
        assert_eq!(longest(result.healthy_after_end), Some((2, 10_000.0)));
    }
}
