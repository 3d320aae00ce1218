//! Metrics of the Kubernetes side.

use watchdog_runtime::label;
use watchdog_runtime::metrics::{Counter, Gauge, Labels};

label!(pub(crate) struct WatchName: "watch");
label!(pub(crate) enum EventResult: "result" { Published = "published", Failed = "failed", Dropped = "dropped" });

/// A verb, and a resource with its group.
#[derive(Debug)]
pub(crate) struct VerbAndResource {
    pub(crate) verb: &'static str,
    pub(crate) resource: String,
}

impl Labels for VerbAndResource {
    fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
        add("verb", self.verb);
        add("resource", &self.resource);
    }
}

pub(crate) const WATCH_ERRORS: Counter<WatchName> = Counter::new(
    "watchdog_watch_errors_total",
    "Lists and watches on the seed that failed and were tried again, by watch.",
);

pub(crate) const WATCHED_OBJECTS: Gauge<WatchName> = Gauge::new(
    "watchdog_watched_objects",
    "Objects that a watch on the seed holds, by watch.",
);

pub(crate) const PERMISSION_MISSING: Gauge<VerbAndResource> = Gauge::new(
    "watchdog_permission_missing",
    "1 for every permission on the seed that the service needs and does not have, by verb and resource.",
);

pub(crate) const EVENTS: Counter<EventResult> = Counter::new(
    "watchdog_kubernetes_events_total",
    "Kubernetes Events by result: published, failed, or dropped because too many were waiting or the process \
     stopped.",
);

/// Registers the help texts.
pub fn register() {
    WATCH_ERRORS.register();
    WATCHED_OBJECTS.register();
    PERMISSION_MISSING.register();
}
