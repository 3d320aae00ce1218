//! The metrics of lease-probe.

use watchdog_runtime::label;
use watchdog_runtime::metrics::{Counter, Gauge, Histogram, ShootLabel};

use crate::domain::endpoint::Endpoint;
use crate::domain::outcome::{Outcome, ShootPermission};

label!("outcome": &Outcome);
label!("endpoint": Endpoint);
label!("permission": ShootPermission);
label!(pub(crate) enum ConnectResult: "result" { Opened = "opened", Failed = "failed" });
label!(pub(crate) enum RefusalReason: "reason" {
    TooLarge = "too_large",
    NoMemory = "no_memory",
    TooManyLeases = "too_many_leases",
});
label!(pub(crate) struct CodeLabel: "code");
label!(pub(crate) struct FailureReason: "reason");
label!(pub(crate) struct SkipReasonName: "reason");

pub(crate) const PROBES: Counter<&Outcome> = Counter::new(
    "watchdog_probes_total",
    "Probes of shoots, by outcome of the probe (before thresholds).",
);

pub(crate) const PROBE_DURATION: Histogram = Histogram::new(
    "watchdog_probe_duration_seconds",
    "Time from the start of a probe to its result, its requests included.",
);

pub(crate) const SCHEDULE_LAG: Histogram = Histogram::new(
    "watchdog_probe_schedule_lag_seconds",
    "Time from when a probe was due until it started.",
);

pub(crate) const DETECTION_LAG: Histogram = Histogram::new(
    "watchdog_detection_lag_seconds",
    "Time from the moment at which the share of expired leases crossed the threshold until the verdict was published.",
);

pub(crate) const SHOOT_REQUESTS: Counter<CodeLabel<'_>> = Counter::new(
    "watchdog_shoot_requests_total",
    "Requests to the API servers of shoots that were answered, by HTTP status code.",
);

pub(crate) const THROTTLED: Counter = Counter::new(
    "watchdog_shoot_throttled_total",
    "Probes that a shoot's API server answered with 429.",
);

pub(crate) const CONNECTIONS: Counter<ConnectResult> = Counter::new(
    "watchdog_shoot_connections_total",
    "Connections to the API servers of shoots, by result: opened or failed.",
);

pub(crate) const ANSWER_BYTES: Gauge = Gauge::new(
    "watchdog_shoot_answer_bytes",
    "Memory reserved for answers of more than 64 KiB that are being read, in bytes: 2 MiB each; bounded by \
     --answer-memory.",
);

pub(crate) const ANSWERS_REFUSED: Counter<RefusalReason> = Counter::new(
    "watchdog_shoot_answers_refused_total",
    "Answers of the API servers of shoots that were abandoned, by reason: too_large, no_memory or too_many_leases.",
);

pub(crate) const ACTIVE_PROBES: Gauge =
    Gauge::new("watchdog_active_probes", "Shoots that this replica probes.");

pub(crate) const SHOOTS: Gauge<&Outcome> = Gauge::new(
    "watchdog_shoots",
    "Shoots of which this replica is the first witness, by outcome of their verdict.",
);

pub(crate) const SKIPPED: Gauge<SkipReasonName<'_>> = Gauge::new(
    "watchdog_shoots_skipped",
    "Shoots of which this replica is the first witness and that are not probed, by reason.",
);

pub(crate) const PROBE_FAILURES: Counter<(ShootLabel<'_>, (Endpoint, FailureReason<'_>))> = Counter::new(
    "watchdog_shoot_probe_failures_total",
    "Probes of a shoot without a result, by shoot, endpoint (internal or external) and reason.",
);

pub(crate) const SHOOT_PERMISSION_MISSING: Gauge<(ShootLabel<'_>, ShootPermission)> = Gauge::new(
    "watchdog_shoot_permission_missing",
    "1 for each permission that a shoot refused to its probe, by shoot and permission.",
);

pub(crate) const EXPIRED_FRACTION: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_expired_lease_fraction",
    "Share of the eligible leases of a shoot that are expired, by shoot.",
);

pub(crate) const ELIGIBLE_FRACTION: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_eligible_lease_fraction",
    "Share of the leases of a shoot that are eligible, by shoot. Only shoots where some are not.",
);

pub(crate) const VERDICT_AGE: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_verdict_age_seconds",
    "Time since the last verdict on a shoot was observed, by shoot. Only shoots that are probed.",
);

pub(crate) const SHOOT_OUTCOME: Gauge<(ShootLabel<'_>, &Outcome)> = Gauge::new(
    "watchdog_shoot_outcome",
    "1 for each probed shoot that is not healthy, by shoot and outcome: leases_expired and external_unreachable (its \
     nodes are cut off), pending, api_server_unreachable, throttled and inconclusive (its nodes cannot be judged), or \
     too_few_candidates.",
);

pub(crate) const SHOOT_MALFORMED: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_malformed",
    "1 for each shoot that is not probed because its Cluster cannot be read, by shoot.",
);

pub(crate) const GRACE_TOO_SHORT: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_grace_period_too_short",
    "1 for each shoot whose kube-controller-manager acts before a loss can be proven, by shoot. Such a shoot is not \
     protected.",
);

pub(crate) const OUTCOME_CHANGED: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_outcome_changed_timestamp_seconds",
    "Unix time at which the outcome of a shoot last changed, by shoot. Only shoots that are probed.",
);

pub(crate) const VERDICT_EXPIRED: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_verdict_expired",
    "1 for each probed shoot whose verdict by this replica has expired, by shoot; no program acts on it.",
);

pub(crate) const CLOCK_SKEW: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_clock_skew_seconds",
    "Clock skew furthest from zero among the nodes of a shoot, by shoot; negative when that clock is behind. Only \
     shoots with a skew of 2 s or more.",
);

pub(crate) const ZONES_EXPIRED: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_shoot_zones_expired",
    "Zones of a shoot in which all eligible leases are expired, by shoot. Only where there is one.",
);

pub(crate) fn register() {
    PROBES.register();
    PROBE_DURATION.register();
    SCHEDULE_LAG.register();
    DETECTION_LAG.register();
    SHOOT_REQUESTS.register();
    THROTTLED.register();
    CONNECTIONS.register();
    ANSWERS_REFUSED.register();
}
