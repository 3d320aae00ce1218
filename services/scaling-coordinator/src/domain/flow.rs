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

mod handover;
mod op;
mod show;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::prober::ResourceRef;

use handover::Handover;
pub use op::{Action, MAX_TRIES, Outcome, What};
use op::{Operation, Pause, READ_PAUSE};
use show::{idle, progress, rest, under_way};

use super::Direction;
use super::next_step::{NextStep, PlannedStep, plan_step};
use super::observed::Dependent;
use super::status::{Progress, State, Status, Step};

/// The memory of a flow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    direction: Option<Direction>,
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
    /// Requests that may be made now. The caller makes those for which it has room, calls [`Flow::start`] for each of
    /// them, and then [`Flow::next`] again.
    pub actions: Vec<Action>,
    /// When to call [`Flow::next`] again although nothing has happened.
    pub wake: Option<Instant>,
    /// The status to publish.
    pub status: Status,
    /// Resources that have just failed their level, and why: for the log and a Kubernetes Event.
    pub alerts: Vec<(ResourceRef, String)>,
    /// True if the flow has just reached its last target.
    pub finished: bool,
}

/// The next step of one resource in the current level.
struct Advance {
    step: Step,
    message: String,
    wake: Option<Instant>,
    action: Option<What>,
}

impl Steps {
    const fn showing(state: State, level: Option<i32>, resources: Vec<Progress>) -> Self {
        Self {
            actions: Vec::new(),
            wake: None,
            status: Status {
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
    /// Returns true if a request for this resource is under way.
    #[must_use]
    pub fn is_under_way(&self, reference: &ResourceRef) -> bool {
        self.ops.get(reference).is_some_and(|op| op.sent.is_some())
    }

    /// Notes that somebody else may have acted on the shoot until now: what was learnt before counts no more. A new
    /// flow knows nothing anyway.
    pub fn take_over(&mut self) {
        let under_way = self.ops.iter().filter(|(_, op)| op.sent.is_some());
        self.handover = Handover::begins(under_way.map(|(reference, _)| reference.clone()));
        if self.direction.is_none() {
            // It may have been turned round and back meanwhile.
            self.course = None;
        }
    }

    /// Notes that an action of [`Steps::actions`] is made.
    pub fn start(&mut self, now: Instant, action: &Action) {
        let op = self.ops.entry(action.reference.clone()).or_default();
        op.sent = Some(action.clone());
        op.since.get_or_insert(now);
    }

    /// Notes what became of an action. One that this flow has not started tells it nothing.
    pub fn finish(&mut self, now: Instant, action: &Action, outcome: Outcome) {
        let stale = self.course != Some(action.direction);
        if let Some(op) = self.ops.get_mut(&action.reference)
            && op.sent.as_ref() == Some(action)
        {
            self.handover.ended(&action.reference, &outcome);
            op.finish(now, outcome, stale);
        }
    }

    /// Tells what follows from what is seen now. `dependents` are all configured resources, in configuration order.
    pub fn next(
        &mut self,
        now: Instant,
        direction: Option<Direction>,
        dependents: &[Dependent<'_>],
    ) -> Steps {
        if self.direction != direction {
            self.change_direction(now, direction);
        }
        self.ops.retain(|reference, op| {
            op.sent.is_some()
                || dependents
                    .iter()
                    .any(|dependent| dependent.config.reference == *reference)
        });
        let Some(direction) = direction else {
            return self.hold(dependents);
        };
        let mut planned_steps: Vec<_> = dependents
            .iter()
            .map(|dependent| (dependent, plan_step(direction, dependent)))
            .collect();
        if direction != Direction::Release {
            self.handover
                .require_confirmed_reads(direction, &mut planned_steps);
        }
        for (dependent, planned) in &planned_steps {
            if let Some(op) = self.ops.get_mut(&dependent.config.reference) {
                op.observe(
                    dependent.observed.seen().map(|seen| &seen.resource_version),
                    Some(&planned.next_step),
                );
            }
        }
        let was_running = self.running;
        // What is protected and not where it should be was scaled by this watchdog, perhaps before a crash.
        let unfinished = |dependent: &Dependent<'_>, next_step: &NextStep| {
            *next_step == NextStep::Wait && dependent.observed.seen().is_some_and(|seen| seen.protected)
        };
        self.running = planned_steps.iter().any(|(dependent, a)| {
            a.next_step.is_work() || unfinished(dependent, &a.next_step) || self.is_busy(dependent)
        }) || (was_running && planned_steps.iter().any(|(_, a)| !a.next_step.is_done()));
        let current = planned_steps
            .iter()
            .filter(|(dependent, a)| self.is_busy(dependent) || self.keeps(&a.next_step))
            .map(|(dependent, _)| direction.info(dependent.config).level)
            .min();
        match current {
            Some(current) => self.run(now, direction, current, &planned_steps),
            None if direction == Direction::Release => self.hold(dependents),
            None => self.settle(direction, &planned_steps, was_running),
        }
    }

    fn change_direction(&mut self, now: Instant, direction: Option<Direction>) {
        self.direction = direction;
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
            direction: Some(direction),
            course: Some(direction),
            held: None,
            running: false,
            started: BTreeMap::new(),
            handover: std::mem::take(&mut self.handover),
            // What is on its way to a resource does not turn round with us.
            ops: ops
                .filter(|(_, op)| op.is_busy())
                .map(|(reference, op)| (reference, op.carried_over()))
                .collect(),
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
            if let Some(op) = self.ops.get_mut(&dependent.config.reference) {
                let next_step = self.course.map(|course| plan_step(course, dependent).next_step);
                op.observe(
                    dependent.observed.seen().map(|seen| &seen.resource_version),
                    next_step.as_ref(),
                );
            }
        }
        let resources = dependents.iter().map(|dependent| {
            let op = self.ops.get(&dependent.config.reference);
            let (step, message) = idle(dependent, op);
            progress(dependent, 0, step, message, None, op)
        });
        Steps::showing(State::Holding, None, resources.collect())
    }

    fn settle(
        &mut self,
        direction: Direction,
        planned_steps: &[(&Dependent<'_>, PlannedStep)],
        was_running: bool,
    ) -> Steps {
        self.started.clear();
        self.ops.clear();
        let resources = planned_steps.iter().map(|(dependent, planned)| {
            let level = direction.info(dependent.config).level;
            progress(
                dependent,
                level,
                rest(&planned.next_step),
                planned.why.clone(),
                planned.target,
                None,
            )
        });
        let shown = Steps::showing(State::Settled, None, resources.collect());
        Steps {
            finished: was_running,
            ..shown
        }
    }

    fn run(
        &mut self,
        now: Instant,
        direction: Direction,
        current: i32,
        planned_steps: &[(&Dependent<'_>, PlannedStep)],
    ) -> Steps {
        let mut steps = Steps::showing(
            State::Running,
            Some(current),
            Vec::with_capacity(planned_steps.len()),
        );
        for (dependent, planned) in planned_steps {
            let reference = &dependent.config.reference;
            let level = direction.info(dependent.config).level;
            let busy = self.is_busy(dependent);
            let sent = self.ops.get(reference).and_then(|op| op.sent.as_ref());
            let waits = self.ops.get(reference).is_some_and(|op| op.wait.is_some());
            let (step, message) = if let Some(sent) = sent {
                if waits {
                    (Step::Waiting, planned.why.clone())
                } else {
                    (Step::Writing, under_way(&sent.what))
                }
            } else if level == current && (busy || self.keeps(&planned.next_step)) {
                let advance = self.advance(now, direction, dependent, planned);
                if let (Some(what), Some(op)) = (advance.action, self.ops.get(reference)) {
                    steps.actions.extend(action(now, direction, dependent, op, what));
                }
                steps.wake = earliest(steps.wake, advance.wake);
                if advance.step == Step::Failed {
                    steps.status.state = State::Failed;
                    steps.status.retry_at = earliest(steps.status.retry_at, advance.wake);
                }
                (advance.step, advance.message)
            } else if level > current && !planned.next_step.is_done() {
                (
                    Step::Pending,
                    format!("level {current} comes first; {}", planned.why),
                )
            } else {
                if !busy {
                    self.ops.remove(reference);
                }
                (rest(&planned.next_step), planned.why.clone())
            };
            if let Some(op) = self.ops.get_mut(reference)
                && let Some(alert) = op.alert.take()
            {
                steps.alerts.push((reference.clone(), alert));
            }
            let op = self.ops.get(reference);
            steps
                .status
                .resources
                .push(progress(dependent, level, step, message, planned.target, op));
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
        let advance = |step, message, wake| Advance {
            step,
            message,
            wake,
            action: None,
        };
        if planned.next_step.is_broken() {
            if !std::mem::replace(&mut op.told_broken, true) {
                op.alert = Some(planned.why.clone());
            }
            return advance(Step::Failed, planned.why.clone(), None);
        }
        op.told_broken = false;
        if planned.next_step != NextStep::Wait {
            op.wait = None;
        }
        if planned.next_step == NextStep::NotObserved {
            // That nothing is known of a resource is no failure of it.
            op.since = None;
            return advance(Step::Waiting, planned.why.clone(), None);
        }
        let times_out = op.since.map(|since| since + info.timeout);
        if times_out.is_some_and(|at| now >= at) {
            let timeout = watchdog_api::duration::format(info.timeout);
            op.fail(now, format!("not done within {timeout}: {}", planned.why), None);
        }
        match op.paused(now) {
            Some(Pause::BackingOff(until)) => {
                return advance(Step::BackingOff, op.error.clone(), Some(until));
            }
            Some(Pause::Failed(until)) => return advance(Step::Failed, op.error.clone(), Some(until)),
            None => {}
        }
        if let Some(unconfirmed) = &op.unconfirmed {
            if now < unconfirmed.read_at {
                let message = "it was written; what came of it is not seen yet".to_owned();
                return advance(
                    Step::Waiting,
                    message,
                    earliest(Some(unconfirmed.read_at), times_out),
                );
            }
            let message = "it was written; a read must show whether the write was applied".to_owned();
            return Advance {
                action: Some(What::Read),
                ..advance(Step::Waiting, message, times_out)
            };
        }
        match &planned.next_step {
            NextStep::Write(write) => {
                let initial_delay = match direction {
                    Direction::Down | Direction::Up => info.initial_delay,
                    Direction::Release => Duration::ZERO,
                };
                let due = *self.started.entry(info.level).or_insert(now) + initial_delay;
                if now < due {
                    // A read that had to come first is no part of the operation that the timeout bounds.
                    op.since = None;
                    let delay = watchdog_api::duration::format(info.initial_delay);
                    let message = format!("{}; the initial delay of {delay} runs", planned.why);
                    return advance(Step::Delayed, message, Some(due));
                }
                let what = What::Write(write.clone());
                let message = format!("{}; the write waits for its turn", planned.why);
                Advance {
                    action: Some(what),
                    ..advance(Step::Writing, message, times_out)
                }
            }
            NextStep::Read => Advance {
                action: Some(What::Read),
                ..advance(Step::Waiting, planned.why.clone(), times_out)
            },
            _ => {
                let times_out = *op.since.get_or_insert(now) + info.timeout;
                let version = dependent.observed.seen().map(|seen| &seen.resource_version);
                let read_at = version.map(|version| op.read_at(now, version));
                let due = read_at.is_some_and(|at| now >= at);
                let wake = earliest(read_at.filter(|_| !due), Some(times_out));
                Advance {
                    action: due.then_some(What::Read),
                    ..advance(Step::Waiting, planned.why.clone(), wake)
                }
            }
        }
    }
}

fn action(
    now: Instant,
    direction: Direction,
    dependent: &Dependent<'_>,
    op: &Operation,
    what: What,
) -> Option<Action> {
    let timeout = direction.info(dependent.config).timeout;
    let left = op
        .since
        .map_or(timeout, |since| (since + timeout).saturating_duration_since(now));
    // The watch may bring meanwhile what a slow read is asked for.
    let left = if op.wait.is_some() {
        left.min(READ_PAUSE)
    } else {
        left
    };
    // A read can be about an object that is gone; it has no version then and no write follows from it.
    let against = dependent
        .observed
        .seen()
        .map(|seen| seen.resource_version.clone());
    (against.is_some() || what == What::Read).then(|| Action {
        reference: dependent.config.reference.clone(),
        direction,
        against: against.unwrap_or_else(|| "".into()),
        what,
        within: left,
    })
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tries_tests;
#[cfg(test)]
mod world_tests;
