//! All API servers fail for a while and come back before their kubelets do. No shoot is lost by that, unless its nodes
//! are cut off in the meantime.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::wait;
use watchdog_test_support::watchdog::Service;

use super::INTERVAL;
use super::healthy::{self, Start};
use crate::fleet::kubelets::MAX_RENEW_INTERVAL;
use crate::fleet::{self, Availability, ShootReport};
use crate::rig::subscriber::{OutcomeChange, Subscriber};
use crate::rig::{Rig, RigOptions};
use crate::usage::{Usage, load_average};
use crate::{Spread, round};

/// After an outage kubelets are back within 7 s: the longest pause between two of their retries.
const RESUME_WITHIN_MILLIS: i64 = 7_000;

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
#[derive(Debug, Clone, clap::Args)]
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
pub struct OutageFigures {
    pub scenario: &'static str,
    pub shoots: usize,
    pub nodes: usize,
    pub interval_seconds: f64,
    pub mode: Availability,
    pub start: Start,
    pub outages: Vec<OutageResult>,
    pub peak_mib: f64,
    pub fleet_resident_mib: f64,
}

/// Figures of one outage.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutageResult {
    /// From the first failure of the API servers to the last.
    pub seconds: f64,
    /// Before it began.
    pub load_average_before: f64,
    /// Shoots whose outcome changed at all.
    pub affected: usize,
    /// Shoots with the verdict `LEASES_EXPIRED` whose nodes were not cut off.
    pub false_losses: usize,
    /// The first of them.
    pub first_false_losses: Vec<FalseLoss>,
    /// From the end of the outage to the false verdicts.
    pub false_loss_after_end: Option<Spread>,
    /// Shoots whose nodes were cut off.
    pub lost: usize,
    /// Those of them that never got the verdict `LEASES_EXPIRED`.
    pub undetected_losses: usize,
    /// From the end of the outage to the verdicts on the shoots that were lost.
    pub loss_after_end: Option<Spread>,
    /// From the last renewal of any of its nodes to the verdict on a shoot that was lost.
    pub loss_after_last_renewal: Option<Spread>,
    /// From the end of the outage until a shoot was `HEALTHY` for good; those that were lost and those that were
    /// `HEALTHY` all the time are not counted.
    pub healthy_after_end: Option<Spread>,
    /// CPU time of lease-probe from the beginning of the outage until all of these verdicts.
    pub cpu_seconds: f64,
    /// Connections to API servers in that time.
    pub new_connections: u64,
}

/// A healthy shoot that was taken for lost.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FalseLoss {
    /// Its namespace in the seed.
    pub shoot: String,
    /// From the end of the outage to the verdict.
    pub seconds_after_end: f64,
}

/// Begin and end of an outage, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct Period {
    from: i64,
    until: i64,
}

/// Measures.
///
/// # Errors
/// When something does not come up, or a shoot does not become healthy again.
pub async fn run(options: OutageOptions) -> anyhow::Result<OutageFigures> {
    let files = options.shoots as u64 * FILES_PER_SHOOT + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ensure!(
        files <= limit,
        "{} shoots need {files} open files in one process, and {limit} are allowed: raise the limit with ulimit -n",
        options.shoots
    );
    let rig = Rig::start(RigOptions::new(options.shoots, NODES, INTERVAL)).await?;
    let (services, subscriber, start) = healthy::start(&rig, 1).await?;
    let mut outages = Vec::new();
    for seconds in &options.durations {
        let result = outage(&rig, &services, &subscriber, &options, *seconds)
            .await
            .with_context(|| format!("an outage of {seconds} s"))?;
        outages.push(result);
    }
    Ok(OutageFigures {
        scenario: "outage",
        shoots: options.shoots,
        nodes: NODES,
        interval_seconds: INTERVAL.as_secs_f64(),
        mode: options.mode,
        start,
        outages,
        peak_mib: round(Usage::of_services(&services)?.peak_mib),
        fleet_resident_mib: round(rig.admin.report().await?.memory_mib),
    })
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
    let load_average_before = load_average();
    let (used, fleet) = (Usage::of_services(services)?, rig.admin.report().await?);

    // At most the number of shoots.
    let lost = (options.lost.clamp(0.0, 1.0) * options.shoots as f64).round() as usize;
    let query = match options.mode {
        Availability::Refuse => "/outage?mode=refuse",
        _ => "/outage?mode=hang",
    };
    let from = rig.admin.post(query).await?;
    // The outage itself.
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let until = rig.admin.post(&recovery(lost)).await?;
    let reports = rig.admin.shoots().await?;
    let lost_shoots: BTreeSet<&str> = reports
        .iter()
        .take(lost)
        .map(|shoot| shoot.name.as_str())
        .collect();
    let all_back = until + RESUME_WITHIN_MILLIS * 1_000;
    let is_lost = |shoot: &str| lost_shoots.contains(shoot);
    subscriber
        .until_observed(|shoot| !is_lost(shoot), Outcome::Healthy, all_back, VERDICT_BOUND)
        .await?;
    // A loss without a verdict is a result: `undetected_losses`.
    let detected = subscriber
        .until_observed(is_lost, Outcome::LeasesExpired, until, VERDICT_BOUND)
        .await;
    if let Err(error) = detected {
        eprintln!("losses without a verdict: {error:#}");
    }
    let changes = subscriber.take_changes();
    let cpu = Usage::of_services(services)?.cpu - used.cpu;
    let new_connections = rig.admin.report().await?.connections_accepted - fleet.connections_accepted;

    if lost > 0 {
        let healed = rig.admin.post(&recovery(0)).await?;
        let all_back = healed + RESUME_WITHIN_MILLIS * 1_000;
        subscriber
            .until_observed(|_| true, Outcome::Healthy, all_back, VERDICT_BOUND)
            .await?;
    }
    Ok(OutageResult {
        load_average_before,
        cpu_seconds: round(cpu.as_secs_f64()),
        new_connections,
        ..evaluate(&changes, &reports, lost, Period { from, until })
    })
}

fn recovery(lost: usize) -> String {
    format!("/recover?lost={lost}&resume_within={RESUME_WITHIN_MILLIS}")
}

/// Waits until lease-probe has listed every shoot two renew intervals from now or later: it has seen every lease
/// change.
async fn until_renewals_observed(rig: &Rig) -> anyhow::Result<()> {
    let listed_after = fleet::now() + 2 * MAX_RENEW_INTERVAL;
    wait::until_true(
        "lease-probe has listed every shoot",
        VERDICT_BOUND + INTERVAL,
        || async { Ok(rig.admin.report().await?.oldest_list >= listed_after) },
    )
    .await
}

/// Judges the changes of outcomes during and after an outage in which the first `lost` shoots were cut off.
fn evaluate(changes: &[OutcomeChange], shoots: &[ShootReport], lost: usize, period: Period) -> OutageResult {
    let mut first_loss: BTreeMap<&str, i64> = BTreeMap::new();
    let mut last: BTreeMap<&str, &OutcomeChange> = BTreeMap::new();
    for change in changes {
        if change.outcome == Outcome::LeasesExpired {
            first_loss.entry(&change.shoot).or_insert(change.at);
        }
        last.insert(&change.shoot, change);
    }
    let after_end = |at: i64| at - period.until;
    let lost_shoots = shoots.get(..lost).unwrap_or(shoots);
    let healthy_shoots = shoots.get(lost..).unwrap_or_default();

    let mut false_losses: Vec<(i64, &str)> = healthy_shoots
        .iter()
        .filter_map(|shoot| Some((*first_loss.get(shoot.name.as_str())?, shoot.name.as_str())))
        .collect();
    false_losses.sort_unstable();
    let losses: Vec<(i64, &ShootReport)> = lost_shoots
        .iter()
        .filter_map(|shoot| Some((*first_loss.get(shoot.name.as_str())?, shoot)))
        .collect();
    let recoveries = healthy_shoots.iter().filter_map(|shoot| {
        let change = last.get(shoot.name.as_str())?;
        (change.outcome == Outcome::Healthy).then(|| after_end(change.at))
    });
    OutageResult {
        seconds: round((period.until - period.from) as f64 / 1e6),
        load_average_before: 0.0,
        affected: last.len(),
        false_losses: false_losses.len(),
        first_false_losses: false_losses
            .iter()
            .take(LISTED)
            .map(|(at, shoot)| FalseLoss {
                shoot: (*shoot).to_owned(),
                seconds_after_end: round(after_end(*at) as f64 / 1e6),
            })
            .collect(),
        false_loss_after_end: Spread::of_micros(false_losses.iter().map(|(at, _)| after_end(*at))),
        lost: lost_shoots.len(),
        undetected_losses: lost_shoots.len() - losses.len(),
        loss_after_end: Spread::of_micros(losses.iter().map(|(at, _)| after_end(*at))),
        loss_after_last_renewal: Spread::of_micros(
            losses
                .iter()
                .filter_map(|(at, shoot)| Some(at - shoot.renewed.last()?)),
        ),
        healthy_after_end: Spread::of_micros(recoveries),
        cpu_seconds: 0.0,
        new_connections: 0,
    }
}

impl OutageFigures {
    /// Fails unless every shoot got the verdict that it deserves.
    ///
    /// # Errors
    /// When a healthy shoot was taken for lost, or a lost one was not.
    pub fn check(&self) -> anyhow::Result<()> {
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
            first_list: 0,
            last_list: 0,
            longest_gap: 0,
            renewed: vec![END - 40_000_000, END - 32_000_000],
            resumed: vec![],
        }
    }

    fn change(shoot: &str, outcome: Outcome, seconds_after_end: i64) -> OutcomeChange {
        OutcomeChange {
            shoot: shoot.into(),
            outcome,
            at: END + seconds_after_end * 1_000_000,
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
        let period = Period {
            from: END - 30_000_000,
            until: END,
        };
        let result = evaluate(&changes, &shoots, 2, period);
        assert_eq!((result.seconds, result.affected), (30.0, 3));
        let found = FalseLoss {
            shoot: "false".into(),
            seconds_after_end: 3.0,
        };
        assert_eq!((result.false_losses, result.first_false_losses), (1, vec![found]));
        assert_eq!((result.lost, result.undetected_losses), (2, 1));
        let longest = |times: Option<Spread>| times.map(|times| (times.count, times.max));
        assert_eq!(longest(result.loss_after_end), Some((1, 8_000.0)));
        assert_eq!(longest(result.loss_after_last_renewal), Some((1, 40_000.0)));
        assert_eq!(longest(result.healthy_after_end), Some((2, 10_000.0)));
    }
}
