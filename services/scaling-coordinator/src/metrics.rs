//! The metrics of the scaling-coordinator.

pub(crate) mod collector;

use watchdog_runtime::metrics::{Metric, describe};

pub(crate) const OPERATIONS: Metric = Metric::counter(
    "watchdog_scaling_operations_total",
    "Writes on the resources of a shoot, by shoot, direction (down, up, or release: of a shoot that hibernates, \
     migrates or is deleted) and result: applied, conflict (somebody else wrote in between), refused, unknown (no \
     answer, or the API server failed), cancelled (not allowed any more when its turn came), observed (not sent, because \
     the mode is observe).",
);

pub(crate) const WRITES: Metric = Metric::counter(
    "watchdog_scaling_writes_total",
    "Writes on the resources of all shoots, by direction and result, as watchdog_scaling_operations_total has them by \
     shoot.",
);

pub(crate) const FIRST_WRITE: Metric = Metric::histogram(
    "watchdog_scaling_first_write_seconds",
    "Time from the verdict that changed the direction of a shoot, when it was sent, until the first write was applied, or \
     would have been sent in mode observe, by direction.",
);

pub(crate) const REACHED: Metric = Metric::histogram(
    "watchdog_scaling_reached_seconds",
    "Time from the verdict that changed the direction of a shoot, when it was sent, until the last resource reached \
     its target, by direction.",
);

pub(crate) const FAILURES: Metric = Metric::counter(
    "watchdog_scaling_level_failures_total",
    "Times a resource failed its level: all tries failed, or it is absent and not optional; by direction.",
);

pub(crate) const SHOOTS: Metric = Metric::gauge(
    "watchdog_scaling_shoots",
    "Shoots that this replica owns, by direction (down, up or hold), state of the flow (holding, settled, running, \
     failed) and why they are held (no; cluster, ownership, unreported, expired, verdict, mode; disagreement and \
     outdated: lease-probe is not as it should be).",
);

pub(crate) const SHOOTS_BY_MODE: Metric = Metric::gauge(
    "watchdog_scaling_shoots_by_mode",
    "Shoots that this replica owns, by mode (protect, observe or off), source (shoot: its annotation, or seed: the \
     default) and end (set or never). Only those in mode protect are protected.",
);

pub(crate) const HELD_DOWN_OF: Metric = Metric::gauge(
    "watchdog_scaling_shoot_held_down_resources",
    "Resources of a shoot that carry meltdown-protection-active, by shoot; only where there is one.",
);

pub(crate) const HELD_DOWN: Metric = Metric::gauge(
    "watchdog_scaling_held_down_resources",
    "Resources that carry meltdown-protection-active, over the shoots that this replica owns.",
);

pub(crate) const TO_RESTORE: Metric = Metric::gauge(
    "watchdog_scaling_resources_to_restore",
    "Resources that carry meltdown-protection-active although the direction of their shoot is up; they are being \
     restored.",
);

pub(crate) const TO_RESTORE_OF: Metric = Metric::gauge(
    "watchdog_scaling_shoot_resources_to_restore",
    "Resources of a shoot that are being restored, by shoot; only where there is one.",
);

pub(crate) const FAILED_LEVELS: Metric = Metric::gauge(
    "watchdog_scaling_failed_levels",
    "Shoots that this replica owns and whose current level has failed; it is tried again while the verdict stands.",
);

pub(crate) const WAITING: Metric = Metric::gauge(
    "watchdog_scaling_waiting_shoots",
    "Shoots with a request to make that wait for their turn: the rate is limited by --request-rate, the number of \
     requests at once to 64.",
);

pub(crate) const UNDER_WAY: Metric = Metric::gauge(
    "watchdog_scaling_requests_under_way",
    "Requests on resources of shoots that are under way.",
);

pub(crate) const OBSERVERS: Metric = Metric::gauge(
    "watchdog_scaling_lease_probe_replicas",
    "Replicas of lease-probe, by state: known, or synced (their stream is complete and lives).",
);

pub(crate) fn register() {
    describe(&[WRITES, FIRST_WRITE, REACHED, FAILURES, WAITING, UNDER_WAY]);
    for metric in [FIRST_WRITE, REACHED] {
        metric.begin_by("direction", &["down", "up"]);
    }
    FAILURES.begin_by("direction", &["down", "up", "release"]);
    for direction in ["down", "up", "release"] {
        for result in [
            "applied",
            "conflict",
            "refused",
            "unknown",
            "cancelled",
            "observed",
        ] {
            WRITES.begin(&[("direction", direction.to_owned()), ("result", result.to_owned())]);
        }
    }
}
