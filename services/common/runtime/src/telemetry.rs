//! Logs: JSON or text on standard error, with a level that can be changed at run time. And the exporter of the metrics.

use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::{Level, Metadata, Subscriber};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::args::LogFormat;
use crate::log_line::LineFormat;
use crate::self_check::{count_dropped_log_lines, log_line_lost};

/// Lines that wait for standard error at most: a few MB, because texts in them are cut. Further ones are dropped and
/// counted.
const MAX_WAITING_LINES: usize = 8 * 1024;

/// Longer than [`WorkerGuard`] waits for the lines to be written.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes the log of the process. When it is dropped, it writes the lines that wait; this takes 2 s at most.
#[must_use = "the log ends when it is dropped"]
#[derive(Debug)]
pub struct LogGuard(Option<WorkerGuard>);

impl Drop for LogGuard {
    /// On a thread of its own, which the process does not wait for: with lines left, the guard prints to standard
    /// output, and that may be the same pipe that nobody reads.
    fn drop(&mut self) {
        let guard = self.0.take();
        let (written, wait) = mpsc::channel();
        let write = move || {
            drop(guard);
            let _ = written.send(());
        };
        if std::thread::Builder::new().spawn(write).is_ok() {
            let _ = wait.recv_timeout(LAST_LINES_TIMEOUT);
        }
    }
}

/// Changes the log filter of the running process; of one that was started without [`init`] it is fixed.
#[derive(Debug, Clone, Default)]
pub struct LogLevel(Option<reload::Handle<Targets, Registry>>);

impl LogLevel {
    /// Sets the filter, for example "debug" or "info,lease_probe=debug".
    ///
    /// # Errors
    /// When the filter cannot be parsed; the old one stays.
    pub fn set(&self, filter: &str) -> anyhow::Result<()> {
        let handle = self
            .0
            .as_ref()
            .context("the log level of this process is fixed")?;
        Ok(handle.reload(parse(filter)?)?)
    }
}

/// Installs the log subscriber of the process. Called once, from [`crate::process::run`]. A thread of its own writes
/// the lines, so that a standard error that nobody reads stops nothing else.
///
/// # Errors
/// When the filter cannot be parsed or a subscriber is installed already.
pub fn init(format: LogFormat, filter: &str) -> anyhow::Result<(LogLevel, LogGuard)> {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MAX_WAITING_LINES)
        .thread_name("log")
        .finish(LogWriter);
    let dropped = writer.error_counter();
    let (subscriber, log_level) = subscriber(format, filter, writer)?;
    subscriber.try_init()?;
    count_dropped_log_lines(dropped);
    std::panic::set_hook(Box::new(log_panic));
    Ok((log_level, LogGuard(Some(guard))))
}

/// Buckets of all histograms, in seconds: from a local write to the longest grace period that matters.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Installs the exporter of the process. Its [`PrometheusHandle::run_upkeep`] must be called now and then.
///
/// # Errors
/// When an exporter is installed already.
pub fn install_exporter() -> anyhow::Result<PrometheusHandle> {
    let builder =
        PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?;
    Ok(builder.install_recorder()?)
}

/// The standard hook writes to standard error from the thread that panics, which would wait for a reader there.
fn log_panic(info: &PanicHookInfo<'_>) {
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let panic = info.payload_as_str().unwrap_or_default();
    tracing::error!(location, panic, "a thread panicked");
}

/// Writes to standard error and counts the lines that could not be written. A failed write is not repeated and does not
/// end the process.
#[derive(Debug)]
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write(bytes).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                log_line_lost(error);
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The log subscriber of the process, and what changes its filter.
///
/// # Errors
/// When the filter cannot be parsed.
pub fn subscriber<W>(
    format: LogFormat,
    filter: &str,
    writer: W,
) -> anyhow::Result<(impl Subscriber + Send + Sync, LogLevel)>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::<Targets, Registry>::new(parse(filter)?);
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .fmt_fields(JsonFields::new())
        .event_format(LineFormat(format))
        .with_writer(writer);
    let subscriber = tracing_subscriber::registry()
        .with(filter)
        .with(filter_fn(is_bounded))
        .with(layer);
    Ok((subscriber, LogLevel(Some(handle))))
}

/// Their warnings are left out; see [`is_bounded`].
const BOUNDED: [&str; 3] = ["rustls::", "h2::", "kube_runtime::watcher"];

/// Leaves out some warnings of libraries, whatever the filter says. Nothing is lost: the library also returns each
/// error, and the caller logs or counts it.
///
/// - kube's client logs the whole text of an answer that it cannot decode, and that may be a list of Secrets.
/// - kube's watcher logs each refusal, as often as a list or watch is tried again.
/// - rustls and h2 log what a peer sends, before it has proved who it is: a line, or several, for each connection.
fn is_bounded(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    match *metadata.level() {
        Level::ERROR => true,
        Level::WARN if BOUNDED.iter().any(|library| target.starts_with(library)) => false,
        _ => target != "kube_client::client",
    }
}

/// Reads levels, each for all or for a target: "info,lease_probe=debug". Filters of spans and fields, which `EnvFilter`
/// has, would take three crates of regular expressions.
fn parse(filter: &str) -> anyhow::Result<Targets> {
    let directives: Vec<&str> = filter
        .split(',')
        .map(str::trim)
        .filter(|directive| !directive.is_empty())
        .collect();
    if directives.is_empty() {
        return Ok(Targets::new().with_default(LevelFilter::ERROR));
    }
    let bad = || {
        format!(
            "bad log filter {filter:?}: the levels are off, error, warn, info, debug and trace; that of a target is \
             written as TARGET=LEVEL"
        )
    };
    // `Targets` takes any text for the name of a target, a misspelled level too, and then nothing else is logged.
    let has_level = |directive: &&str| directive.contains('=') || directive.parse::<LevelFilter>().is_ok();
    ensure!(directives.iter().all(has_level), bad());
    let is_name = |c: char| c.is_alphanumeric() || "_-:=".contains(c);
    let are_names = directives.iter().all(|directive| directive.chars().all(is_name));
    ensure!(are_names, bad());
    directives.join(",").parse().with_context(bad)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Seek as _;

    use super::*;

    /// The lines that are written while something runs, with the filter `info` at first.
    pub(crate) fn logged(format: LogFormat, run: impl FnOnce(&LogLevel)) -> Vec<String> {
        let mut file = tempfile::tempfile().unwrap();
        let (subscriber, level) = subscriber(format, "info", file.try_clone().unwrap()).unwrap();
        tracing::subscriber::with_default(subscriber, || run(&level));
        file.rewind().unwrap();
        let text = io::read_to_string(file).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_filter_has_levels_and_those_of_targets() {
        for (filter, counted) in [
            ("info,lease_probe=debug", 2),
            (" debug , lease_probe=warn ", 1),
            ("lease_probe::domain=trace", 2),
            ("off", 0),
            ("", 0),
        ] {
            let lines = logged(LogFormat::Text, |level| {
                level.set(filter).unwrap();
                tracing::debug!(target: "lease_probe::domain", "of the target");
                tracing::debug!(target: "weeder", "of another");
                tracing::trace!(target: "lease_probe::domain", "more of the target");
                tracing::info!(target: "lease_probe", "of a target above");
            });
            assert_eq!(lines.len(), counted, "{filter}: {lines:?}");
        }
        for filter in [
            "warning",
            "lease_probe",
            "lease_probe=loud",
            "info,[list]=trace",
            "a=b=c",
        ] {
            let error = parse(filter).unwrap_err();
            assert!(error.to_string().starts_with("bad log filter"), "{error:#}");
        }
    }

    #[test]
    fn what_strangers_send_and_kube_cannot_decode_is_logged_by_no_filter() {
        let filters = [
            "warn",
            "trace",
            "info,rustls=trace,h2=trace",
            "kube_client::client=trace",
        ];
        let lines = logged(LogFormat::Json, |level| {
            for filter in filters {
                level.set(filter).unwrap();
                let _in_a_span = tracing::error_span!("list").entered();
                let record = tracing_log::log::Record::builder()
                    .level(tracing_log::log::Level::Warn)
                    .target("rustls::msgs::handshake")
                    .args(format_args!("hidden"))
                    .build();
                tracing_log::format_trace(&record).unwrap();
                tracing::warn!(target: "h2::proto::streams::recv", "hidden");
                tracing::warn!(target: "kube_client::client", "hidden");
                tracing::warn!(target: "kube_runtime::watcher", "hidden");
                tracing::error!(target: "kube_client::client", "shown");
            }
            level.set("trace").unwrap();
            tracing::warn!(target: "kube_client::client::tls", "shown");
            tracing::debug!(target: "h2::proto::connection", "shown");
        });
        assert!(
            lines.iter().all(|line| line.contains("\"message\":\"shown\"")),
            "{lines:?}"
        );
        assert_eq!(lines.len(), filters.len() + 2, "{lines:?}");
    }
}
