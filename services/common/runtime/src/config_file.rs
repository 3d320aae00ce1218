//! The configuration file of a service, followed while the service runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_api::config::{ConfigErrors, Parsed, UnknownFields};

use crate::file_watch;
use crate::metrics::Gauge;
use crate::publish::publish_if_changed;
use crate::regular_file;

/// Outcome of the last attempt to read the configuration file.
pub const CONFIG_VALID: Gauge = Gauge::new(
    "watchdog_config_valid",
    "1 if the current configuration file is valid, 0 if a changed file was rejected and the previous one is in use.",
);

/// Reads a configuration from the content of its file.
pub type Parse<C> = fn(&[u8], UnknownFields) -> Result<Parsed<C>, ConfigErrors>;

/// A configuration that is read again whenever its file changes.
#[derive(Debug)]
pub struct ConfigFile<C> {
    path: PathBuf,
    unknown: UnknownFields,
    parse: Parse<C>,
    current: watch::Sender<Arc<C>>,
}

impl<C: PartialEq> ConfigFile<C> {
    /// Reads the file for the first time. Also returns the unknown fields that it ignores; [`Self::follow`] logs them.
    ///
    /// # Errors
    /// When it cannot be read or is not good: all that is wrong with it, a line each.
    pub fn load(
        path: PathBuf,
        unknown: UnknownFields,
        parse: Parse<C>,
    ) -> anyhow::Result<(Self, Option<ConfigErrors>)> {
        let Parsed { config, ignored } = read(&path, unknown, parse)?;
        let current = watch::Sender::new(Arc::new(config));
        let file = Self {
            path,
            unknown,
            parse,
            current,
        };
        Ok((file, ignored))
    }

    /// Follows the configuration, starting with the current one.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<C>> {
        self.current.subscribe()
    }

    /// Takes up changes until `stop` is cancelled, those since the file was loaded too. A bad change is refused and
    /// reported, and the old one stays.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub async fn follow(self, stop: CancellationToken) -> anyhow::Result<()> {
        let files = [self.path.clone()];
        file_watch::follow(&files, &CONFIG_VALID, &stop, || self.take_up()).await;
        Ok(())
    }

    fn take_up(&self) -> anyhow::Result<()> {
        let Parsed { config, ignored } = read(&self.path, self.unknown, self.parse)?;
        let changed = publish_if_changed(&self.current, &Arc::new(config));
        let file = self.path.display();
        tracing::info!(%file, changed, "configuration file read");
        if let Some(ignored) = ignored {
            tracing::warn!(%file, %ignored, "unknown fields of the configuration file are ignored");
        }
        Ok(())
    }
}

/// Bytes of a file that are read: twice what any file may have, so that one that is a little too long is refused with
/// its length.
const MOST_READ: usize = 2 << 20;

fn read<C>(path: &Path, unknown: UnknownFields, parse: Parse<C>) -> anyhow::Result<Parsed<C>> {
    let file = path.display().to_string();
    let read = regular_file::read(path, MOST_READ);
    let bytes = read.with_context(|| format!("{file}: cannot read the configuration file"))?;
    let parsed = parse(&bytes, unknown).map_err(|errors| errors.with_file(&file))?;
    Ok(Parsed {
        ignored: parsed.ignored.map(|ignored| ignored.with_file(&file)),
        ..parsed
    })
}
