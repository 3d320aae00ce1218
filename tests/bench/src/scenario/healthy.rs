//! The steady state of a healthy fleet, and the start that leads to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::watchdog::Service;

use super::{ScrapedHistogram, peak_of, prober_config, round, share, usage_of};
use crate::fleet::{self, Report};
use crate::rig::perf::Perf;
use crate::rig::subscriber::{CountingSubscribers, Subscriber};
use crate::rig::{Rig, RigOptions};
use crate::usage::{Usage, load_average};

/// A start of 10,000 shoots takes some 10 s; a machine under load longer.
const START_BOUND: Duration = Duration::from_secs(180);

/// How late probes start, as lease-probe tells it.
const SCHEDULE_LAG: &str = "watchdog_probe_schedule_lag_seconds";

/// The parameters of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct HealthyOptions {
    /// Shoots
    #[arg(long, default_value_t = 1_000)]
    pub shoots: usize,
    /// Nodes of each shoot
    #[arg(long, default_value_t = 20)]
    pub nodes: usize,
    /// Mean seconds between two probes of a shoot
    #[arg(long, default_value_t = 10.0)]
    pub interval: f64,
    /// Seconds of measuring
    #[arg(long, default_value_t = 60.0)]
    pub window: f64,
    /// Replicas of lease-probe
    #[arg(long, default_value_t = 1)]
    pub replicas: usize,
    /// Subscribers to the whole seed, dealt out to the replicas. The same replicas are measured without them before
    #[arg(long, default_value_t = 0)]
    pub subscribers: usize,
    /// Sample the replicas while measuring, with perf, into this file; the figures are not those of a run without
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
    pub replicas: usize,
    pub subscribers: usize,
    pub interval_seconds: f64,
    pub window_seconds: f64,
    pub load_average_before: f64,
    pub start: Start,
    pub probes: u64,
    pub cpu_micros_per_probe: f64,
    pub cores: f64,
    pub requests_per_probe: f64,
    pub node_lists: u64,
    pub bytes_to_prober_per_probe: f64,
    pub bytes_from_prober_per_probe: f64,
    pub new_connections: u64,
    pub resident_mib: f64,
    pub peak_mib: f64,
    pub threads: u64,
    pub schedule_lag_p50_below_ms: Option<f64>,
    pub schedule_lag_p99_below_ms: Option<f64>,
    pub longest_gap_ms: f64,
    pub seed_requests: Option<BTreeMap<String, u64>>,
    pub fleet_cpu_micros_per_probe: f64,
    pub fleet_cores: f64,
    pub fleet_resident_mib: f64,
    pub stream_messages_per_second: f64,
    pub stream_bytes_per_second: f64,
    pub streams_lost: u64,
    pub without_subscribers: Option<WithoutSubscribers>,
}

/// The same replicas in the window before the subscribers came.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "the names, with their units, are what readers of the JSON see"
)]
pub struct WithoutSubscribers {
    pub cores: f64,
    pub cpu_micros_per_probe: f64,
    pub resident_mib: f64,
    pub schedule_lag_p99_below_ms: Option<f64>,
    pub fleet_cores: f64,
}

/// The start of a full fleet.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "the names, with their units, are what readers of the JSON see"
)]
pub struct Start {
    pub idle_resident_mib: f64,
    pub all_verdicts_after_seconds: f64,
    pub first_probes_within_seconds: f64,
    pub connections_opening_at_once: u64,
    pub cpu_millis_per_shoot: f64,
}

struct UsageSnapshot {
    at: Instant,
    fleet: Report,
    used: Usage,
    lag: ScrapedHistogram,
    crowd: (u64, u64, u64),
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
            used: usage_of(services)?,
            crowd: crowd.map_or((0, 0, 0), CountingSubscribers::counts),
            at: Instant::now(),
        })
    }
}

/// The difference between two moments.
struct Window {
    before: UsageSnapshot,
    after: UsageSnapshot,
}

impl Window {
    async fn measure(
        rig: &Rig,
        services: &[Service],
        crowd: Option<&CountingSubscribers>,
        options: &HealthyOptions,
        perf: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let sampling = perf
            .map(|file| Perf::start(&rig.scratch, services, file))
            .transpose()?;
        let before = UsageSnapshot::take(rig, services, crowd).await?;
        tokio::time::sleep(Duration::from_secs_f64(options.window)).await;
        if let (Some(sampling), Some(file)) = (sampling, perf) {
            sampling.stop(file).await?;
        }
        let after = UsageSnapshot::take(rig, services, crowd).await?;
        Ok(Self { before, after })
    }

    fn seconds(&self) -> f64 {
        (self.after.at - self.before.at).as_secs_f64()
    }

    fn cpu(&self) -> f64 {
        (self.after.used.cpu - self.before.used.cpu).as_secs_f64()
    }

    fn fleet_cpu(&self) -> f64 {
        self.after.fleet.cpu_seconds - self.before.fleet.cpu_seconds
    }

    fn delta(&self, of: impl Fn(&Report) -> u64) -> u64 {
        of(&self.after.fleet) - of(&self.before.fleet)
    }

    fn probes(&self) -> u64 {
        self.delta(|report| report.lease_lists)
    }

    fn without_subscribers(&self) -> WithoutSubscribers {
        WithoutSubscribers {
            cores: round(self.cpu() / self.seconds()),
            cpu_micros_per_probe: share(self.cpu() * 1e6, self.probes()),
            resident_mib: round(self.after.used.resident_mib),
            schedule_lag_p99_below_ms: self.after.lag.since(&self.before.lag).at_most_millis(99),
            fleet_cores: round(self.fleet_cpu() / self.seconds()),
        }
    }
}

/// Measures.
///
/// # Errors
/// When something does not come up or a shoot does not become healthy.
pub async fn run(options: HealthyOptions) -> anyhow::Result<Outcomes> {
    let load_average_before = load_average();
    let interval = Duration::from_secs_f64(options.interval);
    let rig = Rig::start(RigOptions {
        shoots: options.shoots,
        nodes: options.nodes,
        machines: false,
        dependants: false,
        real: false,
        prober: prober_config(interval),
    })
    .await?;
    let (services, _subscriber, start) = start(&rig, options.replicas).await?;
    // Until the waves of the start have spread out, and replicas have shared the shoots.
    tokio::time::sleep(interval * 2).await;
    let (without, crowd) = subscribe(&rig, &services, &options).await?.unzip();
    rig.admin.mark().await?;
    let request = rig.seed.last_request().await?;
    let perf = options.perf.as_deref();
    let window = Window::measure(&rig, &services, crowd.as_ref(), &options, perf).await?;
    let seed_requests = rig.seed.requests_since(request).await?;
    let gaps = rig.admin.shoots().await?;
    let longest_gap = gaps.iter().map(|shoot| shoot.longest_gap).max().unwrap_or(0);

    let Window { before, after } = &window;
    let delta = |of: fn(&Report) -> u64| window.delta(of);
    let probes = window.probes();
    let lag = after.lag.since(&before.lag);
    let per_second = |count: u64| round(count as f64 / window.seconds());
    Ok(Outcomes {
        scenario: "healthy",
        shoots: options.shoots,
        nodes: options.nodes,
        replicas: options.replicas,
        subscribers: options.subscribers,
        interval_seconds: options.interval,
        window_seconds: round(window.seconds()),
        load_average_before,
        start,
        probes,
        cpu_micros_per_probe: share(window.cpu() * 1e6, probes),
        cores: round(window.cpu() / window.seconds()),
        requests_per_probe: share(delta(requests) as f64, probes),
        node_lists: delta(|r| r.node_lists),
        bytes_to_prober_per_probe: share(delta(|r| r.bytes_sent) as f64, probes),
        bytes_from_prober_per_probe: share(delta(|r| r.bytes_received) as f64, probes),
        new_connections: delta(|r| r.connections_accepted),
        resident_mib: round(after.used.resident_mib),
        peak_mib: round(peak_of(&services)?),
        threads: after.used.threads,
        schedule_lag_p50_below_ms: lag.at_most_millis(50),
        schedule_lag_p99_below_ms: lag.at_most_millis(99),
        longest_gap_ms: round(longest_gap as f64 / 1e3),
        seed_requests,
        fleet_cpu_micros_per_probe: share(window.fleet_cpu() * 1e6, probes),
        fleet_cores: round(window.fleet_cpu() / window.seconds()),
        fleet_resident_mib: round(after.fleet.memory_mib),
        stream_messages_per_second: per_second(after.crowd.0 - before.crowd.0),
        stream_bytes_per_second: per_second(after.crowd.1 - before.crowd.1),
        streams_lost: after.crowd.2,
        without_subscribers: without,
    })
}

/// All requests that the fleet received.
fn requests(r: &Report) -> u64 {
    let lists = r.lease_lists + r.node_lists + r.further_pages;
    lists + r.version_requests + r.discovery_requests + r.other_requests
}

/// If there will be subscribers, measures the replicas without them, then starts them.
async fn subscribe(
    rig: &Rig,
    services: &[Service],
    options: &HealthyOptions,
) -> anyhow::Result<Option<(WithoutSubscribers, CountingSubscribers)>> {
    if options.subscribers == 0 {
        return Ok(None);
    }
    let window = Window::measure(rig, services, None, options, None).await?;
    let crowd = CountingSubscribers::start(&rig.setup, services, options.subscribers).await?;
    tokio::time::sleep(Duration::from_secs_f64(options.interval) * 2).await;
    Ok(Some((window.without_subscribers(), crowd)))
}

/// Starts the replicas and waits until every shoot is healthy.
///
/// # Errors
/// When one does not come up or a shoot does not become healthy.
pub async fn start(rig: &Rig, replicas: usize) -> anyhow::Result<(Vec<Service>, Subscriber, Start)> {
    let begun = fleet::now();
    let services = rig.lease_probes(replicas).await?;
    let idle = usage_of(&services)?;
    let subscriber = Subscriber::start(&rig.setup, &services).await?;
    subscriber
        .until(rig.options.shoots, Outcome::Healthy, START_BOUND)
        .await?;
    let latest = subscriber.latest();
    let last = latest.values().map(|latest| latest.at).max().unwrap_or(begun);
    let used = usage_of(&services)?;
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

impl std::fmt::Display for Outcomes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} shoots x {} nodes, every {} s, {} replica(s), {} more subscribers; load average before: {}",
            self.shoots,
            self.nodes,
            self.interval_seconds,
            self.replicas,
            self.subscribers,
            self.load_average_before
        )?;
        let start = &self.start;
        writeln!(
            f,
            "  start: first probes within {} s, all verdicts after {} s, {} connections opening at once, {} ms of CPU \
             per shoot",
            start.first_probes_within_seconds,
            start.all_verdicts_after_seconds,
            start.connections_opening_at_once,
            start.cpu_millis_per_shoot
        )?;
        writeln!(
            f,
            "  per probe: {} us of CPU, {} requests, {} B in, {} B out; {} probes, {} node lists, {} new connections",
            self.cpu_micros_per_probe,
            self.requests_per_probe,
            self.bytes_to_prober_per_probe,
            self.bytes_from_prober_per_probe,
            self.probes,
            self.node_lists,
            self.new_connections
        )?;
        writeln!(
            f,
            "  {} cores, {} MiB resident ({} at most); lag of the schedule below {:?} ms (p50), {:?} ms (p99), longest \
             gap {} ms",
            self.cores,
            self.resident_mib,
            self.peak_mib,
            self.schedule_lag_p50_below_ms,
            self.schedule_lag_p99_below_ms,
            self.longest_gap_ms
        )?;
        writeln!(
            f,
            "  the fleet itself: {} us per probe, {} cores, {} MiB; seed requests {:?}; streams: {} messages/s, {} \
             B/s, {} lost",
            self.fleet_cpu_micros_per_probe,
            self.fleet_cores,
            self.fleet_resident_mib,
            self.seed_requests,
            self.stream_messages_per_second,
            self.stream_bytes_per_second,
            self.streams_lost
        )?;
        let Some(without) = &self.without_subscribers else {
            return Ok(());
        };
        writeln!(
            f,
            "  without the subscribers: {} cores, {} us of CPU per probe, {} MiB resident, lag below {:?} ms (p99), \
             the fleet {} cores; with them {} cores and {} MiB more",
            without.cores,
            without.cpu_micros_per_probe,
            without.resident_mib,
            without.schedule_lag_p99_below_ms,
            without.fleet_cores,
            round(self.cores - without.cores),
            round(self.resident_mib - without.resident_mib)
        )
    }
}
