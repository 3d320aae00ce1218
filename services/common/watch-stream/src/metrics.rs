//! Metrics of streams. The label `rpc` is the name of the method.

use watchdog_runtime::label;
use watchdog_runtime::metrics::{Counter, Gauge, Histogram};

label!(pub(crate) struct Rpc: "rpc");
label!(pub(crate) struct StreamName: "stream");

pub(crate) const SUBSCRIBERS: Gauge<Rpc<'_>> =
    Gauge::new("watchdog_stream_subscribers", "Open Watch streams, by RPC.");

pub(crate) const DROPPED: Counter<Rpc<'_>> = Counter::new(
    "watchdog_stream_dropped_total",
    "Watch streams closed by the server because their reader missed removals that were forgotten, by RPC.",
);

pub(crate) const LAG: Histogram<Rpc<'_>> = Histogram::new(
    "watchdog_stream_lag_seconds",
    "Time from the publication of a change until it was handed to the transport of a stream, by RPC.",
);

pub(crate) const CONNECTED: Gauge<StreamName<'_>> = Gauge::new(
    "watchdog_stream_client_connected",
    "Streams to other replicas and services that are synchronized now, by stream.",
);

pub(crate) const RECONNECTS: Counter<StreamName<'_>> = Counter::new(
    "watchdog_stream_client_reconnects_total",
    "Streams to other replicas and services that were lost or could not be opened, by stream.",
);

pub(crate) const SKIPPED: Counter<StreamName<'_>> = Counter::new(
    "watchdog_stream_client_skipped_total",
    "Messages of streams that could not be read and were skipped, by stream. The stream continues.",
);

pub(crate) const TRIMMED: Counter<Rpc<'_>> = Counter::new(
    "watchdog_stream_trimmed_total",
    "Items of Watch streams that were sent without their texts, because they were too large, by RPC.",
);

/// Registers the help texts.
pub fn register() {
    SUBSCRIBERS.register();
    DROPPED.register();
    LAG.register();
    CONNECTED.register();
    RECONNECTS.register();
    SKIPPED.register();
    TRIMMED.register();
}
