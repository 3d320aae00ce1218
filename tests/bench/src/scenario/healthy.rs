//! The steady state of a healthy fleet, and the start that leads to it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::stream::v1::Scope;
use watchdog_test_support::resource_usage::ProcessUsage;
use watchdog_test_support::watchdog::Service;

use super::{SCHEDULE_LAG, ScrapedHistogram, say_measuring, share};
use crate::fleet::{self, FleetReport};
use crate::rig::subscriber::Subscriber;
use crate::rig::{Rig, RigOptions};
use crate::{mib, print, round};

/// A start of 10,000 shoots takes some 10 s; a machine under load longer.
const START_BOUND: Duration = Duration::from_secs(180);

/// The parameters of the measurement.
#[derive(Debug, Clone, clap::Args, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthyOptions {
    /// Shoots
    #[arg(long, default_value_t = 1_000)]
    shoots: usize,
    /// Nodes of each shoot
    #[arg(long, default_value_t = 20)]
    nodes: usize,
    /// Mean seconds between two probes of a shoot
    #[arg(long, default_value_t = 10.0)]
    interval: f64,
    /// Seconds of measuring
    #[arg(long, default_value_t = 60.0)]
    window: f64,
    /// Replicas of lease-probe
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    /// Subscribers to the whole seed, dealt out to the replicas. The same replicas are measured without them before
    #[arg(long, default_value_t = 0)]
    subscribers: usize,
}

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthyFigures {
    scenario: &'static str,
    #[serde(flatten)]
    options: HealthyOptions,
    /// From the start of lease-probe.
    all_verdicts_after_seconds: f64,
    /// The most until then.
    connections_opening_at_once: u64,
    #[serde(flatten)]
    window: Window,
    /// The same replicas before the subscribers came.
    without_subscribers: Option<Window>,
}

/// The difference between two moments.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Window {
    probes: u64,
    cpu_micros_per_probe: f64,
    cores: f64,
    requests_per_probe: f64,
    node_lists: u64,
    bytes_to_prober_per_probe: f64,
    bytes_from_prober_per_probe: f64,
    new_connections: u64,
    resident_mib: f64,
    peak_mib: f64,
    schedule_lag_p50_below_ms: Option<f64>,
    schedule_lag_p99_below_ms: Option<f64>,
    seed_requests: BTreeMap<String, usize>,
    fleet_cpu_micros_per_probe: f64,
    fleet_cores: f64,
    stream_messages_per_second: f64,
    streams_lost: u64,
}

/// The processes that are measured.
struct MeasuredReplicas<'a> {
    rig: &'a Rig,
    services: &'a [Service],
    crowd: Option<Subscriber>,
}

struct UsageSnapshot {
    at: Instant,
    fleet: FleetReport,
    fleet_cpu: Duration,
    used: ProcessUsage,
    lag: ScrapedHistogram,
    updates: u64,
    streams_lost: u64,
}

impl MeasuredReplicas<'_> {
    async fn snapshot(&self) -> anyhow::Result<UsageSnapshot> {
        let (updates, streams_lost) = self.crowd.as_ref().map_or((0, 0), Subscriber::counts);
        Ok(UsageSnapshot {
            lag: ScrapedHistogram::read(self.services, SCHEDULE_LAG).await?,
            fleet: self.rig.fleet.report(),
            fleet_cpu: self.rig.fleet_cpu()?,
            used: ProcessUsage::of(self.services)?,
            updates,
            streams_lost,
            at: Instant::now(),
        })
    }

    async fn window(&self, seconds: f64) -> anyhow::Result<Window> {
        let request = self.rig.last_request();
        let before = self.snapshot().await?;
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        let after = self.snapshot().await?;

        let seconds = (after.at - before.at).as_secs_f64();
        let cpu = (after.used.cpu - before.used.cpu).as_secs_f64();
        let fleet_cpu = (after.fleet_cpu - before.fleet_cpu).as_secs_f64();
        let delta = |of: fn(&FleetReport) -> u64| of(&after.fleet) - of(&before.fleet);
        let probes = delta(|r| r.lease_lists);
        let per_probe = |of| share(delta(of) as f64, probes);
        let lag = after.lag.since(&before.lag);
        Ok(Window {
            probes,
            cpu_micros_per_probe: share(cpu * 1e6, probes),
            cores: round(cpu / seconds),
            requests_per_probe: per_probe(|r| r.lease_lists + r.node_lists + r.other_requests),
            node_lists: delta(|r| r.node_lists),
            bytes_to_prober_per_probe: per_probe(|r| r.bytes_sent),
            bytes_from_prober_per_probe: per_probe(|r| r.bytes_received),
            new_connections: delta(|r| r.connections_accepted),
            resident_mib: mib(after.used.resident_kb),
            peak_mib: mib(after.used.peak_kb),
            schedule_lag_p50_below_ms: lag.at_most_millis(50),
            schedule_lag_p99_below_ms: lag.at_most_millis(99),
            seed_requests: self.rig.requests_since(request),
            fleet_cpu_micros_per_probe: share(fleet_cpu * 1e6, probes),
            fleet_cores: round(fleet_cpu / seconds),
            stream_messages_per_second: round((after.updates - before.updates) as f64 / seconds),
            streams_lost: after.streams_lost - before.streams_lost,
        })
    }
}

/// Measures.
pub async fn run(options: HealthyOptions) -> anyhow::Result<()> {
    let interval = Duration::from_secs_f64(options.interval);
    let rig = Rig::start(RigOptions {
        machines: false,
        ..RigOptions::new(options.shoots, options.nodes, interval)
    })
    .await?;
    let begun = fleet::now();
    let (services, subscriber) = start(&rig, options.replicas).await?;
    let verdicts = subscriber.latest();
    let last = verdicts.values().map(|latest| latest.at).max().unwrap_or(begun);
    let connections_opening_at_once = rig.fleet.report().connections_opening_most;
    // Until the waves of the start have spread out, and replicas have shared the shoots.
    tokio::time::sleep(interval * 2).await;
    let mut measured = MeasuredReplicas {
        rig: &rig,
        services: &services,
        crowd: None,
    };
    let mut without_subscribers = None;
    if options.subscribers > 0 {
        without_subscribers = Some(measured.window(options.window).await?);
        let dealt_out = services.iter().cycle().take(options.subscribers);
        let own_service = rig.setup.calling_as_own_service()?;
        measured.crowd = Some(Subscriber::start(&own_service, dealt_out, Scope::Seed)?);
        tokio::time::sleep(interval * 2).await;
    }
    say_measuring(&services);
    let window = measured.window(options.window).await?;
    print(&HealthyFigures {
        scenario: "healthy",
        options,
        all_verdicts_after_seconds: round((last - begun) as f64 / 1e6),
        connections_opening_at_once,
        window,
        without_subscribers,
    })
}

/// Starts the replicas and waits until every shoot is healthy.
pub(super) async fn start(rig: &Rig, replicas: usize) -> anyhow::Result<(Vec<Service>, Subscriber)> {
    let services = rig.lease_probes(replicas).await?;
    let subscriber = Subscriber::start(&rig.setup, &services, Scope::Replica)?;
    subscriber
        .until(rig.options.shoots, Outcome::Healthy, START_BOUND)
        .await?;
    Ok((services, subscriber))
}
