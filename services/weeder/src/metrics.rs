//! The metrics of the weeder.

use watchdog_runtime::metrics::{Metric, describe};

/// Services by readiness.
pub const SERVICES: Metric = Metric::gauge(
    "watchdog_weeder_services",
    "Services in the namespaces of this replica, by readiness: ready or not_ready.",
);

/// Live weeders.
pub const WEEDERS: Metric = Metric::gauge(
    "watchdog_weeders",
    "Weeders that live on this replica, by state: queued (waits for its turn to look at the dependants) or active.",
);

/// Started weeders.
pub const STARTED: Metric = Metric::counter(
    "watchdog_weeders_started_total",
    "Weeders that started because a service became ready.",
);

/// Ended weeders.
pub const ENDED: Metric = Metric::counter(
    "watchdog_weeders_ended_total",
    "Weeders that ended, by how: ended (lived out their time) or cancelled (their namespace ended, moved to another \
     replica or is not configured any more). A weeder that a new one replaces is not counted.",
);

/// Deletions.
pub const DELETIONS: Metric = Metric::counter(
    "watchdog_weeder_deletions_total",
    "Attempts to delete a crash-looping pod, by result: deleted; gone or changed (left alone); forbidden, throttled \
     or failed (tried again).",
);

/// Promptness of deletions.
pub const DELETION_DELAY: Metric = Metric::histogram(
    "watchdog_weeder_deletion_delay_seconds",
    "Time until a crash-looping pod was deleted, by found: at_start (since its service became ready) or later (since \
     it was seen to crash while the weeder lived).",
);

/// What weeding is good for.
pub const SAVED: Metric = Metric::counter(
    "watchdog_weeder_recovery_seconds_saved_total",
    "Crash back-off that was left when a pod was deleted, estimated from its restarts: the time by which it starts \
     sooner.",
);

/// Pods on their way.
pub const PENDING: Metric = Metric::gauge(
    "watchdog_weeder_pending_deletions",
    "Crash-looping pods that wait to be deleted or are being deleted.",
);

/// Lists of dependants.
pub const LISTS: Metric = Metric::counter(
    "watchdog_weeder_lists_total",
    "Times that a weeder listed its dependants, by result: ok, forbidden, throttled or failed.",
);

/// Requests under way.
pub const REQUESTS: Metric = Metric::gauge(
    "watchdog_weeder_requests_in_flight",
    "Lists and deletions of pods under way; never more than 32.",
);

/// Open watches on pods.
pub const POD_WATCHES: Metric = Metric::gauge(
    "watchdog_weeder_pod_watches",
    "Watches on pods that are wanted now, one for each selector that a weeder that lives has; never more than 8.",
);

/// Lost watches on pods.
pub const POD_WATCH_ERRORS: Metric = Metric::counter(
    "watchdog_weeder_pod_watch_errors_total",
    "Watches on pods that were refused or broke, and were opened again.",
);

/// Malformed objects.
pub const MALFORMED: Metric = Metric::counter(
    "watchdog_weeder_malformed_objects_total",
    "Objects that could not be read, each time they were seen, by kind. They count as having no endpoint, no crash loop \
     and no annotation.",
);

/// Registers the help texts.
pub fn register() {
    describe(&[
        STARTED,
        ENDED,
        DELETIONS,
        DELETION_DELAY,
        SAVED,
        LISTS,
        REQUESTS,
        POD_WATCHES,
        POD_WATCH_ERRORS,
        MALFORMED,
    ]);
    STARTED.begin(&[]);
    SAVED.begin(&[]);
    ENDED.begin_by("how", &["ended", "cancelled"]);
    DELETIONS.begin_by(
        "result",
        &["deleted", "gone", "changed", "forbidden", "throttled", "failed"],
    );
    DELETION_DELAY.begin_by("found", &["at_start", "later"]);
}
