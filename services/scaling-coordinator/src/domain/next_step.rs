//! Derives the next step of a shoot: which requests to make, what to wait for, and until when.
//!
//! [`next_step`] derives this from the observed state of the resources alone, so a crash between any two writes, an
//! answer that is lost, a conflict and a new leader are the same case: it is called again. [`FlowHints`] only carry the
//! times of delays and tries, and what was reported.
//!
//! The current level is the lowest one with a resource that has not reached its target. A write in it requires that all
//! lower levels have *reached* theirs, as a read right before the write shows, not an earlier watch (S3). If a resource
//! of a lower level was not [read](Dependent::read), the step is to read it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::policy::Mode;
use watchdog_api::prober::{ResourceRef, ScaleInfo};
use watchdog_api::workload::RecordedReplicas;

use super::Direction;
use super::attempts::{Attempts, FlowHints, read_pause};
use super::observed::{Dependent, Observed, ObservedResource};
use super::request::Request;
use super::resource_step::{PlannedStep, ResourceStep, ResourceWrite, plan_step};
use super::status::{FlowState, FlowStatus, Progress, ResourceState};

/// The next step of a shoot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NextStep {
    /// Requests to make now, together.
    pub requests: Vec<Request>,
    /// True if a write comes as soon as the requests have read what it rests on.
    pub prepares_write: bool,
    /// The writes that mode observe keeps back.
    pub kept_back: Vec<Request>,
    /// When to derive again even if nothing happens.
    pub wake: Option<Instant>,
    /// The status to publish.
    pub(crate) status: FlowStatus,
    /// New defects: for the log and a Kubernetes Event.
    pub alerts: Vec<Alert>,
}

/// A defect of a resource that an operator must know about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// The resource.
    pub reference: ResourceRef,
    /// In which direction.
    pub direction: Direction,
    /// Why.
    pub why: String,
    /// True if the resource has failed its level; false if the level goes on without it.
    pub failed: bool,
}

impl NextStep {
    fn showing(state: FlowState, level: Option<i32>, resources: Vec<Progress>) -> Self {
        let status = FlowStatus {
            state,
            level,
            resources,
            retry_at: None,
        };
        Self {
            status,
            ..Self::default()
        }
    }

    fn wake_at(&mut self, at: Option<Instant>) {
        self.wake = earliest(self.wake, at);
    }

    /// The direction in which requests must be made now, if any.
    #[must_use]
    pub fn work(&self) -> Option<Direction> {
        self.requests.first().map(|request| request.direction)
    }
}

/// A resource with the step that follows from its observed state.
type PlannedDependent<'a> = (&'a Dependent, PlannedStep);

/// Derives what a shoot needs now. `wanted` is the direction, or none to hold; `dependents` are all configured
/// resources, in configuration order.
pub fn next_step(
    now: Instant,
    wanted: Option<Direction>,
    mode: Mode,
    dependents: &[Dependent],
    hints: &mut FlowHints,
) -> NextStep {
    hints.turn(wanted);
    let is_configured = |reference: &ResourceRef| dependents.iter().any(|d| d.config.reference == *reference);
    hints.attempts.retain(|reference, _| is_configured(reference));
    hints.reported.retain(is_configured);
    let Some(direction) = wanted else {
        return hold(dependents);
    };
    let planned: Vec<PlannedDependent> = dependents
        .iter()
        .map(|dependent| (dependent, plan_step(direction, dependent)))
        .collect();
    // Neither a loss nor a flow that has written waits for a list. Any other healthy shoot does: a list that is refused
    // must not cost a read of every shoot.
    let has_begun = direction == Direction::Down || !hints.started.is_empty();
    let runs = planned
        .iter()
        .any(|(dependent, planned)| is_unfinished(dependent, &planned.step, has_begun));
    let open = planned
        .iter()
        .filter(|(_, planned)| keeps_level_open(&planned.step, runs));
    let level = open
        .map(|(dependent, _)| direction.info(&dependent.config).level)
        .min();
    if level.is_none() {
        if direction == Direction::Release {
            return hold(dependents);
        }
        hints.settle();
    }
    let level = Level {
        now,
        direction,
        mode,
        level,
        runs,
    };
    level.step(&planned, hints)
}

/// Returns true if something is left to do with the resource, or if a watchdog has begun what is not complete. A shoot
/// of which nothing is unfinished is settled, even if a resource happens to be unready.
fn is_unfinished(dependent: &Dependent, step: &ResourceStep, has_begun: bool) -> bool {
    match step {
        ResourceStep::Write(_) => true,
        ResourceStep::NotObserved => has_begun,
        ResourceStep::Wait | ResourceStep::Read => {
            let seen = dependent.observed.seen();
            seen.is_some_and(|seen| seen.protected || seen.replicas.is_none())
        }
        _ => false,
    }
}

/// Returns true if a resource with this step keeps its level open. `runs` is true if something of the shoot is
/// unfinished.
const fn keeps_level_open(step: &ResourceStep, runs: bool) -> bool {
    match step {
        ResourceStep::Wait | ResourceStep::Read => runs,
        step => !step.is_done(),
    }
}

fn hold(dependents: &[Dependent]) -> NextStep {
    let resources = dependents.iter().map(|dependent| {
        let (state, message) = match &dependent.observed {
            Observed::Present(seen) if seen.is_ignored() => {
                (ResourceState::Ignored, "it carries ignore-scaling")
            }
            Observed::Absent | Observed::Deleting if dependent.config.optional => {
                (ResourceState::Absent, "it is optional and absent")
            }
            _ => (ResourceState::Pending, "nothing to do while holding"),
        };
        progress(dependent, None, state, message.to_owned(), None, None)
    });
    NextStep::showing(FlowState::Holding, None, resources.collect())
}

/// The state of a resource that needs nothing.
const fn resting(step: &ResourceStep) -> ResourceState {
    match step {
        ResourceStep::AbsentOptional | ResourceStep::Missing => ResourceState::Absent,
        ResourceStep::Ignored => ResourceState::Ignored,
        _ => ResourceState::Reached,
    }
}

/// The current level; none if nothing is left to do.
struct Level {
    now: Instant,
    direction: Direction,
    mode: Mode,
    level: Option<i32>,
    runs: bool,
}

impl Level {
    fn step(&self, planned: &[PlannedDependent], hints: &mut FlowHints) -> NextStep {
        let state = match self.level {
            Some(_) => FlowState::Running,
            None => FlowState::Settled,
        };
        let mut next = NextStep::showing(state, self.level, Vec::with_capacity(planned.len()));
        for (dependent, planned) in planned {
            let info = self.direction.info(&dependent.config);
            let (state, message) = match self.level {
                Some(level) if keeps_level_open(&planned.step, self.runs) && info.level > level => {
                    let message = format!("level {level} comes first; {}", planned.why);
                    (ResourceState::Pending, message)
                }
                Some(_) if keeps_level_open(&planned.step, self.runs) => {
                    self.advance(dependent, planned, hints, &mut next)
                }
                _ => (resting(&planned.step), planned.why.clone()),
            };
            let reference = &dependent.config.reference;
            // A lower level, which is done, fails if it cannot be read.
            let error = hints.attempts.get(reference).and_then(Attempts::failure);
            let failed = error.is_some() || state == ResourceState::Failed;
            if !failed && planned.step != ResourceStep::Missing {
                hints.reported.remove(reference);
            } else if hints.reported.insert(reference.clone()) {
                next.alerts.push(Alert {
                    reference: reference.clone(),
                    direction: self.direction,
                    why: error.unwrap_or(&message).to_owned(),
                    failed,
                });
            }
            let (level, target) = (Some(info.level), planned.target);
            let attempts = hints.attempts.get(reference).filter(|_| self.level.is_some());
            let shown = progress(dependent, level, state, message, target, attempts);
            next.status.resources.push(shown);
        }
        self.read_what_writes_rest_on(planned, hints, &mut next);
        let running = next.status.state == FlowState::Running;
        if running && next.requests.is_empty() && !next.kept_back.is_empty() {
            next.status.state = FlowState::KeptBack;
        }
        next
    }

    /// Replaces writes that scale by reads of the lower levels, if those were not read right before. The removal of
    /// meltdown-protection-active rests on the resource alone.
    fn read_what_writes_rest_on(
        &self,
        planned: &[PlannedDependent],
        hints: &mut FlowHints,
        next: &mut NextStep,
    ) {
        // A release scales nothing.
        let is_release = self.direction == Direction::Release;
        let rests = !is_release && next.requests.iter().any(Request::needs_cluster);
        let mut reads = Vec::new();
        let mut waits = None;
        for (dependent, _) in planned {
            let info = self.direction.info(&dependent.config);
            let reference = &dependent.config.reference;
            if Some(info.level) >= self.level {
                continue;
            }
            if !rests || !dependent.counts(self.direction) || dependent.is_read() {
                // This resource is done; the others of its level are not.
                hints.settle_one(reference);
                continue;
            }
            let attempts = hints.attempts.entry(reference.clone()).or_default();
            attempts.begin_reread();
            match attempts.paused(self.now) {
                Some((_, until)) => waits = earliest(waits, Some(until)),
                None => reads.push(self.request(dependent, None)),
            }
        }
        if reads.is_empty() && waits.is_none() {
            return;
        }
        next.requests.retain(|request| !request.needs_cluster());
        next.prepares_write = !reads.is_empty();
        next.requests.extend(reads);
        next.wake_at(waits);
    }

    /// Moves one resource of the level on.
    fn advance(
        &self,
        dependent: &Dependent,
        planned: &PlannedStep,
        hints: &mut FlowHints,
        next: &mut NextStep,
    ) -> (ResourceState, String) {
        let (now, info) = (self.now, self.direction.info(&dependent.config));
        let started = &mut hints.started;
        let attempts = hints
            .attempts
            .entry(dependent.config.reference.clone())
            .or_default();
        if planned.step == ResourceStep::Repair {
            next.status.state = FlowState::Failed;
            return (ResourceState::Failed, planned.why.clone());
        }
        if planned.step != ResourceStep::Wait {
            attempts.end_wait(planned.step == ResourceStep::Write(ResourceWrite::CleanUp));
        }
        let is_observed = planned.step != ResourceStep::NotObserved;
        attempts.note_observed(is_observed);
        let can_read = self.runs && dependent.observed == Observed::NotListed;
        if !is_observed && !can_read {
            // A resource that is not known yet has not failed.
            attempts.since = None;
            return (ResourceState::Waiting, planned.why.clone());
        }
        let times_out = attempts.since.map(|since| since + info.timeout);
        if times_out.is_some_and(|at| now >= at) {
            let timeout = watchdog_api::duration::format(info.timeout);
            let reversal = attempts.reversal();
            let reversal = reversal.filter(|_| matches!(planned.step, ResourceStep::Write(_)));
            let why = reversal.unwrap_or(&planned.why);
            attempts.fail(now, format!("not done within {timeout}: {why}"), None);
        }
        if let Some((state, until)) = attempts.paused(now) {
            next.wake_at(Some(until));
            if state == ResourceState::Failed {
                next.status.state = FlowState::Failed;
                next.status.retry_at = earliest(next.status.retry_at, Some(until));
            }
            return (state, attempts.error.clone());
        }
        match (&planned.step, dependent.observed.seen()) {
            (ResourceStep::Write(write), Some(seen)) => {
                let due = *started.entry(info.level).or_insert(now) + initial_delay(self.direction, info);
                if now < due {
                    // A read that had to come first is no part of the operation that the timeout bounds.
                    attempts.since = None;
                    next.wake_at(Some(due));
                    let delay = watchdog_api::duration::format(info.initial_delay);
                    let message = format!("{}; waiting for the initial delay of {delay}", planned.why);
                    return (ResourceState::Delayed, message);
                }
                next.wake_at(times_out);
                let change = (write.clone(), seen.resource_version.clone());
                let request = self.request(dependent, Some(change));
                if self.mode != Mode::Protect && !write.restores_own(self.direction, seen) {
                    next.kept_back.push(request);
                    let message = format!("would {write}, but the mode is observe");
                    return (ResourceState::KeptBack, message);
                }
                next.requests.push(request);
                let message = format!("{}; the write is queued or under way", planned.why);
                return (ResourceState::Writing, message);
            }
            (ResourceStep::Read | ResourceStep::NotObserved, _) => {
                next.wake_at(times_out);
                next.requests.push(self.request(dependent, None));
            }
            // For its ready replicas. It is read if nothing new is observed.
            (_, seen) => {
                next.wake_at(Some(*attempts.since.get_or_insert(now) + info.timeout));
                let pause = read_pause(self.direction);
                match seen.map(|seen| attempts.read_at(now, &seen.resource_version, pause)) {
                    Some(at) if now >= at => next.requests.push(self.request(dependent, None)),
                    read_at => next.wake_at(read_at),
                }
            }
        }
        (ResourceState::Waiting, planned.why.clone())
    }

    fn request(&self, dependent: &Dependent, write: Option<(ResourceWrite, Arc<str>)>) -> Request {
        Request {
            reference: dependent.config.reference.clone(),
            direction: self.direction,
            timeout: self.direction.info(&dependent.config).timeout,
            write,
        }
    }
}

const fn initial_delay(direction: Direction, info: &ScaleInfo) -> Duration {
    match direction {
        Direction::Down | Direction::Up => info.initial_delay,
        Direction::Release => Duration::ZERO,
    }
}

/// A resource as it is shown.
fn progress(
    dependent: &Dependent,
    level: Option<i32>,
    state: ResourceState,
    message: String,
    target: Option<i32>,
    attempts: Option<&Attempts>,
) -> Progress {
    let seen = dependent.observed.seen();
    let message = match attempts {
        Some(attempts) if !attempts.error.is_empty() && !message.contains(&attempts.error) => {
            format!("{message}; the last try failed: {}", attempts.error)
        }
        _ => message,
    };
    Progress {
        reference: dependent.config.reference.clone(),
        level,
        state,
        replicas: seen.and_then(|seen| seen.replicas),
        ready: seen.map(|seen| seen.ready),
        recorded: seen.and_then(|seen| match seen.recorded {
            RecordedReplicas::Count(count) => Some(count),
            _ => None,
        }),
        protected: seen.is_some_and(|seen| seen.protected),
        protected_by_coordinator: seen.is_some_and(ObservedResource::is_protected_by_coordinator),
        target,
        attempts: attempts.map_or(0, Attempts::count),
        message: dependent.with_warning(message),
    }
}

/// The earlier of two times at which something must be done, if any.
pub(crate) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests;
