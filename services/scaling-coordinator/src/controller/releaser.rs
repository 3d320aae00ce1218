//! Says what the watchdog holds down, and when all of it is restored, for `--release-all` and `watchdogctl release`
//! (ADR 0018). The controller restores it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use watchdog_api::prober::ResourceRef;
use watchdog_watch_stream::server::StreamStore;

use crate::cluster::clusters::Clusters;
use crate::cluster::resources::Resources;
use crate::cluster::resources::dropped::LAST_WRITES;
use crate::domain::Direction;
use crate::domain::plan;
use crate::domain::resource_step::{ResourceStep, ResourceWrite};
use crate::domain::status::ShootScaling;

/// The interval at which the indexes are checked, without a request.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Resources that are held down, by shoot.
type HeldDown = BTreeMap<Arc<str>, Vec<ResourceRef>>;

/// An action on a resource or a shoot, done or planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseLine {
    /// The shoot's namespace in the seed.
    pub shoot: String,
    /// The resource; none where all of a shoot is left alone.
    pub resource: Option<String>,
    /// The level in which it is scaled up, where that is planned.
    pub level: Option<i32>,
    /// The action in words.
    pub action: String,
    /// Why; may be empty.
    pub reason: String,
}

/// The result of a release, or its plan.
#[derive(Debug)]
pub struct ReleaseReport {
    /// In the order of the shoots and of their levels.
    pub lines: Vec<ReleaseLine>,
    /// One sentence; or what is still held down, and why.
    pub ended: anyhow::Result<String>,
}

pub(crate) struct Releaser {
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) resources: Arc<Resources>,
}

impl Releaser {
    /// Waits until everything is listed.
    pub(crate) async fn listed(&self) {
        while !self.clusters.is_listed() || !self.resources.unlisted().is_empty() {
            sleep(CHECK_INTERVAL).await;
        }
    }

    pub(crate) fn held(&self) -> HeldDown {
        let mut held = HeldDown::new();
        for (reference, shoots) in self.resources.held_down() {
            for shoot in shoots {
                held.entry(shoot).or_default().push(reference.clone());
            }
        }
        held
    }

    /// The direction in which the controller takes a shoot, or why nothing at all is written to it.
    fn direction(&self, shoot: &str) -> Result<Direction, String> {
        match self.clusters.restraint(shoot) {
            None => Ok(Direction::Up),
            Some(restraint) => restraint.direction.ok_or(restraint.reason),
        }
    }

    pub(crate) fn plan(&self) -> ReleaseReport {
        let held = self.held();
        let lines = held.keys().flat_map(|shoot| match self.direction(shoot) {
            Ok(direction) => self.plan_shoot(shoot, direction),
            Err(why) => vec![ReleaseLine::new(shoot, None, "left as it is", why)],
        });
        let lines = lines.collect();
        let (resources, shoots) = (held.values().map(Vec::len).sum::<usize>(), held.len());
        let ended = Ok(format!("{resources} resources are held down in {shoots} shoots"));
        ReleaseReport { lines, ended }
    }

    fn plan_shoot(&self, shoot: &str, direction: Direction) -> Vec<ReleaseLine> {
        let mut lines = Vec::new();
        for (level, planned) in plan::plan(direction, self.resources.dependents(shoot)) {
            for (dependent, planned) in planned {
                let action = match (&planned.step, planned.target) {
                    (ResourceStep::Write(ResourceWrite::CleanUp), _) if direction == Direction::Release => {
                        "remove meltdown-protection-active and do not change its replicas".to_owned()
                    }
                    (ResourceStep::Write(ResourceWrite::CleanUp), _) | (ResourceStep::Write(_), None) => {
                        "remove meltdown-protection-active".to_owned()
                    }
                    (ResourceStep::Write(_), Some(target)) => format!("scale to {target}"),
                    (ResourceStep::Wait | ResourceStep::Read | ResourceStep::NotObserved, _) => {
                        "wait".to_owned()
                    }
                    _ => continue,
                };
                lines.push(ReleaseLine {
                    level: (direction == Direction::Up).then_some(level),
                    ..ReleaseLine::new(
                        shoot,
                        Some(&dependent.config.reference),
                        action,
                        dependent.with_warning(planned.why),
                    )
                });
            }
        }
        lines
    }

    /// Waits until the controller has restored what was held down before.
    pub(crate) async fn finish(
        &self,
        before: &HeldDown,
        states: &StreamStore<String, ShootScaling>,
        deadline: Instant,
    ) -> ReleaseReport {
        // The watches may lag behind the last writes of the replicas that have stopped.
        let settled_at = Instant::now() + LAST_WRITES;
        let (held, unlisted) = loop {
            sleep(CHECK_INTERVAL).await;
            let (now, held) = (Instant::now(), self.held());
            let unlisted = self.resources.unlisted();
            let can_change = !unlisted.is_empty() || held.keys().any(|shoot| self.direction(shoot).is_ok());
            if now >= deadline || (!can_change && now >= settled_at) {
                break (held, unlisted);
            }
        };
        let still_held =
            |shoot: &str, reference| held.get(shoot).is_some_and(|held| held.contains(reference));
        let mut lines = Vec::new();
        for (shoot, resources) in before {
            let done = match self.direction(shoot) {
                Ok(Direction::Up) => "restored",
                Ok(_) => "meltdown-protection-active removed, replicas not changed",
                Err(_) => "deleted with its shoot",
            };
            let done = resources
                .iter()
                .filter(|one| !still_held(shoot, one))
                .map(|one| (one, done));
            lines.extend(done.map(|(one, done)| ReleaseLine::new(shoot, Some(one), done, "")));
        }
        let ended = if !unlisted.is_empty() {
            let unlisted = unlisted.join(", ");
            let what = "cannot tell whether anything is held down, because these are not listed";
            Err(anyhow::anyhow!("{what}: {unlisted}"))
        } else if !held.is_empty() {
            Err(anyhow::anyhow!(
                "still held down:\n{}",
                self.why_held(&held, states)
            ))
        } else {
            Ok("nothing is held down".to_owned())
        };
        ReleaseReport { lines, ended }
    }

    /// A line for each resource that is still held down.
    fn why_held(&self, held: &HeldDown, states: &StreamStore<String, ShootScaling>) -> String {
        let mut lines = String::new();
        for (shoot, resources) in held {
            let state = states.get(&shoot.to_string());
            for reference in resources {
                let mut shown = state.iter().flat_map(|state| &state.status.resources);
                let message = shown
                    .find(|one| one.reference == *reference)
                    .map(|one| one.message.clone());
                let why = self.direction(shoot).err().or(message).unwrap_or_default();
                lines.push_str(&format!("{shoot}: {reference}: {why}\n"));
            }
        }
        lines
    }
}

impl ReleaseLine {
    fn new(
        shoot: &str,
        resource: Option<&ResourceRef>,
        action: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            shoot: shoot.to_owned(),
            resource: resource.map(ToString::to_string),
            level: None,
            action: action.into(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for ReleaseLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.level.map(|level| format!("level {level}"));
        let reason = Some(self.reason.clone()).filter(|reason| !reason.is_empty());
        let parts = [
            Some(self.shoot.clone()),
            level,
            self.resource.clone(),
            Some(self.action.clone()),
            reason,
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(": "))
    }
}
