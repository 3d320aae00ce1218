//! Reports changes of files: the configuration file and the TLS files.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// A change is reported once the files have been quiet for this time: editors and kubelets replace files in several
/// steps.
const SETTLE: Duration = Duration::from_millis(200);

/// In a folder that is never quiet, the files are checked after this time.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// The files are checked this often even when the operating system reports nothing: some volumes (NFS, some
/// container runtimes) deliver no events.
const LOOK_ANYWAY: Duration = Duration::from_secs(30);

/// Follows a set of files.
#[derive(Debug)]
pub struct FileWatch {
    paths: Vec<PathBuf>,
    seen: Vec<FileVersion>,
    events: mpsc::Receiver<()>,
    // Stops watching when dropped.
    _watcher: Option<notify::RecommendedWatcher>,
}

type FileVersion = Option<(SystemTime, u64)>;

impl FileWatch {
    /// Starts to follow `paths`. Their folders are watched, not the files: Kubernetes replaces a mounted Secret or
    /// `ConfigMap` by swapping a symbolic link in the folder. Where the operating system cannot watch, looking every
    /// 30 s remains.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>) -> Self {
        // One place is enough: an event only says that something may have changed.
        let (sender, events) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |_event| {
            let _ = sender.try_send(());
        });
        let watcher = watcher.and_then(|mut watcher| {
            for folder in folders(&paths) {
                watcher.watch(&folder, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        let watcher = watcher
            .inspect_err(
                |error| tracing::warn!(%error, "cannot watch files; polling them every 30 s instead"),
            )
            .ok();
        let seen = paths.iter().map(|path| file_version(path)).collect();
        Self {
            paths,
            seen,
            events,
            _watcher: watcher,
        }
    }

    /// Waits until one of the files has changed. Safe to cancel.
    pub async fn changed(&mut self) {
        loop {
            tokio::select! {
                Some(()) = self.events.recv() => {
                    let settle = async {
                        while tokio::time::timeout(SETTLE, self.events.recv()).await.is_ok_and(|e| e.is_some()) {}
                    };
                    let _ = tokio::time::timeout(SETTLE_LIMIT, settle).await;
                }
                () = tokio::time::sleep(LOOK_ANYWAY) => {}
            }
            let now: Vec<FileVersion> = self.paths.iter().map(|path| file_version(path)).collect();
            if now != self.seen {
                self.seen = now;
                return;
            }
        }
    }
}

fn folders(paths: &[PathBuf]) -> std::collections::BTreeSet<PathBuf> {
    let parent = |path: &PathBuf| match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    paths.iter().map(parent).collect()
}

fn file_version(path: &Path) -> FileVersion {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_that_is_never_quiet_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (file, noise) = (dir.path().join("tls.crt"), dir.path().join("log"));
        std::fs::write(&file, "first").unwrap();
        let mut watch = FileWatch::new(vec![file.clone()]);
        let noisy = tokio::spawn(async move {
            for line in 0_u64.. {
                std::fs::write(&noise, line.to_string()).unwrap();
                tokio::time::sleep(SETTLE / 10).await;
            }
        });
        std::fs::write(&file, "second, longer").unwrap();
        let changed = tokio::time::timeout(LOOK_ANYWAY, watch.changed()).await;
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
        tokio::time::timeout(Duration::from_secs(10), watch.changed())
            .await
            .unwrap();
    }
}
