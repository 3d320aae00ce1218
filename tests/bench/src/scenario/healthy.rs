//! The steady state of a healthy fleet, and the start that leads to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::watchdog::Service;

use super::{SCHEDULE_LAG, ScrapedHistogram, share};
use crate::fleet::{self, Report};
use crate::rig::perf::Perf;
use crate::rig::subscriber::{CountingSubscribers, Subscriber};
use crate::rig::{Rig, RigOptions};
use crate::round;
use crate::usage::{Usage, load_average};

/// A start of 10,000 shoots takes some 10 s; a machine under load longer.
const START_BOUND: Duration = Duration::from_secs(180);

/// The parameters of the measurement.
#[derive(Debug, Clone, clap::Args)]
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
    /// Sample the replicas while measuring, with perf, into this file; the figures are not those of a run without
    #[arg(long)]
    perf: Option<PathBuf>,
}

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthyFigures {
    scenario: &'static str,
    shoots: usize,
    nodes: usize,
    replicas: usize,
    subscribers: usize,
    interval_seconds: f64,
    load_average_before: f64,
    start: Start,
    #[serde(flatten)]
    window: Window,
    /// The same replicas before the subscribers came.
    without_subscribers: Option<Window>,
}

/// The start of a full fleet.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    idle_resident_mib: f64,
    all_verdicts_after_seconds: f64,
    first_probes_within_seconds: f64,
    connections_opening_at_once: u64,
    cpu_millis_per_shoot: f64,
}

/// The difference between two moments.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Window {
    window_seconds: f64,
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
    longest_gap_ms: f64,
    seed_requests: BTreeMap<String, u64>,
    fleet_cpu_micros_per_probe: f64,
    fleet_cores: f64,
    fleet_resident_mib: f64,
    stream_messages_per_second: f64,
    streams_lost: u64,
}

struct UsageSnapshot {
    at: Instant,
    fleet: Report,
    used: Usage,
    lag: ScrapedHistogram,
    crowd: [u64; 2],
}

impl UsageSnapshot {
    async fn take(
        rig: &Rig,
        services: &[Service],
        crowd: Option<&CountingSubscribers>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            lag: ScrapedHistogram::read(services, SCHEDULE_LAG).await?,
            fleet: rig.admin.report().await?,
            used: Usage::of_services(services)?,
            crowd: crowd.map_or([0; 2], CountingSubscribers::counts),
            at: Instant::now(),
        })
    }
}

impl Window {
    async fn measure(
        rig: &Rig,
        services: &[Service],
        crowd: Option<&CountingSubscribers>,
        options: &HealthyOptions,
    ) -> anyhow::Result<Self> {
        rig.admin.post("/mark").await?;
        let request = rig.seed.last_request().await?;
        let before = UsageSnapshot::take(rig, services, crowd).await?;
        tokio::time::sleep(Duration::from_secs_f64(options.window)).await;
        let after = UsageSnapshot::take(rig, services, crowd).await?;
        let seed_requests = rig.seed.requests_since(request).await?;
        let gaps = rig.admin.shoots().await?;
        let longest_gap = gaps.iter().map(|shoot| shoot.longest_gap).max().unwrap_or(0);

        let seconds = (after.at - before.at).as_secs_f64();
        let cpu = (after.used.cpu - before.used.cpu).as_secs_f64();
        let fleet_cpu = after.fleet.cpu_seconds - before.fleet.cpu_seconds;
        let delta = |of: fn(&Report) -> u64| of(&after.fleet) - of(&before.fleet);
        let probes = delta(|r| r.lease_lists);
        let per_probe = |of| share(delta(of) as f64, probes);
        let lag = after.lag.since(&before.lag);
        let ([messages_before, _], [messages, streams_lost]) = (before.crowd, after.crowd);
        Ok(Self {
            window_seconds: round(seconds),
            probes,
            cpu_micros_per_probe: share(cpu * 1e6, probes),
            cores: round(cpu / seconds),
            requests_per_probe: per_probe(|r| r.lease_lists + r.node_lists + r.other_requests),
            node_lists: delta(|r| r.node_lists),
            bytes_to_prober_per_probe: per_probe(|r| r.bytes_sent),
            bytes_from_prober_per_probe: per_probe(|r| r.bytes_received),
            new_connections: delta(|r| r.connections_accepted),
            resident_mib: round(after.used.resident_mib),
            peak_mib: round(after.used.peak_mib),
            schedule_lag_p50_below_ms: lag.at_most_millis(50),
            schedule_lag_p99_below_ms: lag.at_most_millis(99),
            longest_gap_ms: round(longest_gap as f64 / 1e3),
            seed_requests,
            fleet_cpu_micros_per_probe: share(fleet_cpu * 1e6, probes),
            fleet_cores: round(fleet_cpu / seconds),
            fleet_resident_mib: round(after.fleet.memory_mib),
            stream_messages_per_second: round((messages - messages_before) as f64 / seconds),
            streams_lost,
        })
    }
}

/// Measures.
///
/// # Errors
/// When something does not come up or a shoot does not become healthy.
pub async fn run(options: HealthyOptions) -> anyhow::Result<HealthyFigures> {
    let load_average_before = load_average();
    let interval = Duration::from_secs_f64(options.interval);
    let rig = Rig::start(RigOptions {
        machines: false,
        ..RigOptions::new(options.shoots, options.nodes, interval)
    })
    .await?;
    let (services, _subscriber, start) = start(&rig, options.replicas).await?;
    // Until the waves of the start have spread out, and replicas have shared the shoots.
    tokio::time::sleep(interval * 2).await;
    let (mut without_subscribers, mut crowd) = (None, None);
    if options.subscribers > 0 {
        without_subscribers = Some(Window::measure(&rig, &services, None, &options).await?);
        crowd = Some(CountingSubscribers::start(&rig.setup, &services, options.subscribers).await?);
        tokio::time::sleep(interval * 2).await;
    }
    let sampling = Perf::start(&rig.scratch, &services, options.perf.as_deref())?;
    let window = Window::measure(&rig, &services, crowd.as_ref(), &options).await?;
    Perf::stop(sampling).await?;
    Ok(HealthyFigures {
        scenario: "healthy",
        shoots: options.shoots,
        nodes: options.nodes,
        replicas: options.replicas,
        subscribers: options.subscribers,
        interval_seconds: options.interval,
        load_average_before,
        start,
        window,
        without_subscribers,
    })
}

/// Starts the replicas and waits until every shoot is healthy.
///
/// # Errors
/// When one does not come up or a shoot does not become healthy.
pub(super) async fn start(rig: &Rig, replicas: usize) -> anyhow::Result<(Vec<Service>, Subscriber, Start)> {
    let begun = fleet::now();
    let services = rig.lease_probes(replicas).await?;
    let idle = Usage::of_services(&services)?;
    let subscriber = Subscriber::start(&rig.setup, &services)?;
    subscriber
        .until(rig.options.shoots, Outcome::Healthy, START_BOUND)
        .await?;
    let latest = subscriber.latest();
    let last = latest.values().map(|latest| latest.at).max().unwrap_or(begun);
    let used = Usage::of_services(&services)?;
    let shoots = rig.admin.shoots().await?;
    let firsts = || shoots.iter().map(|shoot| shoot.first_list);
    let spread = firsts().max().unwrap_or(0) - firsts().min().unwrap_or(0);
    let start = Start {
        idle_resident_mib: round(idle.resident_mib),
        all_verdicts_after_seconds: round((last - begun) as f64 / 1e6),
        first_probes_within_seconds: round(spread as f64 / 1e6),
        connections_opening_at_once: rig.admin.report().await?.connections_opening_most,
        cpu_millis_per_shoot: share(used.cpu.as_secs_f64() * 1e3, rig.options.shoots as u64),
    };
    Ok((services, subscriber, start))
}
