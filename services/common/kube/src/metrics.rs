//! Metrics of the Kubernetes side.

use watchdog_runtime::metrics::{Metric, describe};

/// Failures of watches.
pub const WATCH_ERRORS: Metric = Metric::counter(
    "watchdog_watch_errors_total",
    "Lists and watches on the seed that failed and were tried again, by watch.",
);

/// Objects that cannot be used.
pub const WATCHED_OBJECTS: Metric = Metric::gauge(
    "watchdog_watched_objects",
    "Objects that a watch on the seed holds, by watch.",
);

/// Missing permissions.
pub const PERMISSION_MISSING: Metric = Metric::gauge(
    "watchdog_permission_missing",
    "1 for every permission on the seed that the service needs and does not have, by verb and resource.",
);

/// Kubernetes Events.
pub const EVENTS: Metric = Metric::counter(
    "watchdog_kubernetes_events_total",
    "Kubernetes Events by result: published, failed, or dropped because too many were waiting or the process \
     stopped.",
);

/// Registers the help texts.
pub fn register() {
    describe(&[WATCH_ERRORS, WATCHED_OBJECTS, PERMISSION_MISSING, EVENTS]);
}
