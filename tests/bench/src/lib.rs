//! Shared by the measurements: percentiles, the cost of a process, and a simulated fleet of shoots.

#![allow(missing_docs, reason = "no API: only tests use it")]

pub mod fleet;
pub mod rig;
pub mod rules;
pub mod scenario;
pub mod usage;

use std::time::Duration;

use anyhow::Context;

/// The spread of many measured times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// Half of them took no longer.
    pub p50: Duration,
    /// 99 of 100 took no longer.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl Spread {
    /// Of these times; none of no times.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let count = times.len();
        // Nearest rank: the smallest time that `percent` in a hundred do not exceed.
        let rank = |percent: usize| {
            times
                .get((count * percent).div_ceil(100).saturating_sub(1))
                .copied()
        };
        Some(Self {
            count,
            p50: rank(50)?,
            p99: rank(99)?,
            max: rank(100)?,
        })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, p50, p99, max } = self;
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        write!(
            f,
            "p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms ({count})",
            ms(p50),
            ms(p99),
            ms(max)
        )
    }
}

/// The most memory that a process has had so far (`VmHWM`), in MiB.
///
/// # Errors
/// When the process has ended.
pub fn peak_memory(pid: i32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))
        .with_context(|| format!("no VmHWM in {path}"))?;
    Ok(kib.trim().parse::<f64>()? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let millis = |n| Duration::from_millis(n);
        let spread = Spread::of((1..=200).rev().map(millis).collect()).unwrap();
        assert_eq!(
            (spread.p50, spread.p99, spread.max),
            (millis(100), millis(198), millis(200))
        );
        let one = Spread::of(vec![millis(7)]).unwrap();
        assert_eq!((one.p50, one.p99, one.max), (millis(7), millis(7), millis(7)));
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn a_process_has_memory() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(peak_memory(own).unwrap() > 1.0);
    }
}
