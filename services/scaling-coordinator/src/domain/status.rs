//! The state of a shoot, as people and consumers see it: where its dependants go, why, and how far they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use strum::IntoStaticStr;
use tokio::time::Instant;
use watchdog_api::policy::{Mode, ModeInForce};
use watchdog_api::prober::ResourceRef;

use super::Direction;
use super::decision::HoldReason;
use super::incident::ShootIncidents;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum FlowState {
    /// Nothing to do: there is no direction.
    #[default]
    Holding,
    /// Nothing to do: every resource is where the direction wants it.
    Settled,
    Running,
    Failed,
    /// Mode observe keeps the next write back.
    KeptBack,
}

impl FlowState {
    pub(crate) fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The state of one resource in the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ResourceState {
    /// Its level has not started.
    Pending,
    /// Its initial delay runs.
    Delayed,
    /// A write is being made, or waits for its turn.
    Writing,
    /// Waiting for what was written to take effect.
    Waiting,
    /// It is where the direction wants it.
    Reached,
    Absent,
    Ignored,
    /// The last try failed; the next one comes after a back-off.
    BackingOff,
    /// All tries failed, or no try can help.
    Failed,
    /// Mode observe keeps its next write back.
    KeptBack,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) reference: ResourceRef,
    /// Its level in the direction that runs; none while holding.
    pub(crate) level: Option<i32>,
    pub(crate) state: ResourceState,
    /// Wanted replicas as last seen.
    pub(crate) replicas: Option<i32>,
    /// Ready replicas as last seen.
    pub(crate) ready: Option<i32>,
    /// Replica count recorded for the restore.
    pub(crate) recorded: Option<i32>,
    /// True if the resource really carries meltdown-protection-active.
    pub(crate) protected: bool,
    /// True if the coordinator itself has set that annotation.
    pub(crate) protected_by_coordinator: bool,
    /// Replicas that the direction wants.
    pub(crate) target: Option<i32>,
    /// Tries made in this level so far.
    pub(crate) attempts: u32,
    pub(crate) message: String,
}

/// How far the flow of a shoot is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FlowStatus {
    pub(crate) state: FlowState,
    /// The level that is being worked on or has failed.
    pub(crate) level: Option<i32>,
    /// Every configured resource, in configuration order.
    pub(crate) resources: Vec<Progress>,
    /// When a failed level is tried again; `None` also when only a change of a resource can help.
    pub(crate) retry_at: Option<Instant>,
}

impl FlowStatus {
    /// Resources that carry meltdown-protection-active, as opposed to kept-back writes.
    pub(crate) fn held_down(&self) -> usize {
        let resources = self.resources.iter();
        resources.filter(|resource| resource.protected).count()
    }
}

/// The writes of a shoot by direction and result.
pub(crate) type WriteCounts = BTreeMap<(Direction, &'static str), u64>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ShootScaling {
    /// The direction of its dependants; `None` holds.
    pub(crate) direction: Option<Direction>,
    /// Why it is held, if it is.
    pub(crate) held: Option<HoldReason>,
    /// One sentence for people: why.
    pub(crate) reason: String,
    /// When the direction last changed.
    pub(crate) since: Instant,
    /// The mode that is in force.
    pub(crate) mode: ModeInForce,
    pub(crate) status: Arc<FlowStatus>,
    pub(crate) incidents: ShootIncidents,
    pub(crate) write_counts: WriteCounts,
    /// The replica that reports this: the leader.
    pub(crate) replica: Arc<str>,
}

impl ShootScaling {
    /// The state of a shoot of which nothing is known.
    pub(crate) fn new(now: Instant, mode: ModeInForce, replica: Arc<str>) -> Self {
        Self {
            direction: None,
            held: None,
            reason: String::new(),
            since: now,
            mode,
            status: Arc::default(),
            incidents: ShootIncidents::default(),
            write_counts: WriteCounts::new(),
            replica,
        }
    }

    /// Resources that the coordinator must restore. In mode observe those are only its own: what another watchdog holds
    /// down is restored by that one.
    pub(crate) fn to_restore(&self) -> usize {
        if self.direction != Some(Direction::Up) {
            return 0;
        }
        let restores_all = self.mode.mode != Mode::Observe;
        let resources = self.status.resources.iter();
        resources
            .filter(|resource| resource.protected && (restores_all || resource.protected_by_coordinator))
            .count()
    }
}
