//! Profiles of the services under test, with perf.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::watchdog::Service;

/// Samples per second and thread: odd, so that it beats with no timer.
const FREQUENCY: &str = "499";

/// Writing what was sampled takes a moment.
const STOP_BOUND: Duration = Duration::from_secs(60);

/// A running `perf record`.
#[derive(Debug)]
pub struct Perf {
    process: ChildProcess,
    file: PathBuf,
}

impl Perf {
    /// Samples these services, with their stacks, into `file` if there is one.
    ///
    /// # Errors
    /// When there is no perf.
    pub fn start(
        scratch: &Arc<Scratch>,
        services: &[Service],
        file: Option<&Path>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(file) = file else {
            return Ok(None);
        };
        let pids: Vec<String> = services
            .iter()
            .map(|service| service.process.id().to_string())
            .collect();
        let command = Command::new("perf", "/usr/bin/perf")
            .args(["record", "-F", FREQUENCY, "--call-graph", "dwarf,16384", "-p"])
            .arg(pids.join(","))
            .arg("-o")
            .arg(file);
        Ok(Some(Self {
            process: command.spawn(scratch)?,
            file: file.to_owned(),
        }))
    }

    /// Ends it, if it runs; when this returns the file is whole.
    ///
    /// # Errors
    /// When perf did not work, for instance because the kernel forbids it.
    pub async fn stop(running: Option<Self>) -> anyhow::Result<()> {
        let Some(Self { process, file }) = running else {
            return Ok(());
        };
        process.sigint()?;
        process.wait_exit(STOP_BOUND).await?;
        ensure!(file.is_file(), "perf wrote nothing: {}", process.log_tail());
        Ok(())
    }
}
