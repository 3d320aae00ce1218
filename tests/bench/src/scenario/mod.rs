//! The measurements. Each starts its own rig, so that no figure depends on the one before.

pub mod healthy;
pub mod hostile;
pub mod incident;
pub mod loss;
pub mod outage;
pub mod serve;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use watchdog_test_support::fixtures;
use watchdog_test_support::watchdog::Service;

use crate::usage::{self, Usage};
use crate::{Spread, peak_memory};

/// Gardener's dependants and their order; the head says how often is probed.
///
/// lease-probe adds 0 to 20 % to its interval at random, 10 % on average: with this head, shoots are probed every
/// `interval` on average.
#[must_use]
pub fn prober_config(interval: Duration) -> String {
    let millis = (interval.as_secs_f64() / 1.1 * 1e3).round();
    fixtures::prober(&format!("probeInterval: {millis}ms"), "30s")
}

/// Times in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub struct Millis {
    pub count: usize,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Millis {
    /// Of times in microseconds; those below zero count as zero.
    #[must_use]
    pub fn of_micros(times: impl IntoIterator<Item = i64>) -> Option<Self> {
        let times = times.into_iter();
        let times = times
            .map(|micros| Duration::from_micros(micros.max(0).unsigned_abs()))
            .collect();
        let Spread { count, p50, p99, max } = Spread::of(times)?;
        let millis = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        Some(Self {
            count,
            p50: millis(p50),
            p99: millis(p99),
            max: millis(max),
        })
    }
}

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, p50, p99, max } = self;
        write!(f, "p50 {p50} ms, p99 {p99} ms, max {max} ms ({count})")
    }
}

/// Rounded for people: three digits after the point.
#[must_use]
pub fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// `part / whole`, 0 where there is no whole.
#[must_use]
pub fn share(part: f64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        round(part / whole as f64)
    }
}

/// The sum of what several processes have used.
///
/// # Errors
/// When one has ended.
pub fn usage_of(services: &[Service]) -> anyhow::Result<Usage> {
    let mut sum = Usage::default();
    for service in services {
        let one = usage::of_process(service.process.id())?;
        sum.cpu += one.cpu;
        sum.resident_mib += one.resident_mib;
        sum.threads += one.threads;
    }
    Ok(sum)
}

/// The most memory that several processes have had, added up, in MiB.
///
/// # Errors
/// When one has ended.
pub fn peak_of(services: &[Service]) -> anyhow::Result<f64> {
    services
        .iter()
        .map(|service| peak_memory(service.process.id()))
        .sum()
}

/// A histogram as /metrics shows it: how many values were at most that many seconds.
#[derive(Debug, Clone, Default)]
pub struct ScrapedHistogram(BTreeMap<u64, u64>);

impl ScrapedHistogram {
    /// Reads one without labels, added up over all services.
    ///
    /// # Errors
    /// When an admin endpoint does not answer.
    pub async fn read(services: &[Service], name: &str) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        let prefix = format!("{name}_bucket{{le=\"");
        for service in services {
            let (_, text) = service.admin_get("/metrics").await?;
            for line in text.lines().filter_map(|line| line.strip_prefix(&prefix)) {
                let (bound, count) = line.split_once("\"} ").context("a bucket without a count")?;
                let micros = match bound {
                    "+Inf" => u64::MAX,
                    // Microseconds of at most some minutes.
                    bound => (bound.parse::<f64>()? * 1e6) as u64,
                };
                *sum.0.entry(micros).or_default() += count.parse::<u64>()?;
            }
        }
        Ok(sum)
    }

    /// The difference to `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let old = |bound: &u64| before.0.get(bound).copied().unwrap_or(0);
        Self(
            self.0
                .iter()
                .map(|(bound, n)| (*bound, n.saturating_sub(old(bound))))
                .collect(),
        )
    }

    /// The bucket's bound below which this share of a hundred lies, in milliseconds; none without values or above all
    /// bounds.
    #[must_use]
    pub fn at_most_millis(&self, percent: u64) -> Option<f64> {
        let all = *self.0.get(&u64::MAX)?;
        let rank = (all * percent).div_ceil(100);
        let (bound, _) = self.0.iter().find(|(_, count)| **count >= rank)?;
        (all > 0 && *bound != u64::MAX).then(|| *bound as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_tells_bounds() {
        let histogram = |counts: [u64; 3]| {
            ScrapedHistogram([(1_000, counts[0]), (2_500, counts[1]), (u64::MAX, counts[2])].into())
        };
        let since = histogram([90, 199, 200]).since(&histogram([0, 100, 100]));
        assert_eq!(since.at_most_millis(50), Some(1.0));
        assert_eq!(since.at_most_millis(99), Some(2.5));
        assert_eq!(since.at_most_millis(100), None);
        assert_eq!(ScrapedHistogram::default().at_most_millis(50), None);
    }

    #[test]
    fn the_mean_interval_is_the_one_asked_for() {
        assert!(prober_config(Duration::from_secs(10)).contains("probeInterval: 9091ms"));
    }
}
