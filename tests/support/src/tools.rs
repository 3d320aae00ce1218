//! Programs that `tests/tools/setup` brings.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, bail};

/// grpcurl, the gRPC command line client.
pub const GRPCURL: &str = "grpcurl";

/// Debian's Chromium. Its tests are skipped where it is not installed.
pub const CHROMIUM: &str = "chromium";

/// A library that, preloaded, shows a program another time of day.
pub const LIBFAKETIME: &str = "libfaketime.so";

/// The path of a tool: from `PATH` (`make test` puts the pinned ones in front), else from where
/// `tests/tools/setup` leaves them, so that a test can also be started by hand.
pub fn path(name: &str) -> anyhow::Result<PathBuf> {
    let on_path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&on_path)
        .chain([cache_folder()?.join("bin")])
        .map(|folder| folder.join(name))
        .find(|program| program.is_file());
    match found {
        Some(program) => Ok(program),
        None => bail!("{name} is not there: run `tests/tools/setup test`"),
    }
}

/// The folder in which the scripts under `tests/tools` keep what they fetch and build.
pub fn cache_folder() -> anyhow::Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => PathBuf::from(env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?)
            .join(".cache"),
    };
    Ok(base.join("dependency-watchdog"))
}
