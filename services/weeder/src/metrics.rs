//! The metrics of the weeder.

mod collector;

use std::collections::BTreeSet;

use parking_lot::Mutex;
use watchdog_runtime::label;
use watchdog_runtime::metrics::{Counter, Gauge, Histogram, Labels};

pub(crate) use self::collector::StateCollector;
use crate::domain::failure::RequestFailure;
use crate::domain::pods::CrashLoop;

label!(pub(crate) enum ReadinessLabel: "readiness" { Ready = "ready", NotReady = "not_ready" });
label!(pub(crate) enum WeederPhase: "state" { Queued = "queued", Active = "active" });
label!(pub(crate) enum WeederEnd: "how" { Ended = "ended", Cancelled = "cancelled" });
label!(pub(crate) enum DeletionAnswer: "result" {
    Deleted = "deleted",
    Gone = "gone",
    Changed = "changed",
    Forbidden = "forbidden",
    Throttled = "throttled",
    Failed = "failed",
    KeptBack = "kept_back",
});
label!(pub(crate) enum Discovered: "discovered" { AtStart = "at_start", Later = "later" });
label!(pub(crate) enum DeletionEffect: "outcome" { Useful = "useful", Useless = "useless" });
label!(pub(crate) enum EndpointReadResult: "result" {
    Ok = "ok",
    Forbidden = "forbidden",
    Throttled = "throttled",
    Failed = "failed",
});
label!(pub(crate) struct WatchScope: "scope");
label!(pub(crate) struct ObjectKind: "kind");

/// How the container of a deleted pod ended: service, container, exit code and reason.
pub(crate) struct DeletedPodLabels([String; 4]);

pub(crate) const SERVICES: Gauge<ReadinessLabel> = Gauge::new(
    "watchdog_weeder_services",
    "Services in the namespaces of this replica, by readiness: ready or not_ready.",
);

pub(crate) const WEEDERS: Gauge<WeederPhase> = Gauge::new(
    "watchdog_weeders",
    "Weeders that live on this replica, by state: queued (the service has not been ready for long enough) or active.",
);

pub(crate) const STARTED: Counter = Counter::new(
    "watchdog_weeders_started_total",
    "Weeders that started because a service became ready.",
);

pub(crate) const ENDED: Counter<WeederEnd> = Counter::new(
    "watchdog_weeders_ended_total",
    "Weeders that ended, by how: ended (lived out their time) or cancelled (their namespace ended, moved to another \
     replica or is no longer configured). A weeder that a new one replaces is not counted.",
);

pub(crate) const DELETIONS: Counter<DeletionAnswer> = Counter::new(
    "watchdog_weeder_deletions_total",
    "Attempts to delete a crash-looping pod, by result: deleted; gone or changed (left alone); forbidden, throttled \
     or failed (tried again); kept_back (not sent, because the mode is observe).",
);

pub(crate) const DELETION_DELAY: Histogram<Discovered> = Histogram::new(
    "watchdog_weeder_deletion_delay_seconds",
    "Time until a crash-looping pod was deleted, by discovered: at_start (since its service became ready) or later \
     (since it was seen to crash while the weeder lived).",
);

pub(crate) const SAVED: Counter = Counter::new(
    "watchdog_weeder_recovery_seconds_saved_total",
    "Crash back-off that was left when a pod was deleted, estimated from its restarts: the time by which it starts \
     sooner.",
);

pub(crate) const PENDING: Gauge = Gauge::new(
    "watchdog_weeder_pending_deletions",
    "Crash-looping pods that wait to be deleted or are being deleted.",
);

pub(crate) const OUTCOMES: Counter<DeletionEffect> = Counter::new(
    "watchdog_weeder_deletion_outcomes_total",
    "Deletions that were judged, once for each container of a controller, by outcome: useful (no successor crashed \
     within a minute) or useless.",
);

pub(crate) const DELETED_PODS: Counter<DeletedPodLabels> = Counter::new(
    "watchdog_weeder_deleted_pods_total",
    "Deleted pods, by service, container, exit_code and reason of the last run of the container; beyond 200 \
     combinations other.",
);

pub(crate) const LEFT_ALONE: Counter = Counter::new(
    "watchdog_weeder_left_alone_total",
    "Containers that kept crashing although their service was ready, and whose pods are left alone after three \
     deletions.",
);

pub(crate) const FLAPPING: Counter = Counter::new(
    "watchdog_weeder_flapping_services_total",
    "Times that a service became ready for the fourth time in a minute; its dependants are deleted once it has been \
     ready for 30 s.",
);

pub(crate) const CRASHING: Gauge = Gauge::new(
    "watchdog_weeder_crashing_pods",
    "Dependants in CrashLoopBackOff that this replica sees, whether or not a weeder is responsible for them.",
);

pub(crate) const ENDPOINT_READS: Counter<EndpointReadResult> = Counter::new(
    "watchdog_weeder_endpoint_reads_total",
    "Times that the pods behind the endpoints of a service were read to learn since when it is ready, by result: ok, \
     forbidden, throttled or failed.",
);

pub(crate) const REQUESTS: Gauge = Gauge::new(
    "watchdog_weeder_requests_in_flight",
    "Deletions of pods and reads of endpoint pods under way; never more than 32.",
);

pub(crate) const POD_WATCHES: Gauge<WatchScope> = Gauge::new(
    "watchdog_weeder_pod_watches",
    "Watches on pods, by scope: namespace, selector, or all when there are more than eight selectors.",
);

pub(crate) const MALFORMED: Counter<ObjectKind> = Counter::new(
    "watchdog_weeder_malformed_objects_total",
    "Objects that could not be read, each time they were seen, by kind. They count as having no endpoint, no crash \
     loop and no annotation.",
);

/// Combinations of labels of [`DELETED_PODS`] at most: names of containers are not a closed set.
const MAX_DELETED_LABELS: usize = 200;

pub(crate) fn register() {
    STARTED.register();
    ENDED.register();
    DELETIONS.register();
    DELETED_PODS.register();
    DELETION_DELAY.register();
    SAVED.register();
    OUTCOMES.register();
    LEFT_ALONE.register();
    FLAPPING.register();
    ENDPOINT_READS.register();
    REQUESTS.register();
    MALFORMED.register();
}

impl From<&RequestFailure> for DeletionAnswer {
    fn from(failure: &RequestFailure) -> Self {
        match failure {
            RequestFailure::Gone => Self::Gone,
            RequestFailure::Changed => Self::Changed,
            RequestFailure::Forbidden(_) => Self::Forbidden,
            RequestFailure::Throttled(_) => Self::Throttled,
            RequestFailure::Failed(_) => Self::Failed,
        }
    }
}

impl From<&RequestFailure> for EndpointReadResult {
    fn from(failure: &RequestFailure) -> Self {
        match failure {
            RequestFailure::Forbidden(_) => Self::Forbidden,
            RequestFailure::Throttled(_) => Self::Throttled,
            RequestFailure::Gone | RequestFailure::Changed | RequestFailure::Failed(_) => Self::Failed,
        }
    }
}

impl Labels for DeletedPodLabels {
    fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
        for (name, value) in ["service", "container", "exit_code", "reason"]
            .into_iter()
            .zip(&self.0)
        {
            add(name, value);
        }
    }
}

/// Counts a deleted pod by how its container ended.
pub(crate) fn count_deleted_pod(service: &str, crash: &CrashLoop) {
    static KNOWN: Mutex<BTreeSet<[String; 4]>> = Mutex::new(BTreeSet::new());
    let exit_code = crash
        .exit_code
        .map_or_else(|| "unknown".to_owned(), |code| code.to_string());
    let mut values = [
        service.to_owned(),
        crash.container.clone(),
        exit_code,
        crash.reason.clone(),
    ];
    let mut known = KNOWN.lock();
    if !known.contains(&values) {
        if known.len() < MAX_DELETED_LABELS {
            known.insert(values.clone());
        } else {
            values = std::array::from_fn(|_| "other".to_owned());
        }
    }
    drop(known);
    DELETED_PODS.inc(DeletedPodLabels(values));
}
