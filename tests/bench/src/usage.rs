//! The CPU and memory of processes, read from /proc.

use std::time::Duration;

use anyhow::Context;
use watchdog_test_support::watchdog::Service;

/// CPU time is counted in these: USER_HZ, which is 100 on every Linux that this runs on.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time and memory of a process, or the sum over several.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// User and system time of all threads since the start.
    pub cpu: Duration,
    /// Resident memory now, in MiB.
    pub resident_mib: f64,
    /// The most resident memory so far, in MiB.
    pub peak_mib: f64,
}

impl Usage {
    /// The usage of a process (`self` or a number).
    ///
    /// # Errors
    /// When the process has ended.
    pub fn of_process(pid: impl std::fmt::Display) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        Self::parse(&read("stat")?, &read("status")?)
            .with_context(|| format!("/proc/{pid} is not as expected"))
    }

    /// The usage of several services, added up.
    ///
    /// # Errors
    /// When one has ended.
    pub fn of_services(services: &[Service]) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        for service in services {
            let one = Self::of_process(service.process.id())?;
            sum.cpu += one.cpu;
            sum.resident_mib += one.resident_mib;
            sum.peak_mib += one.peak_mib;
        }
        Ok(sum)
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        // The name of the program may hold spaces and parentheses: what counts comes after the last one.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |number: usize| fields.get(number)?.parse::<u64>().ok();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        Some(Self {
            cpu: Duration::from_millis((ticks(11)? + ticks(12)?) * 1_000 / TICKS_PER_SECOND),
            resident_mib: number("VmRSS:")? as f64 / 1024.0,
            peak_mib: number("VmHWM:")? as f64 / 1024.0,
        })
    }
}

/// The load average of the last minute: how far a figure is from that of a machine of one's own.
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc() {
        let stat =
            "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 5 0 1000 1000000 2560 184467";
        let status = "Name:\ta\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n";
        let usage = Usage::parse(stat, status).unwrap();
        assert_eq!(usage.cpu, Duration::from_secs(3));
        assert_eq!((usage.resident_mib, usage.peak_mib), (10.0, 20.0));
    }

    #[test]
    fn this_process_has_used_something() {
        let own = Usage::of_process("self").unwrap();
        assert!(own.resident_mib > 1.0 && own.peak_mib >= own.resident_mib);
    }
}
