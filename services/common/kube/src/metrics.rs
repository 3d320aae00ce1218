//! Metrics of the Kubernetes side. The label `service` is the service whose replicas share their work.

use watchdog_runtime::label;
use watchdog_runtime::metrics::{Counter, Gauge};

label!(pub(crate) struct WatchName: "watch");
label!(pub(crate) enum EventResult: "result" { Published = "published", Failed = "failed", Dropped = "dropped" });
label!(pub(crate) struct ServiceName: "service");
label!(pub(crate) struct Verb: "verb");
label!(pub(crate) struct ResourceName: "resource");
label!(pub(crate) struct RenewalResult: "result");

pub(crate) const WATCH_ERRORS: Counter<WatchName<'_>> = Counter::new(
    "watchdog_watch_errors_total",
    "Lists and watches on the seed that failed and were tried again, by watch.",
);

pub(crate) const WATCHED_OBJECTS: Gauge<WatchName<'_>> = Gauge::new(
    "watchdog_watched_objects",
    "Objects that a watch on the seed holds, by watch.",
);

pub(crate) const PERMISSION_MISSING: Gauge<(Verb<'_>, ResourceName<'_>)> = Gauge::new(
    "watchdog_permission_missing",
    "1 for every permission on the seed that the service needs and does not have, by verb and resource.",
);

pub(crate) const EVENTS: Counter<EventResult> = Counter::new(
    "watchdog_kubernetes_events_total",
    "Kubernetes Events by result: published, failed, or dropped because too many were waiting or the process \
     stopped.",
);

pub(crate) const MEMBERS: Gauge<ServiceName<'_>> = Gauge::new(
    "watchdog_membership_members",
    "Replicas of the service that this one considers live, itself included once it has joined, by service.",
);

pub(crate) const LEASE_VALID: Gauge<ServiceName<'_>> = Gauge::new(
    "watchdog_membership_lease_valid",
    "1 while this replica's membership Lease is valid, or while it reads or writes the Lease of the leader in time, by \
     service.",
);

pub(crate) const LEADER: Gauge<ServiceName<'_>> = Gauge::new(
    "watchdog_leader",
    "1 while this replica leads its service and may act, by service.",
);

pub(crate) const RENEWALS: Counter<(ServiceName<'_>, RenewalResult<'_>)> = Counter::new(
    "watchdog_membership_renewals_total",
    "Attempts to write this replica's own membership Lease or that of the leader, by service and result: ok, or why it \
     failed as watchdog_retry_loop_failing has it.",
);

pub(crate) const CHANGES: Counter<ServiceName<'_>> = Counter::new(
    "watchdog_membership_changes_total",
    "How often the share of this replica may have changed: members came or went, or it began or ceased to lead, by \
     service.",
);

/// Registers the help texts.
pub fn register() {
    WATCH_ERRORS.register();
    WATCHED_OBJECTS.register();
    PERMISSION_MISSING.register();
    EVENTS.register();
    MEMBERS.register();
    LEASE_VALID.register();
    LEADER.register();
    RENEWALS.register();
    CHANGES.register();
}
