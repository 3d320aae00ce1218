//! Derives the next step of a shoot: which requests to make, what to wait for, and until when.
//!
//! [`next_step`] derives this from the observed state of the resources alone, so a crash between any two writes, an
//! answer that is lost, a conflict and a new leader are the same case: it is called again. [`FlowHints`] only bring the
//! times of delays and tries along.
//!
//! The level that is worked on is the lowest in which a resource is not where the direction wants it. A write of a
//! level rests on all levels below: they have *reached* their targets, as a read has shown just now and not a watch
//! once (S3). So where a resource of a lower level was not [read](Dependent::read), the step is to read it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::prober::{ResourceRef, ScaleInfo};
use watchdog_api::workload::RecordedReplicas;

use super::Direction;
use super::attempts::{Attempts, FlowHints, read_pause};
use super::observed::{Dependent, ObservedResource};
use super::resource_step::{PlannedStep, ResourceStep, ResourceWrite, plan_step};
use super::status::{FlowState, FlowStatus, Progress, ResourceState};

/// A request to make on a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// On which resource.
    pub reference: ResourceRef,
    /// Its kind.
    pub kind: RequestKind,
    /// The duration of one try on the resource.
    pub timeout: Duration,
}

/// The kind of a request on a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Changes the resource, if it still has the version `against`.
    Write {
        /// The change.
        write: ResourceWrite,
        /// The version of the resource that the decision rests on.
        against: Arc<str>,
    },
    /// Read the resource, and its scale sub-resource if the resource itself does not show its replicas.
    Read,
}

impl RequestKind {
    /// Returns true if the Cluster must be confirmed right before the request, because that changes a replica count or
    /// leads to such a change (S4).
    #[must_use]
    pub const fn needs_cluster(&self) -> bool {
        match self {
            Self::Write { write, .. } => !matches!(write, ResourceWrite::CleanUp),
            Self::Read => false,
        }
    }
}

/// The next step of a shoot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextStep {
    /// Requests to make now, together.
    pub requests: Vec<Request>,
    /// True if a write comes as soon as the requests have read what it rests on.
    pub prepares_write: bool,
    /// When to look again although nothing has happened.
    pub wake: Option<Instant>,
    /// The status to publish.
    pub(crate) status: FlowStatus,
    /// New defects: for the log and a Kubernetes Event.
    pub alerts: Vec<Alert>,
}

/// A defect of a resource that a person must know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// The resource.
    pub reference: ResourceRef,
    /// Why.
    pub why: String,
    /// True if the resource has failed its level; false if the level goes on without it.
    pub failed: bool,
}

impl NextStep {
    const fn showing(state: FlowState, level: Option<i32>, resources: Vec<Progress>) -> Self {
        Self {
            requests: Vec::new(),
            prepares_write: false,
            wake: None,
            status: FlowStatus {
                state,
                level,
                resources,
                retry_at: None,
            },
            alerts: Vec::new(),
        }
    }

    /// Returns true if the level has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.status.state == FlowState::Failed
    }
}

/// A resource with the step that follows from its observed state.
type PlannedDependent<'a> = (&'a Dependent<'a>, PlannedStep);

/// Derives what a shoot needs now. `wanted` is the direction, or none to hold; `dependents` are all configured
/// resources, in configuration order.
pub fn next_step(
    now: Instant,
    wanted: Option<Direction>,
    dependents: &[Dependent<'_>],
    hints: &mut FlowHints,
) -> NextStep {
    hints.turn(wanted);
    let is_configured = |reference: &ResourceRef| dependents.iter().any(|d| d.config.reference == *reference);
    hints.attempts.retain(|reference, _| is_configured(reference));
    let Some(direction) = wanted else {
        return hold(dependents);
    };
    let planned: Vec<PlannedDependent<'_>> = dependents
        .iter()
        .map(|dependent| (dependent, plan_step(direction, dependent)))
        .collect();
    let runs = planned
        .iter()
        .any(|(dependent, planned)| is_unfinished(dependent, &planned.step));
    let level_of = |dependent: &Dependent<'_>| direction.info(dependent.config).level;
    let open = planned
        .iter()
        .filter(|(_, planned)| keeps_level_open(&planned.step, runs));
    match open.map(|(dependent, _)| level_of(dependent)).min() {
        Some(level) => Level {
            now,
            direction,
            level,
            runs,
        }
        .step(&planned, hints),
        None if direction == Direction::Release => hold(dependents),
        None => settle(direction, &planned, hints),
    }
}

/// Returns true if something is left to do with the resource, or was done by a watchdog and has not come to its end. A
/// shoot of which nothing is unfinished is settled, even if a resource happens to be unready.
fn is_unfinished(dependent: &Dependent<'_>, step: &ResourceStep) -> bool {
    match step {
        ResourceStep::Wait => dependent.observed.seen().is_some_and(|seen| seen.protected),
        step => step.is_work(),
    }
}

/// Returns true if a resource with this step keeps its level open; `runs`: something of the shoot is unfinished.
const fn keeps_level_open(step: &ResourceStep, runs: bool) -> bool {
    match step {
        ResourceStep::Wait => runs,
        step => !step.is_done(),
    }
}

fn hold(dependents: &[Dependent<'_>]) -> NextStep {
    let resources = dependents.iter().map(|dependent| {
        let (state, message) = if dependent.observed.seen().is_some_and(|seen| seen.ignored) {
            (ResourceState::Ignored, "it carries ignore-scaling")
        } else if dependent.observed.seen().is_none() && dependent.config.optional {
            (ResourceState::Absent, "it is optional and absent")
        } else {
            (ResourceState::Pending, "nothing to do while holding")
        };
        progress(dependent, None, state, message.to_owned(), None, None)
    });
    NextStep::showing(FlowState::Holding, None, resources.collect())
}

fn settle(direction: Direction, planned: &[PlannedDependent<'_>], hints: &mut FlowHints) -> NextStep {
    hints.started.clear();
    hints.attempts.retain(|_, attempts| attempts.broken_reported);
    let mut next = NextStep::showing(FlowState::Settled, None, Vec::with_capacity(planned.len()));
    for (dependent, planned) in planned {
        let level = Some(direction.info(dependent.config).level);
        next.alerts.extend(missing(dependent, planned, hints));
        let (state, why) = (resting(&planned.step), planned.why.clone());
        next.status
            .resources
            .push(progress(dependent, level, state, why, planned.target, None));
    }
    next
}

/// The warning about a resource that is absent and not optional, once.
fn missing(dependent: &Dependent<'_>, planned: &PlannedStep, hints: &mut FlowHints) -> Option<Alert> {
    if planned.step != ResourceStep::Missing {
        return None;
    }
    let reference = dependent.config.reference.clone();
    let attempts = hints.attempts.entry(reference.clone()).or_default();
    let is_new = !std::mem::replace(&mut attempts.broken_reported, true);
    is_new.then(|| Alert {
        reference,
        why: planned.why.clone(),
        failed: false,
    })
}

/// The state of a resource that needs nothing.
const fn resting(step: &ResourceStep) -> ResourceState {
    match step {
        ResourceStep::AbsentOptional | ResourceStep::Missing => ResourceState::Absent,
        ResourceStep::Ignored => ResourceState::Ignored,
        _ => ResourceState::Reached,
    }
}

/// The level that is worked on.
struct Level {
    now: Instant,
    direction: Direction,
    level: i32,
    runs: bool,
}

/// The next step of one resource of the level.
struct Advance {
    state: ResourceState,
    message: String,
    wake: Option<Instant>,
    request: Option<RequestKind>,
}

impl Advance {
    const fn to(state: ResourceState, message: String, wake: Option<Instant>) -> Self {
        Self {
            state,
            message,
            wake,
            request: None,
        }
    }

    fn by(self, request: RequestKind) -> Self {
        Self {
            request: Some(request),
            ..self
        }
    }
}

impl Level {
    fn step(&self, planned: &[PlannedDependent<'_>], hints: &mut FlowHints) -> NextStep {
        let resources = Vec::with_capacity(planned.len());
        let mut next = NextStep::showing(FlowState::Running, Some(self.level), resources);
        for (dependent, planned) in planned {
            let info = self.direction.info(dependent.config);
            next.alerts.extend(missing(dependent, planned, hints));
            let reference = &dependent.config.reference;
            let (state, message) = if !keeps_level_open(&planned.step, self.runs) {
                (resting(&planned.step), planned.why.clone())
            } else if info.level > self.level {
                let message = format!("level {} comes first; {}", self.level, planned.why);
                (ResourceState::Pending, message)
            } else {
                let advance = self.advance(dependent, planned, hints);
                let request = advance.request.map(|kind| request(dependent, kind, info));
                next.requests.extend(request);
                next.wake = earliest(next.wake, advance.wake);
                if advance.state == ResourceState::Failed {
                    next.status.state = FlowState::Failed;
                    next.status.retry_at = earliest(next.status.retry_at, advance.wake);
                }
                (advance.state, advance.message)
            };
            let mut attempts = hints.attempts.get_mut(reference);
            let alert = attempts.as_mut().and_then(|attempts| attempts.alert.take());
            next.alerts.extend(alert.map(|why| Alert {
                reference: reference.clone(),
                why,
                failed: true,
            }));
            let (level, target) = (Some(info.level), planned.target);
            next.status.resources.push(progress(
                dependent,
                level,
                state,
                message,
                target,
                attempts.as_deref(),
            ));
        }
        self.read_what_writes_rest_on(planned, hints, &mut next);
        next
    }

    /// Puts reads of the lower levels in the place of writes that scale, where those were not read just now. To remove
    /// meltdown-protection-active rests on the resource alone.
    fn read_what_writes_rest_on(
        &self,
        planned: &[PlannedDependent<'_>],
        hints: &mut FlowHints,
        next: &mut NextStep,
    ) {
        let rests_on_levels = |request: &Request| request.kind.needs_cluster();
        let rests = next.requests.iter().any(rests_on_levels);
        let mut reads = Vec::new();
        let mut waits = None;
        for (dependent, _) in planned {
            let info = self.direction.info(dependent.config);
            // On the way down, nothing follows from the state of a dropped resource.
            let irrelevant = dependent.dropped && self.direction == Direction::Down;
            let reference = &dependent.config.reference;
            if info.level >= self.level {
                continue;
            }
            if !rests || irrelevant || dependent.read {
                // Its own operation is over.
                hints
                    .attempts
                    .retain(|of, attempts| of != reference || attempts.broken_reported);
                continue;
            }
            let attempts = hints.attempts.entry(reference.clone()).or_default();
            match attempts.paused(self.now) {
                Some((_, until)) => waits = earliest(waits, Some(until)),
                None => reads.push(request(dependent, RequestKind::Read, info)),
            }
        }
        if reads.is_empty() && waits.is_none() {
            return;
        }
        next.requests.retain(|request| !rests_on_levels(request));
        next.prepares_write = !reads.is_empty();
        next.requests.extend(reads);
        next.wake = earliest(next.wake, waits);
    }

    /// Moves one resource of the level on.
    fn advance(&self, dependent: &Dependent<'_>, planned: &PlannedStep, hints: &mut FlowHints) -> Advance {
        let (now, info) = (self.now, self.direction.info(dependent.config));
        let started = &mut hints.started;
        let attempts = hints
            .attempts
            .entry(dependent.config.reference.clone())
            .or_default();
        if planned.step == ResourceStep::Repair {
            if !std::mem::replace(&mut attempts.broken_reported, true) {
                attempts.alert = Some(planned.why.clone());
            }
            return Advance::to(ResourceState::Failed, planned.why.clone(), None);
        }
        attempts.broken_reported = false;
        if planned.step != ResourceStep::Wait {
            attempts.end_wait(planned.step == ResourceStep::Write(ResourceWrite::CleanUp));
        }
        if planned.step == ResourceStep::NotObserved {
            // That nothing is known of a resource is no failure of it.
            attempts.since = None;
            return Advance::to(ResourceState::Waiting, planned.why.clone(), None);
        }
        let times_out = attempts.since.map(|since| since + info.timeout);
        if times_out.is_some_and(|at| now >= at) {
            let timeout = watchdog_api::duration::format(info.timeout);
            attempts.fail(now, format!("not done within {timeout}: {}", planned.why), None);
        }
        if let Some((state, until)) = attempts.paused(now) {
            return Advance::to(state, attempts.error.clone(), Some(until));
        }
        match (&planned.step, dependent.observed.version()) {
            (ResourceStep::Write(write), Some(against)) => {
                let due = *started.entry(info.level).or_insert(now) + initial_delay(self.direction, info);
                if now < due {
                    // A read that had to come first is no part of the operation that the timeout bounds.
                    attempts.since = None;
                    let delay = watchdog_api::duration::format(info.initial_delay);
                    let message = format!("{}; waiting for the initial delay of {delay}", planned.why);
                    return Advance::to(ResourceState::Delayed, message, Some(due));
                }
                let message = format!("{}; the write is queued", planned.why);
                let (write, against) = (write.clone(), against.clone());
                Advance::to(ResourceState::Writing, message, times_out)
                    .by(RequestKind::Write { write, against })
            }
            (ResourceStep::Read, _) => {
                Advance::to(ResourceState::Waiting, planned.why.clone(), times_out).by(RequestKind::Read)
            }
            _ => {
                let times = (info.timeout, read_pause(self.direction));
                wait(now, attempts, dependent, planned, times)
            }
        }
    }
}

/// Waits for the ready replicas of a resource, and reads it if nothing new is observed.
fn wait(
    now: Instant,
    attempts: &mut Attempts,
    dependent: &Dependent<'_>,
    planned: &PlannedStep,
    (timeout, read_pause): (Duration, Duration),
) -> Advance {
    let times_out = *attempts.since.get_or_insert(now) + timeout;
    let version = dependent.observed.version();
    let read_at = version.map(|version| attempts.read_at(now, version, read_pause));
    let wake = earliest(read_at.filter(|at| now < *at), Some(times_out));
    let advance = Advance::to(ResourceState::Waiting, planned.why.clone(), wake);
    match read_at {
        Some(at) if now >= at => advance.by(RequestKind::Read),
        _ => advance,
    }
}

const fn initial_delay(direction: Direction, info: &ScaleInfo) -> Duration {
    match direction {
        Direction::Down | Direction::Up => info.initial_delay,
        Direction::Release => Duration::ZERO,
    }
}

fn request(dependent: &Dependent<'_>, kind: RequestKind, info: &ScaleInfo) -> Request {
    Request {
        reference: dependent.config.reference.clone(),
        kind,
        timeout: info.timeout,
    }
}

/// A resource as it is shown.
fn progress(
    dependent: &Dependent<'_>,
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
