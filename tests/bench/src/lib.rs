//! Shared by the measurements: what they measure and print, and a simulated fleet of shoots.

#![allow(missing_docs, reason = "no API: only tests use it")]

pub mod fleet;
pub mod rig;
pub mod scenario;

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::ensure;
use jiff::Timestamp;
use serde::Serialize;
use watchdog_sandbox::{ApiOptions, ApiServer, AuditEntry};

/// The spread of many measured times, in milliseconds with a tenth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub count: usize,
    /// Half of them took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Spread {
    /// Of times in microseconds; those below zero count as zero. None of no times.
    pub fn of_micros(times: impl IntoIterator<Item = i64>) -> Option<Self> {
        let mut times: Vec<i64> = times.into_iter().collect();
        times.sort_unstable();
        let count = times.len();
        // Nearest rank: the smallest time that `percent` in a hundred do not exceed.
        let rank = |percent: usize| {
            let micros = times.get((count * percent).div_ceil(100).saturating_sub(1))?;
            Some(round_to(*micros.max(&0) as f64 / 1e3, 10.0))
        };
        Some(Self {
            count,
            p50: rank(50)?,
            p99: rank(99)?,
            max: rank(100)?,
        })
    }
}

fn round_to(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Rounded for people: three digits after the point.
pub fn round(value: f64) -> f64 {
    round_to(value, 1e3)
}

/// MiB, from kB.
pub fn mib(kb: u64) -> f64 {
    round(kb as f64 / 1024.0)
}

/// From a time to the arrival of a request, in microseconds.
pub fn micros_since(time: Timestamp, request: &AuditEntry) -> anyhow::Result<i64> {
    let micros = request.time.as_microsecond() - time.as_microsecond();
    ensure!(micros >= 0, "{} {} came too early", request.verb, request.path);
    Ok(micros)
}

/// Requests by verb and resource: `list machines`, `patch leases` and the like.
pub fn requests_by_kind(requests: &[AuditEntry]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for AuditEntry { verb, path, .. } in requests {
        let parts: Vec<&str> = path.split('/').collect();
        let resource = match parts.iter().position(|part| *part == "namespaces") {
            Some(at) => parts.get(at + 2).or(parts.get(at)),
            None => parts.last(),
        };
        let kind = format!("{verb} {}", resource.copied().unwrap_or_default());
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

/// The most that came within one second.
pub fn busiest_second(times: impl IntoIterator<Item = Timestamp>) -> usize {
    let mut times: Vec<_> = times.into_iter().map(Timestamp::as_microsecond).collect();
    times.sort_unstable();
    let within = |(number, time)| number + 1 - times.partition_point(|earlier| earlier + 1_000_000 <= time);
    times
        .iter()
        .copied()
        .enumerate()
        .map(within)
        .max()
        .unwrap_or_default()
}

/// The sandbox's API server as a seed: with room for the requests and changes of ten thousand shoots.
pub async fn sandbox_seed() -> anyhow::Result<ApiServer> {
    let options = ApiOptions {
        namespaces: vec!["garden".to_owned()],
        watch_log: 1 << 16,
        audit_log: 1 << 17,
        ..ApiOptions::default()
    };
    Ok(ApiServer::start(options).await?)
}

/// Prints figures as JSON: their names, with their units, explain them.
pub fn print(figures: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(figures)?;
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let spread = Spread::of_micros((1..=200).rev().map(|millis| millis * 1_000)).unwrap();
        assert_eq!((spread.p50, spread.p99, spread.max), (100.0, 198.0, 200.0));
        let one = Spread::of_micros([7_049]).unwrap();
        assert_eq!((one.p50, one.p99, one.max), (7.0, 7.0, 7.0));
        assert_eq!(Spread::of_micros([-7]).unwrap().max, 0.0);
        assert_eq!(Spread::of_micros([]), None);
    }

    #[test]
    fn the_busiest_second_is_found_wherever_it_begins() {
        let at = |millis: i64| Timestamp::from_millisecond(millis).unwrap();
        assert_eq!(busiest_second([0, 900, 1_500, 1_899, 1_900, 5_000].map(at)), 3);
        assert_eq!(busiest_second([]), 0);
    }
}
