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
use watchdog_test_support::watchdog::Service;

use crate::round;

/// Mean time between two probes of a shoot, where an option does not set another.
const INTERVAL: Duration = Duration::from_secs(10);

/// How late probes start, as lease-probe reports it.
const SCHEDULE_LAG: &str = "watchdog_probe_schedule_lag_seconds";

/// Tells who samples the services that the figures of a measurement begin now: `tests/bench/profile`.
fn say_measuring(services: &[Service]) {
    let processes: Vec<_> = services.iter().map(|service| service.process.id()).collect();
    eprintln!("measuring the processes {processes:?}");
}

/// `part / whole`, 0 where there is no whole.
fn share(part: f64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        round(part / whole as f64)
    }
}

/// A histogram as /metrics shows it: how many values were at most that many microseconds.
#[derive(Debug, Clone, Default)]
struct ScrapedHistogram(BTreeMap<u64, u64>);

impl ScrapedHistogram {
    /// Reads one without labels, added up over all services.
    async fn read(services: &[Service], name: &str) -> anyhow::Result<Self> {
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
    fn since(&self, before: &Self) -> Self {
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
    fn at_most_millis(&self, percent: u64) -> Option<f64> {
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
}
