//! The flow of one shoot: which requests to make now, what to wait for, and until when.
//!
//! It is level-triggered: [`Flow::next`] derives all that matters from the observed state of the resources, so that a
//! crash between any two writes costs only time. A [`Flow`] remembers only times (when a level started, when a try
//! began, when the next one may), what is under way, and that it runs.
//!
//! The level that is worked on is the lowest in which a resource is not where the direction wants it, or in which a
//! write is not confirmed. A level therefore starts only when all before it have *reached* their targets (S3), also
//! after a crash and in the middle of a change of direction.
//!
//! Holding stops the writes and forgets nothing: probes that fail now and then, each for a moment, must not start the
//! initial delay anew every time. Only the contrary direction begins with nothing.

mod advance;
mod handover;
mod op;
mod show;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::prober::{ResourceRef, ScaleInfo};

use advance::{Advance, confirm, wait};
use handover::Handover;
use op::Operation;
pub use op::{Action, ActionKind, ActionOutcome};
use show::{idle, in_flight, progress, rest};

use super::Direction;
use super::next_step::{NextStep, PlannedStep, ResourceWrite, plan_step};
use super::observed::Dependent;
use super::status::{FlowState, FlowStatus, Progress, Step};

/// The memory of a flow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    // The direction of all that is remembered: the last one that was not to hold.
    course: Option<Direction>,
    // Since when it is held on its course: no try times out in that time, because nothing is done.
    held: Option<Instant>,
    // True if something was done since the direction last changed that has not reached its target: the flow then
    // waits for it, whereas a shoot where nothing was done is settled even if a resource happens to be unready.
    running: bool,
    started: BTreeMap<i32, Instant>,
    ops: BTreeMap<ResourceRef, Operation>,
    handover: Handover,
}

/// The next steps of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// Requests that may be made. They stand until the next call of [`Flow::next`]. The caller reports each with
    /// [`Flow::start`] and [`Flow::finish`].
    pub actions: Vec<Action>,
    /// When to call [`Flow::next`] again although nothing has happened.
    pub wake: Option<Instant>,
    /// The status to publish.
    pub(crate) status: FlowStatus,
    /// Resources that have just failed their level, and why: for the log and a Kubernetes Event.
    pub alerts: Vec<(ResourceRef, String)>,
    /// True if the flow has just reached its last target.
    pub finished: bool,
}

/// A resource with the step that follows from its observed state.
type PlannedDependent<'a> = (&'a Dependent<'a>, PlannedStep);

impl Steps {
    const fn showing(state: FlowState, level: Option<i32>, resources: Vec<Progress>) -> Self {
        Self {
            actions: Vec::new(),
            wake: None,
            status: FlowStatus {
                state,
                level,
                resources,
                retry_at: None,
            },
            alerts: Vec::new(),
            finished: false,
        }
    }
}

impl Flow {
    /// Notes that somebody else may have acted on the shoot until now: what was learnt before no longer counts. A new
    /// flow knows nothing anyway.
    pub fn take_over(&mut self) {
        let under_way = self.ops.iter().filter(|(_, op)| op.sent.is_some());
        self.handover = Handover::begins(under_way.map(|(reference, _)| reference.clone()));
        if self.held.is_some() {
            // It may have been turned round and back meanwhile.
            self.course = None;
        }
    }

    /// Notes that a request of [`Steps::actions`] begins. Returns how long it may take.
    pub fn start(&mut self, now: Instant, action: &Action) -> Duration {
        let op = self.ops.entry(action.reference.clone()).or_default();
        op.start(now, action)
    }

    /// Notes the outcome of a request. One that this flow has not started means nothing to it.
    pub fn finish(&mut self, now: Instant, action: &Action, outcome: ActionOutcome) {
        let stale = self.course != Some(action.direction);
        if let Some(op) = self.ops.get_mut(&action.reference)
            && op.sent.as_ref() == Some(action)
        {
            self.handover.ended(&action.reference, &outcome);
            op.finish(now, outcome, stale);
        }
    }

    /// Derives the next steps from the observed state. `dependents` are all configured resources, in configuration
    /// order.
    pub fn next(
        &mut self,
        now: Instant,
        direction: Option<Direction>,
        dependents: &[Dependent<'_>],
    ) -> Steps {
        if self.direction() != direction {
            self.change_direction(now, direction);
        }
        let is_configured =
            |reference: &ResourceRef| dependents.iter().any(|d| d.config.reference == *reference);
        self.ops
            .retain(|reference, op| op.sent.is_some() || is_configured(reference));
        let Some(direction) = direction else {
            return self.hold(dependents);
        };
        let planned = self.plan(direction, dependents);
        let was_running = self.running;
        self.running = self.runs_on(&planned);
        let current = planned
            .iter()
            .filter(|(dependent, planned)| self.is_busy(dependent) || self.keeps(&planned.next_step))
            .map(|(dependent, _)| direction.info(dependent.config).level)
            .min();
        match current {
            Some(current) => self.run(now, direction, current, &planned),
            None if direction == Direction::Release => self.hold(dependents),
            None => self.settle(direction, &planned, was_running),
        }
    }

    fn plan<'a>(
        &mut self,
        direction: Direction,
        dependents: &'a [Dependent<'a>],
    ) -> Vec<PlannedDependent<'a>> {
        let mut planned: Vec<_> = dependents
            .iter()
            .map(|dependent| (dependent, plan_step(direction, dependent)))
            .collect();
        if direction != Direction::Release {
            self.handover.require_confirmed_reads(direction, &mut planned);
        }
        for (dependent, planned) in &planned {
            self.observe(dependent, Some(&planned.next_step));
        }
        planned
    }

    fn observe(&mut self, dependent: &Dependent<'_>, next_step: Option<&NextStep>) {
        if let Some(op) = self.ops.get_mut(&dependent.config.reference) {
            op.observe(dependent.observed.version(), next_step);
        }
    }

    /// See [`Flow::running`].
    fn runs_on(&self, planned: &[PlannedDependent<'_>]) -> bool {
        // What is protected and not where it should be was scaled by this watchdog, perhaps before a crash.
        let is_unfinished = |dependent: &Dependent<'_>, next_step: &NextStep| {
            *next_step == NextStep::Wait && dependent.observed.seen().is_some_and(|seen| seen.protected)
        };
        planned.iter().any(|(dependent, planned)| {
            let next_step = &planned.next_step;
            next_step.is_work() || is_unfinished(dependent, next_step) || self.is_busy(dependent)
        }) || (self.running && planned.iter().any(|(_, planned)| !planned.next_step.is_done()))
    }

    fn direction(&self) -> Option<Direction> {
        self.course.filter(|_| self.held.is_none())
    }

    fn change_direction(&mut self, now: Instant, direction: Option<Direction>) {
        let Some(direction) = direction else {
            self.held = Some(now);
            return;
        };
        let held = self.held.take();
        if self.course == Some(direction) {
            let since = held.unwrap_or(now);
            let ops = self.ops.values_mut();
            ops.for_each(|op| op.resume(now.saturating_duration_since(since)));
            return;
        }
        let ops = std::mem::take(&mut self.ops).into_iter();
        *self = Self {
            course: Some(direction),
            handover: std::mem::take(&mut self.handover),
            // What is on its way to a resource does not turn round with us.
            ops: ops
                .filter(|(_, op)| op.is_busy())
                .map(|(reference, op)| (reference, op.carried_over()))
                .collect(),
            ..Self::default()
        };
    }

    fn is_busy(&self, dependent: &Dependent<'_>) -> bool {
        self.ops
            .get(&dependent.config.reference)
            .is_some_and(Operation::is_busy)
    }

    /// Returns true if a resource with this next step keeps its level open.
    fn keeps(&self, next_step: &NextStep) -> bool {
        match next_step {
            NextStep::Wait => self.running,
            next_step => !next_step.is_done(),
        }
    }

    fn hold(&mut self, dependents: &[Dependent<'_>]) -> Steps {
        for dependent in dependents {
            let next_step = self.course.map(|course| plan_step(course, dependent).next_step);
            self.observe(dependent, next_step.as_ref());
        }
        let resources = dependents.iter().map(|dependent| {
            let op = self.ops.get(&dependent.config.reference);
            let (step, message) = idle(dependent, op);
            progress(dependent, None, step, message, None, op)
        });
        Steps::showing(FlowState::Holding, None, resources.collect())
    }

    fn settle(&mut self, direction: Direction, planned: &[PlannedDependent<'_>], was_running: bool) -> Steps {
        self.started.clear();
        self.ops.clear();
        let resources = planned.iter().map(|(dependent, planned)| {
            let level = direction.info(dependent.config).level;
            let (step, why) = (rest(&planned.next_step), planned.why.clone());
            progress(dependent, Some(level), step, why, planned.target, None)
        });
        Steps {
            finished: was_running,
            ..Steps::showing(FlowState::Settled, None, resources.collect())
        }
    }

    fn run(
        &mut self,
        now: Instant,
        direction: Direction,
        current: i32,
        planned: &[PlannedDependent<'_>],
    ) -> Steps {
        let mut steps = Steps::showing(
            FlowState::Running,
            Some(current),
            Vec::with_capacity(planned.len()),
        );
        for (dependent, planned) in planned {
            let reference = &dependent.config.reference;
            let level = direction.info(dependent.config).level;
            let busy = self.is_busy(dependent);
            let op = self.ops.get(reference);
            let (step, message) = if let Some(shown) = op.and_then(|op| in_flight(op, &planned.why)) {
                shown
            } else if level == current && (busy || self.keeps(&planned.next_step)) {
                let advance = self.advance(now, direction, dependent, planned);
                let action = advance.action;
                let action = action.and_then(|kind| action_on(direction, dependent, kind));
                steps.actions.extend(action);
                steps.wake = earliest(steps.wake, advance.wake);
                if advance.step == Step::Failed {
                    steps.status.state = FlowState::Failed;
                    steps.status.retry_at = earliest(steps.status.retry_at, advance.wake);
                }
                (advance.step, advance.message)
            } else if level > current && !planned.next_step.is_done() {
                let message = format!("level {current} comes first; {}", planned.why);
                (Step::Pending, message)
            } else {
                if !busy {
                    self.ops.remove(reference);
                }
                (rest(&planned.next_step), planned.why.clone())
            };
            if let Some(alert) = self.ops.get_mut(reference).and_then(|op| op.alert.take()) {
                steps.alerts.push((reference.clone(), alert));
            }
            let op = self.ops.get(reference);
            let shown = progress(dependent, Some(level), step, message, planned.target, op);
            steps.status.resources.push(shown);
        }
        steps
    }

    /// Moves one resource of the current level on.
    fn advance(
        &mut self,
        now: Instant,
        direction: Direction,
        dependent: &Dependent<'_>,
        planned: &PlannedStep,
    ) -> Advance {
        let info = direction.info(dependent.config);
        let op = self.ops.entry(dependent.config.reference.clone()).or_default();
        if planned.next_step == NextStep::Repair {
            if !std::mem::replace(&mut op.broken_reported, true) {
                op.alert = Some(planned.why.clone());
            }
            return Advance::to(Step::Failed, planned.why.clone(), None);
        }
        op.broken_reported = false;
        if planned.next_step != NextStep::Wait {
            op.end_wait(planned.next_step == NextStep::Write(ResourceWrite::CleanUp));
        }
        if planned.next_step == NextStep::NotObserved {
            // That nothing is known of a resource is no failure of it.
            op.since = None;
            return Advance::to(Step::Waiting, planned.why.clone(), None);
        }
        let times_out = op.since.map(|since| since + info.timeout);
        if times_out.is_some_and(|at| now >= at) {
            let timeout = watchdog_api::duration::format(info.timeout);
            op.fail(now, format!("not done within {timeout}: {}", planned.why), None);
        }
        if let Some((step, until)) = op.paused(now) {
            return Advance::to(step, op.error.clone(), Some(until));
        }
        if let Some(unconfirmed) = &op.unconfirmed {
            return confirm(now, unconfirmed.read_at, times_out);
        }
        match &planned.next_step {
            NextStep::Write(write) => {
                let due = *self.started.entry(info.level).or_insert(now) + initial_delay(direction, info);
                if now < due {
                    // A read that had to come first is no part of the operation that the timeout bounds.
                    op.since = None;
                    let delay = watchdog_api::duration::format(info.initial_delay);
                    let message = format!("{}; the initial delay of {delay} runs", planned.why);
                    return Advance::to(Step::Delayed, message, Some(due));
                }
                let message = format!("{}; the write waits for its turn", planned.why);
                Advance::to(Step::Writing, message, times_out).by(ActionKind::Write(write.clone()))
            }
            NextStep::Read => Advance::to(Step::Waiting, planned.why.clone(), times_out).by(ActionKind::Read),
            _ => wait(now, op, dependent, planned, info.timeout),
        }
    }
}

const fn initial_delay(direction: Direction, info: &ScaleInfo) -> Duration {
    match direction {
        Direction::Down | Direction::Up => info.initial_delay,
        Direction::Release => Duration::ZERO,
    }
}

fn action_on(direction: Direction, dependent: &Dependent<'_>, kind: ActionKind) -> Option<Action> {
    // A read can be about an object that is gone; it has no version then and no write follows from it.
    let against = dependent.observed.version().cloned();
    (against.is_some() || kind == ActionKind::Read).then(|| Action {
        reference: dependent.config.reference.clone(),
        direction,
        against: against.unwrap_or_else(|| "".into()),
        kind,
        timeout: direction.info(dependent.config).timeout,
    })
}

/// The earlier of two times at which something must be done, if any.
pub(crate) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests;
