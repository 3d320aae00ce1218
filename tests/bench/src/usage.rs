//! The CPU and memory of a process, read from /proc.

use std::time::Duration;

use anyhow::Context;

/// CPU time is counted in these: USER_HZ, which is 100 on every Linux that this runs on.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time and memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// User and system time of all its threads since its start.
    pub cpu: Duration,
    /// Resident memory now, in MiB.
    pub resident_mib: f64,
    pub threads: u64,
}

/// Reads what a process (`self` or a number) has used.
///
/// # Errors
/// When the process has ended.
pub fn of_process(pid: impl std::fmt::Display) -> anyhow::Result<Usage> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse(&text).with_context(|| format!("{path} is not as expected"))
}

fn parse(stat: &str) -> Option<Usage> {
    // The name of the program may hold spaces and parentheses: what counts comes after the last one.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number)?.parse::<u64>().ok();
    let ticks = field(11)? + field(12)?;
    Some(Usage {
        cpu: Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND),
        // Pages of 4 KiB.
        resident_mib: field(21)? as f64 / 256.0,
        threads: field(17)?,
    })
}

/// The number of files that this process, and each one that it starts, may have open.
///
/// # Errors
/// When the kernel does not say.
pub fn open_files_limit() -> anyhow::Result<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").context("read /proc/self/limits")?;
    parse_open_files(&limits).context("/proc/self/limits is not as expected")
}

fn parse_open_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        soft => soft.parse().ok(),
    }
}

/// The load average of the last minute: how far a figure is from that of a machine of one's own.
#[must_use]
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc() {
        let line =
            "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 5 0 1000 1000000 2560 184467";
        let usage = parse(line).unwrap();
        assert_eq!(usage.cpu, Duration::from_secs(3));
        assert_eq!((usage.threads, usage.resident_mib), (5, 10.0));
    }

    #[test]
    fn the_soft_limit_counts() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(parse_open_files(limits), Some(1_024));
        assert!(open_files_limit().unwrap() > 0);
    }

    #[test]
    fn this_process_has_used_something() {
        assert!(of_process("self").unwrap().resident_mib > 1.0);
    }
}
