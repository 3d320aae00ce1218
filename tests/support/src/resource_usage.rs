//! The resources that processes use, read from /proc; a leak shows here.

use std::fmt;
use std::time::Duration;

use anyhow::Context;

use crate::wait::{self, BOUND};
use crate::watchdog::Service;

/// Connections and tasks that come and go: requests under way, kept connections.
const SLACK: usize = 16;

/// Memory that an allocator keeps after a burst; more than that on top of the first measure is a leak.
const SLACK_KB: u64 = 24 * 1024;

/// CPU time is counted in these: USER_HZ, which is 100 on every Linux that this runs on.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time and memory of a process, or the sum over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system time of all threads since the start.
    pub cpu: Duration,
    /// Resident memory now.
    pub resident_kb: u64,
    /// The most resident memory so far.
    pub peak_kb: u64,
}

/// Taken from a service at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Tasks of the runtime.
    pub tasks: usize,
    /// Open file descriptors.
    pub descriptors: usize,
    /// Resident memory in KiB.
    pub resident_kb: u64,
}

impl fmt::Display for ResourceUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tasks,
            descriptors,
            resident_kb,
        } = self;
        write!(f, "{tasks} tasks, {descriptors} descriptors, {resident_kb} KiB")
    }
}

// === impl ProcessUsage ===

impl ProcessUsage {
    /// The usage of these services, added up.
    pub fn of<'a>(services: impl IntoIterator<Item = &'a Service>) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        for service in services {
            let one = Self::of_process(service.process.id())?;
            sum.cpu += one.cpu;
            sum.resident_kb += one.resident_kb;
            sum.peak_kb += one.peak_kb;
        }
        Ok(sum)
    }

    /// The usage of a process: a number, or `self`.
    fn of_process(pid: impl fmt::Display) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        Self::parse(&read("stat")?, &read("status")?)
            .with_context(|| format!("/proc/{pid} is not as expected"))
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        let kb = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            cpu: cpu(stat)?,
            resident_kb: kb("VmRSS:")?,
            peak_kb: kb("VmHWM:")?,
        })
    }
}

/// CPU time of all threads of this process that have a name.
pub fn cpu_of_threads(name: &str) -> anyhow::Result<Duration> {
    let mut sum = Duration::ZERO;
    for thread in std::fs::read_dir("/proc/self/task")? {
        // One that ends meanwhile has no file any more.
        let stat = std::fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
        if stat.contains(&format!(" ({name}) ")) {
            sum += cpu(&stat).context("/proc is not as expected")?;
        }
    }
    Ok(sum)
}

/// User and system time in a file `stat`.
fn cpu(stat: &str) -> Option<Duration> {
    // A name may hold spaces and parentheses: what counts comes after the last one.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |number: usize| fields.get(number)?.parse::<u64>().ok();
    let both = ticks(11)? + ticks(12)?;
    Some(Duration::from_millis(both * 1_000 / TICKS_PER_SECOND))
}

// === impl ResourceUsage ===

impl ResourceUsage {
    /// Takes it.
    pub async fn of(service: &Service) -> anyhow::Result<Self> {
        let tasks = service.metric("watchdog_runtime_tasks").await?;
        let tasks = tasks.context("a service that does not count its tasks")?;
        Ok(Self {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count of tasks"
            )]
            tasks: tasks as usize,
            descriptors: std::fs::read_dir(format!("/proc/{}/fd", service.process.id()))?.count(),
            resident_kb: ProcessUsage::of([service])?.resident_kb,
        })
    }

    /// True if this is not more than `before`, except what comes and goes.
    pub const fn fits(&self, before: &Self) -> bool {
        self.tasks <= before.tasks + SLACK
            && self.descriptors <= before.descriptors + SLACK
            && self.resident_kb <= before.resident_kb + SLACK_KB
    }

    /// Waits until a service is back at what it took before.
    pub async fn wait_for(before: &Self, service: &Service) -> anyhow::Result<Self> {
        let name = service.process.name();
        wait::until(&format!("{name} takes no more than before"), BOUND, || async {
            let now = Self::of(service).await?;
            anyhow::ensure!(now.fits(before), "{before}, then {now}");
            Ok(Some(now))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc() {
        let stat =
            "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 5 0 1000 1000000 2560 184467";
        let status = "Name:\ta\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n";
        let usage = ProcessUsage::parse(stat, status).unwrap();
        assert_eq!(usage.cpu, Duration::from_secs(3));
        assert_eq!((usage.resident_kb, usage.peak_kb), (10_240, 20_480));
        let own = ProcessUsage::of_process("self").unwrap();
        assert!(own.resident_kb > 1_000 && own.peak_kb >= own.resident_kb);
    }

    #[test]
    fn only_threads_of_the_name_count() {
        let busy = std::thread::Builder::new().name("busy".to_owned());
        let busy = busy.spawn(
            || {
                while cpu_of_threads("busy").unwrap() < Duration::from_millis(20) {}
            },
        );
        busy.unwrap().join().unwrap();
        assert_eq!(cpu_of_threads("idle").unwrap(), Duration::ZERO);
    }
}
