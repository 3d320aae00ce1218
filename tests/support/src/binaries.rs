//! The workspace's own programs, as they were built.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The probe service.
pub const LEASE_PROBE: &str = "lease-probe";
/// The service that scales.
pub const SCALING_COORDINATOR: &str = "scaling-coordinator";
/// The service that deletes crash-looping pods.
pub const WEEDER: &str = "weeder";
/// The services in the place of Gardener's Go program.
pub const DEPENDENCY_WATCHDOG: &str = "dependency-watchdog";
/// The command line.
pub const WATCHDOGCTL: &str = "watchdogctl";

/// The path of a program of this workspace: it stands in the target folder that the running test or program was
/// itself built into (`target/<profile>/NAME`).
pub fn path(name: &str) -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("find the path of the running program")?;
    let folder = profile_folder(&own).with_context(|| format!("{} is in no target folder", own.display()))?;
    let program = folder.join(name);
    if program.is_file() {
        return Ok(program);
    }
    let release = if folder.ends_with("release") {
        " --release"
    } else {
        ""
    };
    bail!(
        "{} has not been built: run `cargo build --workspace --bins{release}`",
        program.display()
    )
}

/// Tests stand in `target/<profile>/deps/`, programs in `target/<profile>/`.
fn profile_folder(program: &Path) -> Option<&Path> {
    let folder = program.parent()?;
    if folder.ends_with("deps") {
        folder.parent()
    } else {
        Some(folder)
    }
}
