//! All that a decision about a shoot rests on, in one place: the engine decides by it, and so does the check right
//! before a write.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::prober::ProberConfig;
use watchdog_kube::membership::{Exclusive, Permit};

use crate::cluster::clusters::{Clusters, WriteEligibility};
use crate::cluster::resources::Resources;
use crate::controller::verdicts::VerdictTable;
use crate::domain::Direction;
use crate::domain::decision::{Decision, HoldReason, decide};
use crate::domain::flow::Action;
use crate::domain::observed::Dependent;
use crate::domain::overview::{Overview, ShootPlan};
use crate::domain::plan;

/// A time in which only this replica has acted on its shoots, and the seed was available without a break. Knowledge of
/// resources from an earlier epoch proves nothing about the time since (S3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OwnershipEpoch {
    /// Changes whenever a shoot may have been another replica's for a while.
    membership: u64,
    /// Changes whenever a watch failed, because the API server may have been away and etcd restored meanwhile, and
    /// whenever etcd was found to have been restored.
    interruptions: u64,
}

pub(crate) struct DecisionInputs {
    /// The configuration, completed by what was dropped from it and may still be held down.
    pub(crate) config: watch::Receiver<Arc<ProberConfig>>,
    pub(crate) verdicts: Arc<VerdictTable>,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) resources: Arc<Resources>,
    /// Tells which shoots this replica owns.
    pub(crate) membership: Exclusive,
    /// Cancelled when the process drains: no write begins after that.
    pub(crate) draining: CancellationToken,
}

impl DecisionInputs {
    /// Returns true if the shoot exists and this replica owns it, even if it must not act on it now.
    pub(crate) fn is_ours(&self, shoot: &str) -> bool {
        self.exists(shoot) && self.membership.owns(shoot)
    }

    /// Returns true if the Clusters have been listed and `has` holds for every shoot of this replica.
    pub(crate) fn all_ours(&self, has: &dyn Fn(&String) -> bool) -> bool {
        let ready = self.membership.has_joined() && self.clusters.is_listed();
        let mut ours = self
            .clusters
            .names()
            .into_iter()
            .filter(|shoot| self.is_ours(shoot));
        ready && ours.all(|shoot| has(&shoot.to_string()))
    }

    /// Where the dependants of a shoot are to go now.
    pub(crate) fn decide(&self, shoot: &str, now: Instant) -> Decision {
        match self.allowed(shoot) {
            Err((_, reason)) if self.is_released(shoot) => Decision::release(reason),
            Err((held, reason)) => Decision::hold(held, reason),
            Ok(()) => decide(now, &self.verdicts.on(shoot), self.verdicts.streams()),
        }
    }

    pub(crate) fn dependents<'a>(&self, config: &'a ProberConfig, shoot: &str) -> Vec<Dependent<'a>> {
        self.resources.dependents(config, shoot)
    }

    pub(crate) fn config(&self) -> Arc<ProberConfig> {
        self.config.borrow().clone()
    }

    pub(crate) fn ownership_epoch(&self) -> OwnershipEpoch {
        OwnershipEpoch {
            membership: *self.membership.subscribe().borrow(),
            interruptions: self.resources.interruptions(),
        }
    }

    /// The permit to send a write, if all that it was decided on still holds (S1 to S5). The last thing that is asked
    /// before it is sent. `epoch` is the one in which the decision was made.
    pub(crate) fn authorize(&self, shoot: &str, action: &Action, epoch: OwnershipEpoch) -> Option<Permit> {
        let direction = self.decide(shoot, Instant::now()).direction;
        let wanted = direction == Some(action.direction) && self.is_configured(action);
        if !wanted || self.draining.is_cancelled() {
            return None;
        }
        let permit = self.membership.act(shoot)?;
        // After the permit, under which the shoot stays ours.
        (self.ownership_epoch() == epoch).then_some(permit)
    }

    /// Checks everything except the verdict that must hold before the coordinator acts on a shoot.
    fn allowed(&self, shoot: &str) -> Result<(), (HoldReason, String)> {
        match self.clusters.write_eligibility(shoot) {
            WriteEligibility::Allowed => {}
            WriteEligibility::Unlisted => {
                return Err((
                    HoldReason::Cluster,
                    "The Clusters of the seed are not listed yet.".to_owned(),
                ));
            }
            WriteEligibility::Absent => return Err((HoldReason::Cluster, "The Cluster is gone.".to_owned())),
            WriteEligibility::Stopped(reason) => return Err((HoldReason::Cluster, reason.to_string())),
        }
        if self.membership.may_act(shoot) {
            return Ok(());
        }
        let why = match self.membership.owner(shoot) {
            Some(owner) if owner != *self.membership.identity() => format!("The replica {owner} owns this shoot."),
            Some(_) => "This replica owns the shoot, but must not act: its own lease has run out, or another replica \
                        has not acknowledged it yet."
                .to_owned(),
            None => "No replica owns this shoot: none has a valid lease.".to_owned(),
        };
        Err((HoldReason::Ownership, why))
    }

    /// Returns true if the Cluster says that the shoot is no longer protected, and this replica may remove leftover
    /// protection.
    fn is_released(&self, shoot: &str) -> bool {
        self.clusters.write_eligibility(shoot).is_released() && self.membership.may_act(shoot)
    }

    fn is_configured(&self, action: &Action) -> bool {
        let config = self.config.borrow();
        let known = config
            .dependent_resource_infos
            .iter()
            .any(|dependent| dependent.reference == action.reference);
        let dropped = || self.resources.is_dropped(&action.reference);
        known && (action.direction != Direction::Down || !dropped())
    }

    fn exists(&self, shoot: &str) -> bool {
        !matches!(
            self.clusters.write_eligibility(shoot),
            WriteEligibility::Absent | WriteEligibility::Unlisted
        )
    }
}

impl Overview for DecisionInputs {
    fn is_unknown(&self, shoot: &str) -> bool {
        self.clusters.is_listed() && !self.exists(shoot)
    }

    fn owner(&self, shoot: &str) -> Option<Arc<str>> {
        self.membership.owner(shoot)
    }

    fn plan(&self, shoot: &str, direction: Direction) -> Option<ShootPlan> {
        if !self.exists(shoot) {
            return None;
        }
        let config = self.config();
        let levels = plan::plan(direction, &self.dependents(&config, shoot));
        let allowed = self.allowed(shoot);
        Some(ShootPlan {
            levels,
            allowed: allowed.is_ok(),
            reason: allowed
                .err()
                .map(|(_, why)| why)
                .unwrap_or_else(|| "The shoot may be acted upon, and this replica owns it.".to_owned()),
        })
    }
}
