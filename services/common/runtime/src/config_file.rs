//! The configuration file of a service, followed while the service runs.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::file_watch::FileWatch;
use crate::metrics::Gauge;

/// Outcome of the last attempt to read the configuration file.
pub const CONFIG_VALID: Gauge = Gauge::new(
    "watchdog_config_valid",
    "1 when the configuration file is good as it stands, 0 when a changed file was refused and the old one is used.",
);

/// Parses the content of the configuration file of that name; the error lists all that is wrong, a line each.
pub type Parse<C> = fn(&str, &[u8]) -> anyhow::Result<Content<C>>;

/// The content of a configuration file.
#[derive(Debug)]
pub struct Content<C> {
    /// The configuration.
    pub config: C,
    /// Fields that nobody knows and that were left out, a line each; empty if there are none.
    pub ignored: String,
}

/// A configuration that is read again whenever its file changes.
#[derive(Debug)]
pub struct ConfigFile<C> {
    path: PathBuf,
    parse: Parse<C>,
    current: watch::Sender<Arc<C>>,
}

impl<C: PartialEq> ConfigFile<C> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// When it cannot be read or is not good: all that is wrong with it, a line each.
    pub fn load(path: PathBuf, parse: Parse<C>) -> anyhow::Result<Self> {
        let config = read(&path, parse)?.config;
        Ok(Self {
            path,
            parse,
            current: watch::Sender::new(Arc::new(config)),
        })
    }

    /// Follows the configuration, starting with the current one.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<C>> {
        self.current.subscribe()
    }

    /// Takes up changes until `stop` is cancelled, those since the file was loaded too. A bad change is refused and reported, and the old one stays.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub async fn follow(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut files = FileWatch::new(vec![self.path.clone()]);
        CONFIG_VALID.set((), 1.0);
        loop {
            match read(&self.path, self.parse) {
                Ok(Content { config, ignored }) => {
                    CONFIG_VALID.set((), 1.0);
                    let changed = self.current.send_if_modified(|current| {
                        let differs = **current != config;
                        if differs {
                            *current = Arc::new(config);
                        }
                        differs
                    });
                    let file = self.path.display();
                    tracing::info!(%file, changed, "configuration file read");
                    if !ignored.is_empty() {
                        tracing::warn!(%file, ignored, "unknown fields of the configuration file are ignored");
                    }
                }
                Err(error) => {
                    CONFIG_VALID.set((), 0.0);
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "changed configuration file refused, the old one stays in use"
                    );
                }
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = files.changed() => {}
            }
        }
    }
}

fn read<C>(path: &std::path::Path, parse: Parse<C>) -> anyhow::Result<Content<C>> {
    let shown = path.display();
    let bytes =
        std::fs::read(path).with_context(|| format!("{shown}: cannot read the configuration file"))?;
    parse(&shown.to_string(), &bytes)
}
