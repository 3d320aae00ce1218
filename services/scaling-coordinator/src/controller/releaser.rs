//! Restores everything that the watchdog holds down, for `--release-all` and `watchdogctl release` (ADR 0018).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use watchdog_api::prober::{ProberConfig, ResourceRef};
use watchdog_runtime::work_queue::WorkQueue;
use watchdog_watch_stream::server::StateStore;

use super::verdicts::VerdictTable;
use crate::cluster::clusters::{Clusters, WriteEligibility};
use crate::cluster::resources::Resources;
use crate::cluster::watched_resources::LAST_WRITES;
use crate::domain::Direction;
use crate::domain::decision::{Outcome, ReceivedVerdict};
use crate::domain::overview::ShootScaling;
use crate::domain::plan::{self, Planned};
use crate::domain::resource_step::ResourceStep;

/// The interval at which the indexes are checked, without a request.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The process ends long before.
const VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);

/// The name under which this process reports that a shoot is healthy.
const OBSERVER: &str = "--release-all";

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

/// Decides what is restored, and when that is done.
pub(crate) struct Releaser {
    clusters: Arc<Clusters>,
    resources: Arc<Resources>,
    config: Arc<ProberConfig>,
}

impl Releaser {
    pub(crate) const fn new(
        clusters: Arc<Clusters>,
        resources: Arc<Resources>,
        config: Arc<ProberConfig>,
    ) -> Self {
        Self {
            clusters,
            resources,
            config,
        }
    }

    fn references(&self) -> impl Iterator<Item = &ResourceRef> {
        let dependents = self.config.dependent_resource_infos.iter();
        dependents.map(|dependent| &dependent.reference)
    }

    /// The resources that are not listed, because the seed does not answer or its etcd was just restored.
    fn unlisted(&self) -> Vec<String> {
        let references = self.references();
        references
            .filter(|reference| !self.resources.is_listed(reference))
            .map(ToString::to_string)
            .collect()
    }

    /// Waits until everything is listed.
    pub(crate) async fn listed(&self) {
        let mut ticks = ticks();
        while !self.clusters.is_listed() || !self.unlisted().is_empty() {
            ticks.tick().await;
        }
    }

    /// From now on what is held down is restored, and nothing else is touched.
    pub(crate) fn restore_only(&self) {
        for reference in self.references() {
            self.resources.drop_from_configuration(reference);
        }
    }

    /// Lists the resources that are held down now.
    pub(crate) fn held(&self) -> HeldDown {
        let mut held = HeldDown::new();
        for reference in self.references() {
            for shoot in self.resources.held_down_in(reference) {
                held.entry(shoot).or_default().push(reference.clone());
            }
        }
        held
    }

    /// Plans the release.
    pub(crate) fn plan(&self) -> ReleaseReport {
        let held = self.held();
        let mut lines = Vec::new();
        for (shoot, resources) in &held {
            if let Some(why) = self.why_left_alone(shoot) {
                lines.push(ReleaseLine::on(shoot, "left as it is", why));
            } else if let WriteEligibility::Stopped(reason) = self.clusters.write_eligibility(shoot) {
                let what = "remove meltdown-protection-active and leave its replicas to others";
                let line = |reference| ReleaseLine::on(shoot, what, reason.to_string()).of(reference);
                lines.extend(resources.iter().map(line));
            } else {
                let dependents = self.resources.dependents(&self.config, shoot);
                for (level, planned) in plan::plan(Direction::Up, &dependents) {
                    lines.extend(planned.iter().filter_map(|planned| {
                        let line = ReleaseLine::on(shoot, what(planned)?, planned.why.clone());
                        let level = Some(level);
                        Some(ReleaseLine { level, ..line }.of(&planned.reference))
                    }));
                }
            }
        }
        let resources: usize = held.values().map(Vec::len).sum();
        let shoots = held.len();
        let ended = Ok(format!("{resources} resources are held down in {shoots} shoots"));
        ReleaseReport { lines, ended }
    }

    /// A verdict on every shoot that it is healthy.
    pub(crate) fn all_healthy(&self, work_queue: &Arc<WorkQueue>) -> Arc<VerdictTable> {
        let verdicts = Arc::new(VerdictTable::new(work_queue.clone()));
        let observer: Arc<str> = OBSERVER.into();
        let now = Instant::now();
        let healthy = ReceivedVerdict {
            outcome: Outcome::Healthy,
            observer: observer.clone(),
            observed: now,
            outcome_since: now,
            list_revision: 0,
            first_revision: 0,
            sent: now,
            valid_until: now + VALIDITY,
            message: "".into(),
        };
        verdicts.joined(&observer);
        let healthy = |shoot: Arc<str>| (shoot.to_string(), healthy.clone());
        verdicts.snapshot(&observer, self.clusters.names().into_iter().map(healthy));
        verdicts
    }

    /// Waits until the controller has restored what was held down before.
    pub(crate) async fn finish(
        &self,
        before: &HeldDown,
        states: &StateStore<String, ShootScaling>,
        deadline: Instant,
    ) -> ReleaseReport {
        // The watches may lag behind the last writes of the replicas that have stopped.
        let settled_at = Instant::now() + LAST_WRITES;
        let mut ticks = ticks();
        let (held, unlisted) = loop {
            ticks.tick().await;
            let (now, held, unlisted) = (Instant::now(), self.held(), self.unlisted());
            let can_change =
                !unlisted.is_empty() || held.keys().any(|shoot| self.why_left_alone(shoot).is_none());
            if now >= deadline || (!can_change && now >= settled_at) {
                break (held, unlisted);
            }
        };
        let ended = if !unlisted.is_empty() {
            Err(anyhow::anyhow!(
                "not known whether something is held down, because these are not listed: {}",
                unlisted.join(", ")
            ))
        } else if !held.is_empty() {
            Err(anyhow::anyhow!(
                "still held down:\n{}",
                self.why_held(&held, states)
            ))
        } else {
            Ok("nothing is held down".to_owned())
        };
        let lines = self.done(before, &held);
        ReleaseReport { lines, ended }
    }

    /// Returns the reason for which nothing at all is written to a shoot.
    fn why_left_alone(&self, shoot: &str) -> Option<String> {
        let eligibility = self.clusters.write_eligibility(shoot);
        if eligibility.is_released() {
            return None;
        }
        match eligibility {
            WriteEligibility::Allowed => None,
            WriteEligibility::Unlisted => Some("the Clusters of the seed are not listed yet".to_owned()),
            WriteEligibility::Absent => Some("its Cluster is gone".to_owned()),
            WriteEligibility::Stopped(reason) => Some(reason.to_string()),
        }
    }

    /// A line for each resource that is not held down any more.
    fn done(&self, before: &HeldDown, now: &HeldDown) -> Vec<ReleaseLine> {
        let mut lines = Vec::new();
        for (shoot, resources) in before {
            let done = match self.clusters.write_eligibility(shoot) {
                WriteEligibility::Allowed => "restored",
                WriteEligibility::Absent => "gone with its shoot",
                _ => "meltdown-protection-active removed, its replicas are left to others",
            };
            let still_held = now.get(shoot).map_or(&[][..], Vec::as_slice);
            let restored = resources
                .iter()
                .filter(|reference| !still_held.contains(reference));
            lines.extend(restored.map(|reference| ReleaseLine::on(shoot, done, "").of(reference)));
        }
        lines
    }

    /// A line for each resource that is still held down.
    fn why_held(&self, held: &HeldDown, states: &StateStore<String, ShootScaling>) -> String {
        let mut lines = String::new();
        for (shoot, resources) in held {
            let scaling = states.get(&shoot.to_string());
            for reference in resources {
                let progress = scaling
                    .iter()
                    .flat_map(|scaling| &scaling.status.resources)
                    .find(|progress| progress.reference == *reference);
                let why = self
                    .why_left_alone(shoot)
                    .or_else(|| Some(progress?.message.clone()))
                    .unwrap_or_else(|| "it was not looked at yet".to_owned());
                lines.push_str(&format!("{shoot}: {reference}: {why}\n"));
            }
        }
        lines
    }
}

impl ReleaseLine {
    fn on(shoot: &str, action: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            shoot: shoot.to_owned(),
            resource: None,
            level: None,
            action: action.into(),
            reason: reason.into(),
        }
    }

    fn of(self, reference: &ResourceRef) -> Self {
        Self {
            resource: Some(reference.to_string()),
            ..self
        }
    }
}

impl fmt::Display for ReleaseLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.shoot)?;
        if let Some(level) = self.level {
            write!(f, "level {level}: ")?;
        }
        if let Some(resource) = &self.resource {
            write!(f, "{resource}: ")?;
        }
        f.write_str(&self.action)?;
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

/// The planned action on a resource in words; none if it is not touched.
fn what(planned: &Planned) -> Option<String> {
    match (&planned.step, planned.target) {
        (ResourceStep::Write(_), Some(target)) => Some(format!("scale to {target}")),
        (ResourceStep::Write(_), None) => Some("remove meltdown-protection-active".to_owned()),
        (ResourceStep::Wait | ResourceStep::Read | ResourceStep::NotObserved, _) => Some("wait".to_owned()),
        _ => None,
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
