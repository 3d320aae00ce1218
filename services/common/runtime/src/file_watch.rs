//! Reports changes of files: the configuration file and the TLS files.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

/// The files are looked at this often. Events of the operating system would not replace that, because some volumes
/// (NFS, some container runtimes) deliver none.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A change is reported once the files have been the same for this time: editors and kubelets replace files in several
/// steps.
const SETTLE: Duration = Duration::from_millis(200);

/// Files that change all the time are reported after this time.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// Follows a set of files.
#[derive(Debug)]
pub struct FileWatch {
    paths: Vec<PathBuf>,
    reported: Vec<FileVersion>,
}

type FileVersion = Option<(SystemTime, u64)>;

impl FileWatch {
    /// Starts to follow `paths`, through symbolic links: Kubernetes replaces a mounted Secret or `ConfigMap` by
    /// swapping one.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let reported = versions(&paths);
        Self { paths, reported }
    }

    /// Waits until one of the files has changed. Safe to cancel.
    pub async fn changed(&mut self) {
        let mut now = versions(&self.paths);
        while now == self.reported {
            sleep(LOOK_INTERVAL).await;
            now = versions(&self.paths);
        }
        let limit = Instant::now() + SETTLE_LIMIT;
        loop {
            sleep(SETTLE).await;
            let before = std::mem::replace(&mut now, versions(&self.paths));
            if now == before || Instant::now() >= limit {
                break;
            }
        }
        self.reported = now;
    }
}

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
        let mut watch = FileWatch::new(vec![file.clone()]);
        let noisy = tokio::spawn(async move {
            for line in 0_usize.. {
                std::fs::write(&file, "x".repeat(line)).unwrap();
                sleep(SETTLE / 10).await;
            }
        });
        let changed = tokio::time::timeout(BOUND, watch.changed()).await;
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
        let mut watch = FileWatch::new(vec![dir.path().join("..data/tls.crt"), dir.path().join("..data")]);
        write("second-one");
        tokio::time::timeout(BOUND, watch.changed()).await.unwrap();
    }
}
