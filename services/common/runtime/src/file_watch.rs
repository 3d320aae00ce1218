//! Follows files that change while the process runs: the configuration file and the TLS files.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::failure::chain;
use crate::metrics::Gauge;

/// The files are looked at this often. Events of the operating system would not replace that, because some volumes
/// (NFS, some container runtimes) deliver none.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// When a file was changed last, and its length; none if it is not there.
type FileVersion = Option<(SystemTime, u64)>;

/// Reads the files now, because they may have changed before they were followed, and after every change, until `stop`
/// is cancelled. A change that cannot be used is reported, in `valid` too, and what was read last remains in use.
pub(crate) async fn follow(
    paths: &[PathBuf],
    valid: &Gauge,
    stop: &CancellationToken,
    mut read: impl FnMut() -> anyhow::Result<()>,
) {
    while !stop.is_cancelled() {
        let before = versions(paths);
        let read = read();
        valid.set((), f64::from(u8::from(read.is_ok())));
        if let Err(error) = read {
            let error = chain(error.as_ref());
            tracing::error!(error, "changed files refused; the old ones remain in use");
        }
        stop.run_until_cancelled(changed(paths, before)).await;
    }
}

/// Waits until a file has changed, and a little more: editors and kubelets replace files in several steps.
async fn changed(paths: &[PathBuf], before: Vec<FileVersion>) {
    while versions(paths) == before {
        sleep(LOOK_INTERVAL).await;
    }
    sleep(LOOK_INTERVAL).await;
}

/// Through symbolic links: Kubernetes replaces a mounted Secret or `ConfigMap` by swapping one.
fn versions(paths: &[PathBuf]) -> Vec<FileVersion> {
    let version = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    };
    paths.iter().map(version).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bound of a wait: generous, because the machine may be busy.
    const BOUND: Duration = Duration::from_secs(120);

    #[tokio::test]
    async fn a_file_that_is_never_quiet_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tls.crt");
        std::fs::write(&file, "first").unwrap();
        let paths = [file.clone()];
        let before = versions(&paths);
        let noisy = tokio::spawn(async move {
            for line in 0_usize.. {
                std::fs::write(&file, "x".repeat(line)).unwrap();
                sleep(LOOK_INTERVAL / 20).await;
            }
        });
        let changed = tokio::time::timeout(BOUND, changed(&paths, before)).await;
        assert!(changed.is_ok());
        noisy.abort();
    }

    #[tokio::test]
    async fn reports_a_swapped_symbolic_link() {
        let dir = tempfile::tempdir().unwrap();
        let write = |version: &str| {
            let data = dir.path().join(version);
            std::fs::create_dir(&data).unwrap();
            std::fs::write(data.join("tls.crt"), version).unwrap();
            let link = dir.path().join("next");
            std::os::unix::fs::symlink(&data, &link).unwrap();
            std::fs::rename(&link, dir.path().join("..data")).unwrap();
        };
        write("first");
        let paths = [dir.path().join("..data/tls.crt"), dir.path().join("..data")];
        let before = versions(&paths);
        write("second-one");
        tokio::time::timeout(BOUND, changed(&paths, before))
            .await
            .unwrap();
    }
}
