//! The resources that a service uses; a leak shows here.

use std::fmt;

use anyhow::Context;

use crate::wait::{self, BOUND};
use crate::watchdog::Service;

/// Connections and tasks that come and go: requests under way, kept connections.
const SLACK: usize = 16;

/// Memory that an allocator keeps after a burst; more than that on top of the first measure is a leak.
const SLACK_KB: u64 = 24 * 1024;

/// Taken at one moment.
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

// === impl ResourceUsage ===

impl ResourceUsage {
    /// Takes it.
    ///
    /// # Errors
    /// When the service does not run.
    pub async fn of(service: &Service) -> anyhow::Result<Self> {
        let folder = format!("/proc/{}", service.process.id());
        let status = std::fs::read_to_string(format!("{folder}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let tasks = service.metric("watchdog_runtime_tasks").await?;
        let tasks = tasks.context("a service that does not count its tasks")?;
        Ok(Self {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count of tasks"
            )]
            tasks: tasks as usize,
            descriptors: std::fs::read_dir(format!("{folder}/fd"))?.count(),
            resident_kb: resident.context("a process without memory")?,
        })
    }

    /// True if this is not more than `before`, except what comes and goes.
    #[must_use]
    pub const fn fits(&self, before: &Self) -> bool {
        self.tasks <= before.tasks + SLACK
            && self.descriptors <= before.descriptors + SLACK
            && self.resident_kb <= before.resident_kb + SLACK_KB
    }

    /// Waits until a service is back at what it took before.
    ///
    /// # Errors
    /// When it stays above: it leaks.
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
