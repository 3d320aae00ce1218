//! Metrics of feeds. The label `rpc` is the name of the method.

use watchdog_runtime::metrics::{Metric, describe};

/// Open streams.
pub const SUBSCRIBERS: Metric = Metric::gauge("watchdog_feed_subscribers", "Open Watch streams, by RPC.");

/// Streams closed because of their reader.
pub const DROPPED: Metric = Metric::counter(
    "watchdog_feed_dropped_total",
    "Watch streams closed by the server, by RPC and reason: behind (removals were forgotten) or limit (too many \
     streams).",
);

/// How long a change waits for its reader.
pub const LAG: Metric = Metric::histogram(
    "watchdog_feed_lag_seconds",
    "Time from the publication of a change until it was handed to the transport of a stream, by RPC.",
);

/// Connections of a client to a feed of another service.
pub const CONNECTED: Metric = Metric::gauge(
    "watchdog_feed_client_connected",
    "Streams to other replicas and services that are synchronised now, by feed.",
);

/// Streams lost.
pub const RECONNECTS: Metric = Metric::counter(
    "watchdog_feed_client_reconnects_total",
    "Streams to other replicas and services that were lost or could not be opened, by feed.",
);

/// Registers the help texts.
pub fn register() {
    describe(&[SUBSCRIBERS, DROPPED, LAG, CONNECTED, RECONNECTS]);
}
