//! All that a decision about a shoot rests on, in one place: the engine decides by it, and so does the check right
//! before a write.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::policy::{Mode, ModeInForce, mode_in_force};
use watchdog_api::unix_time::UnixTime;
use watchdog_kube::leadership::{Leadership, Permit};
use watchdog_runtime::clock::Clock;

use crate::cluster::clusters::Clusters;
use crate::cluster::resources::Resources;
use crate::controller::verdicts::VerdictTable;
use crate::domain::Direction;
use crate::domain::decision::{Decision, decide, decide_without_verdicts};
use crate::domain::next_step::earliest;
use crate::domain::plan::{self, ShootPlan};
use crate::domain::request::Request;

pub(crate) struct DecisionInputs {
    pub(crate) verdicts: Arc<VerdictTable>,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) resources: Arc<Resources>,
    /// One replica acts on all shoots.
    pub(crate) leadership: Leadership,
    /// Cancelled when the process drains: no write begins after that.
    pub(crate) draining: CancellationToken,
    /// The mode of the shoots whose annotations set none.
    pub(crate) mode_of_seed: Mode,
    pub(crate) clock: Clock,
}

impl DecisionInputs {
    /// Returns true if the shoot exists and this replica is the one to act on it, even if it must not act now.
    pub(crate) fn acts_on(&self, shoot: &str) -> bool {
        self.leadership.holds_lease() && self.exists(shoot)
    }

    /// The UID of a shoot's Cluster.
    pub(crate) fn uid(&self, shoot: &str) -> Option<Arc<str>> {
        self.clusters.get(shoot)?.uid
    }

    /// Returns true if the Clusters have been listed and `has` holds for every shoot on which this replica is to act.
    pub(crate) fn has_all_shoots(&self, has: &dyn Fn(&String) -> bool) -> bool {
        let mut owned = self
            .clusters
            .names()
            .into_iter()
            .filter(|shoot| self.acts_on(shoot));
        self.clusters.is_listed() && owned.all(|shoot| has(&shoot.to_string()))
    }

    /// The mode of a shoot that is in force now.
    pub(crate) fn mode(&self, shoot: &str, now: Instant) -> ModeInForce {
        if self.resources.restores_only {
            return ModeInForce::default();
        }
        let now = UnixTime(self.clock.micros_at(now));
        let of_shoot = self.clusters.get(shoot).and_then(|known| known.mode);
        mode_in_force(of_shoot, self.mode_of_seed, now)
    }

    /// The malformed annotations of a Shoot, a sentence each.
    pub(crate) fn malformed_policy(&self, shoot: &str) -> Vec<String> {
        let known = self.clusters.get(shoot);
        known.map(|known| known.malformed).unwrap_or_default()
    }

    /// The direction in which the dependants of a shoot should be scaled now.
    pub(crate) fn decide(&self, shoot: &str, now: Instant) -> Decision {
        let mode = self.mode(shoot, now);
        let mut decision = match self.restraint(shoot, mode) {
            Some(restraint) => restraint,
            None if self.resources.restores_only => Decision::restore(),
            None => decide(now, &self.verdicts.on(shoot), self.verdicts.streams()),
        };
        for malformed in self.malformed_policy(shoot) {
            decision.explain(&malformed);
        }
        let ends = mode.until.map(|until| self.clock.instant_at(until.0));
        decision.again_at = earliest(decision.again_at, ends);
        decision
    }

    /// The permit to send a write, if all that it was decided on still holds (S1 to S5), or what has changed. The last
    /// thing that is asked before it is sent. `mode` is the one in which the decision was made.
    pub(crate) fn authorize(&self, shoot: &str, write: &Request, mode: Mode) -> Result<Permit, &'static str> {
        let now = Instant::now();
        if self.decide(shoot, now).direction != Some(write.direction) {
            return Err("the direction of the shoot has changed");
        }
        if self.mode(shoot, now).mode != mode {
            return Err("the mode of the shoot has changed");
        }
        if !self.resources.is_configured(&write.reference, write.direction) {
            return Err("the resource was removed from the configuration");
        }
        if self.draining.is_cancelled() {
            return Err("this process is stopping");
        }
        self.leadership
            .act()
            .ok_or("this replica is no longer the leader")
    }

    /// The decision that no verdict on a shoot can change; none if its verdicts count.
    fn restraint(&self, shoot: &str, mode: ModeInForce) -> Option<Decision> {
        let not_leading = (!self.leadership.is_leader()).then(|| self.who_leads());
        decide_without_verdicts(self.clusters.restraint(shoot), not_leading, mode)
    }

    /// Why this replica does not lead.
    fn who_leads(&self) -> String {
        match self.leadership.leader().borrow().as_ref() {
            Some(leader) if leader.name != *self.leadership.identity() => {
                format!("Replica {} is the leader.", leader.name)
            }
            Some(_) => {
                "This replica must not act: it could not renew its leader election Lease in time.".to_owned()
            }
            None => "No replica is the leader.".to_owned(),
        }
    }

    fn exists(&self, shoot: &str) -> bool {
        self.clusters.get(shoot).is_some()
    }
}

// === for the API ===

impl DecisionInputs {
    /// Returns true if it is certain that the seed has no Cluster of this name.
    pub(crate) fn is_unknown(&self, shoot: &str) -> bool {
        self.clusters.is_listed() && !self.exists(shoot)
    }

    /// The effect that a direction would have on a shoot; none when the seed has no such Cluster.
    pub(crate) fn plan(&self, shoot: &str, direction: Direction) -> Option<ShootPlan> {
        if !self.exists(shoot) {
            return None;
        }
        let levels = plan::plan(direction, self.resources.dependents(shoot));
        let mode = self.mode(shoot, Instant::now());
        let (allowed, reason) = match self.restraint(shoot, mode) {
            Some(restraint) => (false, restraint.reason),
            None if mode.mode == Mode::Observe => {
                let why = "The mode of the shoot is observe: actions are reported, but nothing is written.";
                (false, why.to_owned())
            }
            None => (
                true,
                "Scaling is allowed, and this replica is the leader.".to_owned(),
            ),
        };
        Some(ShootPlan {
            direction,
            levels,
            allowed,
            reason,
        })
    }
}
