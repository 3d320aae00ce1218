//! The one way to declare and export a metric.
//!
//! A metric is a constant, and nothing else names it. Other crates declare theirs in `metrics.rs`; a module of this
//! crate declares the metrics that it records. A metric takes labels of its own type only, so a label cannot be
//! misspelled or forgotten. A [`Collector`] is beside the state that it reads.

use std::fmt::Write as _;
use std::marker::PhantomData;
use std::time::Duration;

use metrics::Label;
use metrics_exporter_prometheus::formatting::{sanitize_label_value, write_help_line, write_type_line};

/// A metric: its name, with the prefix `watchdog_` and its unit, its help text, its kind and its labels.
#[derive(Debug)]
pub struct Metric<K, L> {
    name: &'static str,
    help: &'static str,
    of: PhantomData<fn() -> (K, L)>,
}

/// Only grows.
pub type Counter<L = ()> = Metric<metrics::Counter, L>;

/// Goes up and down.
pub type Gauge<L = ()> = Metric<metrics::Gauge, L>;

/// Distribution of durations, in seconds.
pub type Histogram<L = ()> = Metric<metrics::Histogram, L>;

/// The labels of a metric. The number of their values is bounded, or they are shoots and go with their shoot.
/// [`label!`] makes a type a label; a pair has the labels of both.
pub trait Labels {
    /// Hands over each label with its value.
    fn each(&self, add: &mut dyn FnMut(&'static str, &str));

    /// The values that are shown before there is anything to show.
    fn known() -> Vec<Self>
    where
        Self: Sized,
    {
        Vec::new()
    }
}

/// The handle of a series in the exporter.
pub trait Handle: Sized {
    /// The kind of metric, as Prometheus names it.
    const TYPE: &'static str;

    /// Registers the help text of a metric.
    fn describe(name: &'static str, help: &'static str);

    /// The series with these labels.
    fn of(name: &'static str, labels: Vec<Label>) -> Self;
}

/// Makes a type a label: one that has `as_str` (with the values that are shown from the start, if they are few), a
/// name, or a closed set.
#[macro_export]
macro_rules! label {
    ($name:literal: $type:ty $(= $known:expr)?) => {
        impl $crate::metrics::Labels for $type {
            fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
                add($name, self.as_str());
            }
            $(fn known() -> Vec<Self> {
                $known.to_vec()
            })?
        }
    };
    ($(#[$doc:meta])* $vis:vis struct $type:ident: $name:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        $vis struct $type<'a>(pub &'a str);

        impl $crate::metrics::Labels for $type<'_> {
            fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
                add($name, self.0);
            }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis enum $type:ident: $name:literal {
            $($(#[$variant_doc:meta])* $variant:ident = $value:literal),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        $vis enum $type {
            $($(#[$variant_doc])* $variant),+
        }

        impl $type {
            /// As a label value.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $value),+
                }
            }
        }

        $crate::label!($name: $type = [$(Self::$variant),+]);
    };
}

label! {
    /// The name of a shoot, for [`Collector`]s only.
    pub struct ShootLabel: "shoot"
}

impl Labels for () {
    fn each(&self, _: &mut dyn FnMut(&'static str, &str)) {}

    fn known() -> Vec<Self> {
        vec![()]
    }
}

impl<A: Labels + Clone, B: Labels> Labels for (A, B) {
    fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
        self.0.each(add);
        self.1.each(add);
    }

    fn known() -> Vec<Self> {
        let with = |a: A| B::known().into_iter().map(move |b| (a.clone(), b));
        A::known().into_iter().flat_map(with).collect()
    }
}

impl Handle for metrics::Counter {
    const TYPE: &'static str = "counter";

    fn describe(name: &'static str, help: &'static str) {
        metrics::describe_counter!(name, help);
    }

    fn of(name: &'static str, labels: Vec<Label>) -> Self {
        metrics::counter!(name, labels)
    }
}

impl Handle for metrics::Gauge {
    const TYPE: &'static str = "gauge";

    fn describe(name: &'static str, help: &'static str) {
        metrics::describe_gauge!(name, help);
    }

    fn of(name: &'static str, labels: Vec<Label>) -> Self {
        metrics::gauge!(name, labels)
    }
}

impl Handle for metrics::Histogram {
    const TYPE: &'static str = "histogram";

    fn describe(name: &'static str, help: &'static str) {
        metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
    }

    fn of(name: &'static str, labels: Vec<Label>) -> Self {
        metrics::histogram!(name, labels)
    }
}

impl<K: Handle, L: Labels> Metric<K, L> {
    /// Declares a metric.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            of: PhantomData,
        }
    }

    /// The handle of a series, for hot paths. The series is shown from now on.
    pub fn handle(&self, labels: L) -> K {
        let mut pairs = Vec::new();
        labels.each(&mut |name, value| pairs.push(Label::new(name, value.to_owned())));
        K::of(self.name, pairs)
    }

    /// Registers the help text, and shows the series whose labels are known before there is anything to show: a counter
    /// at 0, a histogram without a value. Prometheus sees no increase in a series that begins with its first event, and
    /// on most seeds the first incident is the only one.
    pub fn register(&self) {
        K::describe(self.name, self.help);
        if K::TYPE != metrics::Gauge::TYPE {
            L::known()
                .into_iter()
                .for_each(|labels| drop(self.handle(labels)));
        }
    }
}

impl<L: Labels> Counter<L> {
    /// Adds one to a counter.
    pub fn inc(&self, labels: L) {
        self.handle(labels).increment(1);
    }
}

impl<L: Labels> Gauge<L> {
    /// Sets a gauge.
    pub fn set(&self, labels: L, value: f64) {
        self.handle(labels).set(value);
    }

    /// Adds one to a gauge until what it returns is dropped, also when a task is aborted.
    #[must_use]
    pub fn track(&self, labels: L) -> GaugeGuard {
        let gauge = self.handle(labels);
        gauge.increment(1.0);
        GaugeGuard(gauge)
    }
}

/// One of those that a gauge counts.
#[derive(Debug)]
pub struct GaugeGuard(metrics::Gauge);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

impl<L: Labels> Histogram<L> {
    /// Records a duration in a histogram.
    pub fn record(&self, labels: L, value: Duration) {
        self.handle(labels).record(value.as_secs_f64());
    }
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
    /// All that was written.
    pub text: String,
}

impl Exposition {
    /// Writes one metric with all its series.
    pub fn family<K: Handle, L: Labels>(
        &mut self,
        metric: &Metric<K, L>,
        series: impl IntoIterator<Item = (L, f64)>,
    ) {
        write_help_line(&mut self.text, metric.name, None, None, metric.help);
        write_type_line(&mut self.text, metric.name, None, None, K::TYPE);
        for (labels, value) in series {
            self.text.push_str(metric.name);
            let mut separator = '{';
            labels.each(&mut |name, value| {
                self.text.push(separator);
                // Writing to a String cannot fail.
                let _ = write!(self.text, "{name}=\"{}\"", sanitize_label_value(value));
                separator = ',';
            });
            if separator == ',' {
                self.text.push('}');
            }
            let _ = writeln!(self.text, " {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        label!(struct Zone: "zone");
        const BY_ZONE: Gauge<(ShootLabel<'_>, Zone<'_>)> = Gauge::new("watchdog_test", "A test.");
        const ALL: Gauge = Gauge::new("watchdog_test", "A test.");
        let mut out = Exposition::default();
        out.family(&BY_ZONE, [((ShootLabel("a\"b\\c\nd"), Zone("z")), 0.5)]);
        out.family(&ALL, [((), 1.0)]);
        let text = out.text;
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
