//! The metrics of the scaling-coordinator.

use strum::{IntoEnumIterator as _, VariantArray as _};
use watchdog_api::policy::Mode;
use watchdog_runtime::label;
use watchdog_runtime::metrics::{Counter, Gauge, Histogram, Labels, ShootLabel};

use crate::domain::decision::HoldReason;
use crate::domain::incident::Comparison;
use crate::domain::request::RequestOutcome;
use crate::domain::status::FlowState;
use crate::domain::{Direction, direction_name};

label!("direction": Direction = Direction::VARIANTS);
label!("result": RequestOutcome = RequestOutcome::iter().collect::<Vec<_>>());
label!(pub(crate) struct WriteResult: "result");
label!("result": Comparison = Comparison::VARIANTS);
label!(pub(crate) enum ReplicaState: "state" { Known = "known", Synced = "synced" });

label!(pub(crate) enum IncidentStage: "stage" {
    LastRenewalToVerdict = "last_renewal_to_verdict",
    VerdictToFirstWrite = "verdict_to_first_write",
    VerdictToLastWrite = "verdict_to_last_write",
    HealthyToRestored = "healthy_to_restored",
});

/// The state of a shoot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScalingLabels {
    pub(crate) direction: Option<Direction>,
    pub(crate) flow: FlowState,
    pub(crate) held: Option<HoldReason>,
}

impl ScalingLabels {
    /// Returns true if the shoot is being scaled, its level has failed, or lease-probe gives it no verdict to act on.
    pub(crate) const fn needs_attention(&self) -> bool {
        let has_no_verdict = matches!(
            self.held,
            Some(
                HoldReason::Unreported
                    | HoldReason::Expired
                    | HoldReason::Disagreement
                    | HoldReason::Outdated
            )
        );
        has_no_verdict || matches!(self.flow, FlowState::Running | FlowState::Failed)
    }
}

impl Labels for ScalingLabels {
    fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
        add("direction", direction_name(self.direction));
        add("state", self.flow.as_str());
        add("held", self.held.map_or("no", HoldReason::as_str));
    }
}

/// The mode that is in force for a shoot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModeLabels {
    pub(crate) mode: Mode,
    pub(crate) from_annotation: bool,
    pub(crate) has_end: bool,
}

impl Labels for ModeLabels {
    fn each(&self, add: &mut dyn FnMut(&'static str, &str)) {
        add("mode", self.mode.as_str());
        add("source", if self.from_annotation { "shoot" } else { "seed" });
        add("end", if self.has_end { "set" } else { "never" });
    }
}

pub(crate) const OPERATIONS: Counter<(ShootLabel<'_>, (Direction, WriteResult))> = Counter::new(
    "watchdog_scaling_operations_total",
    "Writes on the resources of a shoot, by shoot, direction (down, up, or release: of a shoot that hibernates, \
     migrates or is deleted) and result: applied, conflict (somebody else wrote in between), refused, unknown (no \
     answer, or the API server failed), cancelled (no longer allowed when its turn came), kept_back (not sent, \
     because the mode is observe).",
);

pub(crate) const WRITES: Counter<(Direction, RequestOutcome)> = Counter::new(
    "watchdog_scaling_writes_total",
    "Writes on the resources of all shoots, by direction and result, as watchdog_scaling_operations_total has them by \
     shoot.",
);

pub(crate) const FIRST_WRITE: Histogram<Direction> = Histogram::new(
    "watchdog_scaling_first_write_seconds",
    "Time from the loss, when lease-probe found it, or from the decision to scale up, until the first write was \
     applied, or would have been sent in mode observe, by direction.",
);

pub(crate) const REACHED: Histogram<Direction> = Histogram::new(
    "watchdog_scaling_reached_seconds",
    "Time from the loss, when lease-probe found it, or from the decision to scale up, until the last resource reached \
     its target, by direction.",
);

pub(crate) const FAILURES: Counter<Direction> = Counter::new(
    "watchdog_scaling_level_failures_total",
    "Times a resource failed its level: all attempts failed, or it is absent and not optional; by direction.",
);

pub(crate) const INCIDENTS: Counter<()> = Counter::new(
    "watchdog_incidents_total",
    "Incidents that have ended: a shoot was cut off, or scaled, and everything is restored.",
);

pub(crate) const INCIDENT_STAGES: Histogram<IncidentStage> = Histogram::new(
    "watchdog_incident_stage_seconds",
    "Duration of the stages of incidents that have ended, by stage: last_renewal_to_verdict, verdict_to_first_write, \
     verdict_to_last_write, healthy_to_restored.",
);

pub(crate) const INCIDENT_COMPARISONS: Counter<(Direction, Comparison)> = Counter::new(
    "watchdog_incident_comparisons_total",
    "Incidents in mode observe that have ended, by direction and result of the comparison with the other writers: \
     earlier or later (this program would have scaled before or after them), alone (only this program would have \
     scaled), other_alone (only they scaled).",
);

pub(crate) const INCIDENT_LEADS: Histogram<(Direction, Comparison)> = Histogram::new(
    "watchdog_incident_lead_seconds",
    "Time between the first scaling by the other writers and the first one that mode observe kept back, by direction \
     and result: earlier or later, as in watchdog_incident_comparisons_total.",
);

pub(crate) const SHOOTS: Gauge<ScalingLabels> = Gauge::new(
    "watchdog_scaling_shoots",
    "Shoots of the seed, on the leader, by direction (down, up or hold), state of the flow (holding, settled, running, \
     failed, kept_back) and why they are held (no; cluster, not_leading, unreported, expired, verdict, mode; \
     disagreement and outdated: lease-probe is not as it should be).",
);

pub(crate) const SHOOT_STATE: Gauge<(ShootLabel<'_>, ScalingLabels)> = Gauge::new(
    "watchdog_scaling_shoot_state",
    "1 for each shoot that is being scaled, whose level has failed, or that is held because its verdicts are missing, \
     expired, contradictory or outdated; by shoot, and by direction, state and held as in watchdog_scaling_shoots.",
);

pub(crate) const SHOOT_MODE: Gauge<(ShootLabel<'_>, ModeLabels)> = Gauge::new(
    "watchdog_scaling_shoot_mode",
    "1 for each shoot whose annotation sets the mode observe or off, by shoot, and by mode, source and end as in \
     watchdog_scaling_shoots_by_mode.",
);

pub(crate) const SHOOTS_BY_MODE: Gauge<ModeLabels> = Gauge::new(
    "watchdog_scaling_shoots_by_mode",
    "Shoots of the seed, on the leader, by mode (protect, observe or off), source (shoot: its annotation, or seed: the \
     default) and end (set: within 31 days, or never). Only those in mode protect are protected.",
);

pub(crate) const HELD_DOWN_OF: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_scaling_shoot_held_down_resources",
    "Resources of a shoot that carry meltdown-protection-active, by shoot; only where there is one.",
);

pub(crate) const HELD_DOWN: Gauge = Gauge::new(
    "watchdog_scaling_held_down_resources",
    "Resources that carry meltdown-protection-active, on the leader.",
);

pub(crate) const TO_RESTORE: Gauge = Gauge::new(
    "watchdog_scaling_resources_to_restore",
    "Resources that carry meltdown-protection-active although the direction of their shoot is up; they are being \
     restored. In mode observe only those that this program holds down itself.",
);

pub(crate) const TO_RESTORE_OF: Gauge<ShootLabel<'_>> = Gauge::new(
    "watchdog_scaling_shoot_resources_to_restore",
    "Resources of a shoot that are being restored, by shoot; only where there is one.",
);

pub(crate) const FAILED_LEVELS: Gauge = Gauge::new(
    "watchdog_scaling_failed_levels",
    "Shoots whose current level has failed, on the leader; it is tried again while the direction stays the same.",
);

pub(crate) const WAITING: Gauge = Gauge::new(
    "watchdog_scaling_waiting_shoots",
    "Shoots with a queued request: --request-rate limits the rate, and at most 64 requests are in flight at once.",
);

pub(crate) const UNDER_WAY: Gauge = Gauge::new(
    "watchdog_scaling_requests_under_way",
    "Requests in flight on resources of shoots.",
);

pub(crate) const OBSERVERS: Gauge<ReplicaState> = Gauge::new(
    "watchdog_scaling_lease_probe_replicas",
    "Lease-probe replicas, by state: known, or synced (their stream is complete and alive).",
);

pub(crate) fn register() {
    WRITES.register();
    FIRST_WRITE.register();
    REACHED.register();
    FAILURES.register();
    INCIDENTS.register();
    INCIDENT_STAGES.register();
    INCIDENT_COMPARISONS.register();
    INCIDENT_LEADS.register();
    WAITING.register();
    UNDER_WAY.register();
}
