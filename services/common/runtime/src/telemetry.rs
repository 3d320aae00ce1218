//! Logs: JSON or text on standard error, with a level that can be changed at run time.

use std::sync::Arc;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::args::LogFormat;

/// Parses a filter and puts it into force.
type SetFilter = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// Changes the log filter of the running process.
#[derive(Clone)]
pub struct LogLevel {
    set: Arc<SetFilter>,
}

impl std::fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogLevel")
    }
}

impl LogLevel {
    /// Sets the filter, for example "debug" or "info,lease_probe=debug".
    ///
    /// # Errors
    /// When the filter cannot be parsed; the old one stays.
    pub fn set(&self, filter: &str) -> Result<(), String> {
        (self.set)(filter)
    }

    /// Changes nothing: for processes that were started without [`init`].
    #[must_use]
    pub fn fixed() -> Self {
        Self {
            set: Arc::new(|_| Err("the log level of this process is fixed".to_owned())),
        }
    }
}

/// Installs the log subscriber of the process. Called once, from [`crate::process::run`].
///
/// # Errors
/// When the filter cannot be parsed or a subscriber is installed already.
pub fn init(format: LogFormat, filter: &str) -> Result<LogLevel, String> {
    let (filter, handle) = reload::Layer::<EnvFilter, Registry>::new(parse(filter)?);
    let writer = std::io::stderr;
    let layer = match format {
        LogFormat::Json => tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_writer(writer)
            .boxed(),
        LogFormat::Text => tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(writer)
            .boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .try_init()
        .map_err(|e| e.to_string())?;
    let set = move |filter: &str| handle.reload(parse(filter)?).map_err(|e| e.to_string());
    Ok(LogLevel { set: Arc::new(set) })
}

fn parse(filter: &str) -> Result<EnvFilter, String> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|e| format!("bad log filter {filter:?}: {e}"))
}
