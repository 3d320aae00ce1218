//! The one way to declare and export a metric.
//!
//! A crate lists its metrics as constants in its `metrics.rs` and describes them with [`describe`]; nothing else
//! names a metric. Label values come from closed sets, or are shoot names and go with their shoot.

use std::fmt::Write as _;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// A metric: its name, its unit in the name as Prometheus asks, and what it tells.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Full name, with the prefix `watchdog_`.
    pub name: &'static str,
    /// Help text.
    pub help: &'static str,
    /// Its kind.
    pub kind: MetricKind,
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Distribution, in seconds.
    Histogram,
}

/// Labels of a metric: names and values.
pub type Labels<'a> = &'a [(&'static str, String)];

impl Metric {
    /// A counter.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            kind: MetricKind::Counter,
        }
    }

    /// A gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            kind: MetricKind::Gauge,
        }
    }

    /// A histogram of seconds.
    #[must_use]
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            kind: MetricKind::Histogram,
        }
    }

    /// Adds to a counter.
    pub fn add(&self, labels: Labels<'_>, n: u64) {
        metrics::counter!(self.name, labels).increment(n);
    }

    /// Adds one to a counter.
    pub fn inc(&self, labels: Labels<'_>) {
        self.add(labels, 1);
    }

    /// Shows it before there is anything to show: a counter at 0, a histogram without a value. Prometheus sees no
    /// increase in a series that begins with its first event, and on most seeds the first incident is the only one.
    pub fn begin(&self, labels: Labels<'_>) {
        match self.kind {
            MetricKind::Counter => self.add(labels, 0),
            MetricKind::Histogram => drop(metrics::histogram!(self.name, labels)),
            MetricKind::Gauge => {}
        }
    }

    /// The same for each value of a label.
    pub fn begin_by(&self, label: &'static str, values: &[&str]) {
        for value in values {
            self.begin(&[(label, (*value).to_owned())]);
        }
    }

    /// Sets a gauge.
    pub fn set(&self, labels: Labels<'_>, value: f64) {
        metrics::gauge!(self.name, labels).set(value);
    }

    /// Moves a gauge up or down.
    pub fn shift(&self, labels: Labels<'_>, by: f64) {
        metrics::gauge!(self.name, labels).increment(by);
    }

    /// Records a duration in a histogram.
    pub fn record(&self, labels: Labels<'_>, value: Duration) {
        metrics::histogram!(self.name, labels).record(value.as_secs_f64());
    }

    /// The handle of a gauge, for hot paths.
    pub fn gauge_handle(&self, labels: Labels<'_>) -> metrics::Gauge {
        metrics::gauge!(self.name, labels)
    }
}

/// Registers the help texts of a crate's metrics.
pub fn describe(all: &[Metric]) {
    for metric in all {
        match metric.kind {
            MetricKind::Counter => metrics::describe_counter!(metric.name, metric.help),
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            MetricKind::Histogram => {
                metrics::describe_histogram!(metric.name, metrics::Unit::Seconds, metric.help)
            }
        }
    }
}

/// Readiness, read at the scrape.
pub const READY: Metric = Metric::gauge(
    "watchdog_ready",
    "1 while the service is ready, as /readyz says it.",
);

/// The readiness blockers, read at the scrape. The blockers are a closed set, and the configured kinds.
pub const BLOCKED: Metric = Metric::gauge(
    "watchdog_readiness_blocked",
    "1 for everything that keeps the service from being ready, by blocker; /readyz says what to do about it.",
);

/// Loops that try again, read at the scrape. Both labels are closed sets, and the configured kinds.
pub const LAST_TRY_FAILED: Metric = Metric::gauge(
    "watchdog_last_try_failed",
    "1 for every loop whose last try failed and that tries again, by loop (membership, discovery, lease-probe, events, \
     permissions, pods and the watches) and reason: not_found, forbidden, unauthorized, conflict, throttled, \
     server_error, rejected, certificate, server_name, connection_refused, timeout, connection or other; /readyz has \
     the error.",
);

/// Tasks, read at the scrape: what leaks in an asynchronous program leaks tasks first.
pub const TASKS: Metric = Metric::gauge(
    "watchdog_tasks",
    "Tasks of the asynchronous runtime that have not ended.",
);

/// Buckets of all histograms, in seconds: from a local write to the longest grace period that matters.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Installs the exporter of the process. Its [`PrometheusHandle::run_upkeep`] must be called now and then.
///
/// # Errors
/// When an exporter is installed already.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    describe(&[
        crate::config_file::CONFIG_VALID,
        crate::tls::TLS_VALID,
        crate::tls::CERTIFICATE_EXPIRY,
        crate::accept::CONNECTIONS_REFUSED,
        crate::trace::SPANS,
    ]);
    crate::rpc_metrics::register();
    Ok(handle)
}

/// Values that exist already somewhere and are read only when somebody asks: the series of thousands of shoots cost
/// nothing between two scrapes, and those of a shoot that is gone are gone too.
pub trait Collector: Send + Sync {
    /// Writes the families of this collector.
    fn collect(&self, out: &mut Exposition);
}

/// Text in Prometheus' exposition format.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Writes one metric with all its series.
    pub fn family<'a, I, L>(&mut self, metric: &Metric, series: I)
    where
        I: IntoIterator<Item = (L, f64)>,
        L: IntoIterator<Item = (&'a str, &'a str)>,
    {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge | MetricKind::Histogram => "gauge",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.text,
            "# HELP {} {}\n# TYPE {} {kind}",
            metric.name, metric.help, metric.name
        );
        for (labels, value) in series {
            self.text.push_str(metric.name);
            let mut separator = '{';
            for (name, value) in labels {
                self.text.push(separator);
                self.text.push_str(name);
                self.text.push_str("=\"");
                for c in value.chars() {
                    match c {
                        '\\' => self.text.push_str("\\\\"),
                        '"' => self.text.push_str("\\\""),
                        '\n' => self.text.push_str("\\n"),
                        c => self.text.push(c),
                    }
                }
                self.text.push('"');
                separator = ',';
            }
            if separator == ',' {
                self.text.push('}');
            }
            let _ = writeln!(self.text, " {value}");
        }
    }

    /// All that was written.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut out = Exposition::default();
        let metric = Metric::gauge("watchdog_test", "A test.");
        out.family(&metric, [(vec![("shoot", "a\"b\\c\nd"), ("zone", "z")], 0.5)]);
        out.family(&metric, [(vec![], 1.0)]);
        let text = out.into_text();
        assert!(
            text.contains("watchdog_test{shoot=\"a\\\"b\\\\c\\nd\",zone=\"z\"} 0.5\n"),
            "{text}"
        );
        assert!(
            text.contains("# TYPE watchdog_test gauge\nwatchdog_test 1\n"),
            "{text}"
        );
    }
}
