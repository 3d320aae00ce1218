//! The fields of a kubeconfig: the files that they name, and their faults.

use std::io;
use std::path::Path;

use anyhow::anyhow;
use watchdog_api::kubeconfig::{self, KubeconfigError};
use watchdog_runtime::regular_file;

/// Reads a kubeconfig, or a file that it names.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    regular_file::read(path, kubeconfig::MAX_BYTES)
}

/// The fault of a field that names itself.
pub(super) fn of_field(error: KubeconfigError) -> anyhow::Error {
    anyhow!("{} {}", error.field, error.reason)
}
