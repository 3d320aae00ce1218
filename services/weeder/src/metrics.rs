//! The metrics of the weeder.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use watchdog_runtime::label;
use watchdog_runtime::metrics::{Counter, Gauge, Histogram, Labels};

use crate::domain::deletion_result::DeletionResult;
use crate::domain::pods::CrashLoop;
use crate::domain::rule::KeepReason;
use crate::domain::weeder::Phase;

label!(pub(crate) enum ReadinessLabel: "readiness" { Ready = "ready", NotReady = "not_ready" });
label!("state": Phase);
label!(pub(crate) enum WeederEnd: "how" { Ended = "ended", Cancelled = "cancelled" });
label!("result": DeletionResult = DeletionResult::ALL);
label!(pub(crate) enum Discovered: "discovered" { AtStart = "at_start", Later = "later" });
label!("reason": KeepReason = KeepReason::ALL);
label!(pub(crate) struct ObjectKind: "kind");

/// How the container of a deleted pod ended: service, container, exit code and reason.
pub(crate) struct DeletedPodLabels([String; 4]);

pub(crate) const SERVICES: Gauge<ReadinessLabel> = Gauge::new(
    "watchdog_weeder_services",
    "Configured services that have endpoints, by readiness: ready or not_ready.",
);

pub(crate) const WEEDERS: Gauge<Phase> = Gauge::new(
    "watchdog_weeders",
    "Recoveries of services that count now, by state: queued (the service has not been ready for long enough) or \
     active.",
);

pub(crate) const STARTED: Counter = Counter::new(
    "watchdog_weeders_started_total",
    "Weeders that started because a service recovered. Every replica counts them, the leader and the standbys.",
);

pub(crate) const ENDED: Counter<WeederEnd> = Counter::new(
    "watchdog_weeders_ended_total",
    "Weeders that ended, by how: ended (watchDuration elapsed) or cancelled (their service was no longer \
     ready or is no longer configured). A weeder that a new one replaces is not counted.",
);

pub(crate) const DELETIONS: Counter<DeletionResult> = Counter::new(
    "watchdog_weeder_deletions_total",
    "Attempts to delete a crash-looping pod, by result: deleted; gone or changed (left alone); forbidden, throttled \
     or failed (tried again); kept_back (not sent, because the mode is observe).",
);

pub(crate) const DELETION_DELAY: Histogram<Discovered> = Histogram::new(
    "watchdog_weeder_deletion_delay_seconds",
    "Time until a crash-looping pod was deleted, by discovered: at_start (since its service became ready) or later \
     (since it was observed to crash while the weeder was active).",
);

pub(crate) const PENDING: Gauge = Gauge::new(
    "watchdog_weeder_pending_deletions",
    "Crash-looping pods that must be deleted and are still there; 0 on a standby.",
);

pub(crate) const USELESS: Counter = Counter::new(
    "watchdog_weeder_useless_deletions_total",
    "Deletions that did not help: the replacement crashed within a minute of its creation.",
);

pub(crate) const DELETED_PODS: Counter<DeletedPodLabels> = Counter::new(
    "watchdog_weeder_deleted_pods_total",
    "Deleted pods, by service, container, exit_code and reason of the last run of the container; beyond 200 \
     combinations other.",
);

pub(crate) const LEFT_ALONE: Counter<KeepReason> = Counter::new(
    "watchdog_weeder_left_alone_total",
    "Crash-looping dependants of a recovered service that are not deleted, by reason: younger_than_recovery (they \
     crash for another reason), no_controller, job, excluded_kind or static_pod.",
);

pub(crate) const HELD_BACK: Counter = Counter::new(
    "watchdog_weeder_flapping_services_total",
    "Times that a service became ready for the fourth time in a minute; its dependants wait until the minute is over.",
);

pub(crate) const CRASHING: Gauge = Gauge::new(
    "watchdog_weeder_crashing_pods",
    "Dependants in CrashLoopBackOff, whether or not their service has recovered.",
);

pub(crate) const REQUESTS: Gauge = Gauge::new(
    "watchdog_weeder_requests_in_flight",
    "Deletions of pods in flight; never more than 32.",
);

pub(crate) const MALFORMED: Counter<ObjectKind<'_>> = Counter::new(
    "watchdog_weeder_malformed_objects_total",
    "Objects that could not be read, each time they were observed, by kind. They count as having no endpoint and no \
     crash loop.",
);

/// Combinations of labels of [`DELETED_PODS`] at most: names of containers are not a closed set.
const MAX_DELETED_LABELS: usize = 200;

pub(crate) fn register() {
    STARTED.register();
    ENDED.register();
    DELETIONS.register();
    DELETED_PODS.register();
    DELETION_DELAY.register();
    USELESS.register();
    LEFT_ALONE.register();
    HELD_BACK.register();
    REQUESTS.register();
    MALFORMED.register();
}

impl Labels for DeletedPodLabels {
    fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
        let names = ["service", "container", "exit_code", "reason"];
        names
            .into_iter()
            .zip(&self.0)
            .for_each(|(name, value)| add(name, value));
    }
}

/// Counts a deleted pod by how its container ended.
pub(crate) fn count_deleted_pod(service: &str, crash: &CrashLoop) {
    static KNOWN: Mutex<BTreeSet<[String; 4]>> = Mutex::new(BTreeSet::new());
    let exit_code = crash.exit_code.map(|code| code.to_string());
    let exit_code = exit_code.unwrap_or_else(|| "unknown".to_owned());
    let mut values = [
        service.to_owned(),
        crash.container.clone(),
        exit_code,
        crash.reason.clone(),
    ];
    let mut known = KNOWN.lock();
    if known.len() < MAX_DELETED_LABELS {
        known.insert(values.clone());
    } else if !known.contains(&values) {
        values = std::array::from_fn(|_| "other".to_owned());
    }
    drop(known);
    DELETED_PODS.inc(DeletedPodLabels(values));
}
