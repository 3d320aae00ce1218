//! The state that the controller keeps for one shoot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;
use watchdog_api::policy::Mode;
use watchdog_api::prober::ResourceRef;

use super::inputs::OwnershipEpoch;
use crate::domain::decision::{Decision, HoldReason};
use crate::domain::flow::{Action, ActionKind, ActionOutcome, Flow, Steps};
use crate::domain::observed::{Dependent, Observed, ResourceState};
use crate::domain::other_writes::{OtherWrite, OtherWrites};
use crate::domain::overlay::{Overlay, WriteDisposition};
use crate::domain::{Direction, direction_name};
use crate::metrics::{FIRST_WRITE, REACHED};

/// The longest delay of a shoot's timer.
const LONGEST_TIMER: Duration = Duration::from_secs(3600);

pub(super) struct ShootRecord {
    /// Unique in this process: a shoot that goes and comes back, or whose mode changes, gets a new generation and
    /// starts afresh.
    pub(super) generation: u64,
    pub(super) mode: Mode,
    flow: Flow,
    /// Writes that mode observe has kept back.
    overlay: Overlay,
    others: OtherWrites,
    epoch: OwnershipEpoch,
    direction: Option<Direction>,
    held: Option<HoldReason>,
    /// When the direction last changed.
    pub(super) since: Instant,
    // When the verdict was sent that made the direction what it is, until all that follows from it is measured.
    verdict: Option<Instant>,
    first_write: bool,
    /// Writes without an answer and their reasons, for the history and the Kubernetes Events: they are reported once
    /// the resource shows that they were applied. [`Flow`] on its own waits for the effect of every write, answered or
    /// not, before it decides again.
    unanswered: BTreeMap<ResourceRef, (Action, String)>,
    /// Warnings that were published, by resource.
    warnings: BTreeMap<ResourceRef, String>,
    /// Warnings about the annotations of the Shoot that were published.
    pub(super) malformed_policy: Vec<String>,
    /// The time of the next reconciliation.
    pub(super) timer: Option<(Key, Instant)>,
}

/// The result of one reconciliation.
pub(super) struct Reconciled {
    pub(super) steps: Steps,
    /// Writes without an answer that are now seen to have been applied, and why they were made.
    pub(super) applied: Vec<(Action, String)>,
    /// Warnings to publish, by resource.
    pub(super) warnings: Vec<(ResourceRef, String)>,
    /// Resources of a shoot in mode observe that somebody else has scaled.
    pub(super) others: Vec<OtherWrite>,
}

impl ShootRecord {
    pub(super) fn new(now: Instant, generation: u64, mode: Mode) -> Self {
        Self {
            generation,
            mode,
            flow: Flow::default(),
            overlay: Overlay::default(),
            others: OtherWrites::default(),
            epoch: OwnershipEpoch::default(),
            direction: None,
            held: None,
            since: now,
            verdict: None,
            first_write: false,
            unanswered: BTreeMap::new(),
            warnings: BTreeMap::new(),
            malformed_policy: Vec::new(),
            timer: None,
        }
    }

    /// Notes the current ownership epoch. A new epoch makes the flow distrust what it learnt before.
    pub(super) fn keep_epoch(&mut self, epoch: OwnershipEpoch) {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.flow.take_over();
        }
    }

    pub(super) fn reconcile(
        &mut self,
        now: Instant,
        decision: &Decision,
        dependents: &[Dependent<'_>],
    ) -> Reconciled {
        self.change_direction(now, decision);
        let applied = self.find_applied(now, dependents);
        let steps = if self.overlay.is_empty() {
            self.flow.next(now, decision.direction, dependents)
        } else {
            self.next_over_overlay(now, decision, dependents)
        };
        if steps.finished {
            self.record_reached(now);
        }
        Reconciled {
            steps,
            applied,
            warnings: self.new_warnings(dependents),
            others: match self.mode {
                Mode::Observe => self.others.find(dependents),
                Mode::Protect | Mode::Off => Vec::new(),
            },
        }
    }

    /// The next steps of a shoot with kept-back writes. The status says which resources they concern, and who really is
    /// held down.
    fn next_over_overlay(
        &mut self,
        now: Instant,
        decision: &Decision,
        dependents: &[Dependent<'_>],
    ) -> Steps {
        let shown = self.overlay.over(dependents);
        let mut steps = self.flow.next(now, decision.direction, &shown);
        for (progress, dependent) in steps.status.resources.iter_mut().zip(dependents) {
            progress.simulated = self.overlay.covers(&progress.reference);
            let seen = dependent.observed.seen();
            progress.protected = seen.is_some_and(|seen| seen.protected);
            progress.protected_by_coordinator = seen.is_some_and(ResourceState::is_protected_by_coordinator);
        }
        steps
    }

    /// The disposition of a write on a resource in this state.
    pub(super) fn disposition(&self, action: &Action, observed: &Observed) -> WriteDisposition {
        WriteDisposition::of(self.mode, action, observed, &self.overlay)
    }

    /// A write was kept back on a resource that is now in this state.
    pub(super) fn keep_back(&mut self, action: &Action, observed: &Observed) -> ActionOutcome {
        if self.overlay.keep_back(action, observed) {
            ActionOutcome::KeptBack
        } else {
            ActionOutcome::Conflict
        }
    }

    fn new_warnings(&mut self, dependents: &[Dependent<'_>]) -> Vec<(ResourceRef, String)> {
        let of = |dependent: &Dependent<'_>| {
            Some((
                dependent.config.reference.clone(),
                dependent.observed.seen()?.warning()?,
            ))
        };
        let now: BTreeMap<_, _> = dependents.iter().filter_map(of).collect();
        let before = std::mem::replace(&mut self.warnings, now);
        let new = |(reference, warning): &(&_, &_)| before.get(*reference) != Some(*warning);
        let new = self.warnings.iter().filter(new);
        new.map(|(reference, warning)| (reference.clone(), warning.clone()))
            .collect()
    }

    /// Notes that a request begins. Returns how long it may take.
    pub(super) fn start(&mut self, now: Instant, action: &Action) -> Duration {
        if matches!(action.kind, ActionKind::Write(_)) {
            self.unanswered.remove(&action.reference);
        }
        self.flow.start(now, action)
    }

    /// A request has ended that was made for this reason.
    pub(super) fn ended(&mut self, now: Instant, action: &Action, reason: String, outcome: ActionOutcome) {
        if matches!(action.kind, ActionKind::Write(_)) {
            match outcome {
                ActionOutcome::Done | ActionOutcome::KeptBack => self.record_write(now, action),
                ActionOutcome::Unknown { .. } => {
                    self.unanswered
                        .insert(action.reference.clone(), (action.clone(), reason));
                }
                _ => {}
            }
        }
        self.flow.finish(now, action, outcome);
    }

    /// Finds the writes without an answer that were applied. Their precondition is the version that they were decided
    /// on, so the next version shows it.
    fn find_applied(&mut self, now: Instant, dependents: &[Dependent<'_>]) -> Vec<(Action, String)> {
        let mut found = Vec::new();
        for dependent in dependents {
            let reference = &dependent.config.reference;
            let (Some((action, _)), Some(seen)) = (self.unanswered.get(reference), dependent.observed.seen())
            else {
                continue;
            };
            let ActionKind::Write(write) = &action.kind else {
                continue;
            };
            if seen.resource_version == action.against {
                continue;
            }
            let Some(applied) = write.shows_in(seen) else {
                continue;
            };
            if let Some((action, reason)) = self.unanswered.remove(reference)
                && applied
            {
                self.record_write(now, &action);
                found.push((action, reason));
            }
        }
        found
    }

    fn record_write(&mut self, now: Instant, action: &Action) {
        let first = self.direction == Some(action.direction) && !self.first_write;
        self.first_write |= first;
        if let Some(sent) = self.verdict.filter(|_| first) {
            FIRST_WRITE.record(action.direction, now.saturating_duration_since(sent));
        }
    }

    /// Sets the time of the next reconciliation if nothing else triggers one before.
    pub(super) fn set_timer(
        &mut self,
        timers: &mut DelayQueue<Arc<str>>,
        shoot: &Arc<str>,
        at: Option<Instant>,
    ) {
        // A configuration may ask for delays of years, which the timer queue does not take.
        let at = at.map(|at| at.min(Instant::now() + LONGEST_TIMER));
        match (&mut self.timer, at) {
            (Some((_, set)), Some(at)) if *set == at => {}
            (Some((key, set)), Some(at)) => {
                timers.reset_at(key, at);
                *set = at;
            }
            (None, Some(at)) => self.timer = Some((timers.insert_at(shoot.clone(), at), at)),
            (Some((key, _)), None) => {
                timers.try_remove(key);
                self.timer = None;
            }
            (None, None) => {}
        }
    }

    fn change_direction(&mut self, now: Instant, decision: &Decision) {
        let held = std::mem::replace(&mut self.held, decision.held);
        if held != decision.held && decision.held.is_some_and(HoldReason::is_strange) {
            let (reason, why) = (&decision.reason, decision.held.map(HoldReason::as_str));
            tracing::warn!(
                why,
                reason,
                "a shoot is held because its lease-probe replicas disagree or repeat an outdated verdict"
            );
        }
        if self.direction == decision.direction {
            return;
        }
        let (from, to) = (direction_name(self.direction), direction_name(decision.direction));
        let reason = &decision.reason;
        // After a start every healthy shoot turns from hold to up: that is no news.
        if [self.direction, decision.direction].contains(&Some(Direction::Down)) {
            tracing::info!(from, to, reason, "the direction of a shoot has changed");
        } else {
            tracing::debug!(from, to, reason, "the direction of a shoot has changed");
        }
        self.direction = decision.direction;
        self.since = now;
        self.verdict = decision.decided_by;
        self.first_write = false;
    }

    fn record_reached(&mut self, now: Instant) {
        let Some(direction) = self.direction else {
            return;
        };
        // A flow that only waited for something to become ready has not scaled; and what was kept back takes no time.
        let scaled = self.first_write && self.mode == Mode::Protect;
        if let Some(sent) = self.verdict.take().filter(|_| scaled) {
            let took = now.saturating_duration_since(sent);
            REACHED.record(direction, took);
            let took = watchdog_api::duration::format(took);
            tracing::info!(
                direction = direction.as_str(),
                took,
                "all resources have reached their targets"
            );
        }
    }
}
