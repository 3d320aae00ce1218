//! The state of a shoot, as the API reports it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;
use watchdog_api::policy::{Mode, ModeInForce};

use super::Direction;
use super::decision::HoldReason;
use super::incident::ShootIncidents;
use super::plan::Planned;
use super::status::FlowStatus;

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

/// The effect that a direction would have on a shoot now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShootPlan {
    /// Its levels, in the order in which they would run.
    pub(crate) levels: BTreeMap<i32, Vec<Planned>>,
    /// True if everything except the verdict allows the coordinator to act on the shoot now.
    pub(crate) allowed: bool,
    /// One sentence for people: why or why not.
    pub(crate) reason: String,
}
