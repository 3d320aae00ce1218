//! A temporary folder per test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, thread};

use anyhow::Context;
use tempfile::TempDir;

/// Set to anything to keep every test's folder.
const KEEP_VARIABLE: &str = "WATCHDOG_E2E_KEEP";

/// A folder for one test's logs, certificates and data. Removed when the last owner drops it, unless the test is
/// panicking then or `WATCHDOG_E2E_KEEP` is set: in that case its path is printed.
#[derive(Debug)]
pub struct Scratch {
    folder: Option<TempDir>,
    path: PathBuf,
}

impl Scratch {
    /// Makes a folder under the system's temporary folder (`TMPDIR`); `name` becomes part of its name.
    pub fn new(name: &str) -> anyhow::Result<Arc<Self>> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("watchdog-{name}-"))
            .tempdir()
            .context("make a temporary folder")?;
        let path = folder.path().to_owned();
        Ok(Arc::new(Self {
            folder: Some(folder),
            path,
        }))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside the folder.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file inside the folder and returns its path.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.join(name);
        fs::write(&path, contents).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if (thread::panicking() || std::env::var_os(KEEP_VARIABLE).is_some())
            && let Some(folder) = self.folder.take()
        {
            eprintln!("logs and data are kept in {}", folder.keep().display());
        }
    }
}
