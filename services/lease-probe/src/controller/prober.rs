//! The probing of one shoot, from its start to its stop.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::unix_time::UnixTime;

use super::internal_probe::{ProbeResult, ask_internal, note_suspicion};
use super::probe_context::CloseProbing;
pub use super::probe_context::ProbeContext;
pub use super::probe_inputs::ProbeInputs;
use crate::cluster::kubeconfig::Access;
use crate::cluster::shoot_client::{Budget, ExternalEndpoint, ShootClient};
use crate::domain::endpoint::Endpoint;
use crate::domain::outcome::{FailureEvidence, Outcome, ProbeFailure};
use crate::domain::probe_state::ProbeState;
use crate::domain::renewals::{longest_pause, shortest_grace};
use crate::domain::schedule::{self, ScheduleInputs};
use crate::domain::verdict::{self, Streak, Thresholds, Verdict, VerdictBuilder};
use crate::metrics::{DETECTION_LAG, PROBE_DURATION, PROBES, SCHEDULE_LAG, THROTTLED};

/// In a `probeInterval` the ends of connections make at most about this many probes due.
const MOST_WAKES: u32 = 3;

/// Where a probe reports to.
pub trait ProbeReporter: Send + Sync {
    /// A verdict, new or renewed.
    fn verdict(&self, verdict: Verdict);
    /// A request to an endpoint of the shoot failed.
    fn failure(&self, endpoint: Endpoint, failure: &ProbeFailure);
}

/// Probes one shoot.
pub struct Prober<R, S, E> {
    shared: Arc<ProbeContext>,
    inputs: watch::Receiver<ProbeInputs>,
    report: R,
    state: ProbeState,
    streak: Streak,
    verdicts: VerdictBuilder,
    // When the last probe began.
    started: UnixTime,
    failures: u32,
    // Why the last probe failed, if it did.
    failing: Option<&'static str>,
    close: Option<CloseProbing>,
    // Until when the end of a connection makes no probe due: it has just done so.
    no_wake_before: UnixTime,
    // Until when an API server wants to be left alone.
    throttled_until: UnixTime,
    // When the leases were judged last.
    judged: UnixTime,
    client: S,
    external: E,
}

impl<R: ProbeReporter, S: ShootClient, E: ExternalEndpoint> Prober<R, S, E> {
    /// Prepares the probing of a shoot through its two endpoints.
    pub fn new(
        shared: Arc<ProbeContext>,
        inputs: watch::Receiver<ProbeInputs>,
        report: R,
        client: S,
        external: E,
    ) -> Self {
        let verdicts = VerdictBuilder::new(shared.identity.clone(), shared.now());
        let state = ProbeState::at_place((shared.random)());
        Self {
            shared,
            inputs,
            report,
            state,
            streak: Streak::default(),
            verdicts,
            started: UnixTime::default(),
            failures: 0,
            failing: None,
            close: None,
            no_wake_before: UnixTime::default(),
            throttled_until: UnixTime::default(),
            judged: UnixTime::default(),
            client,
            external,
        }
    }

    /// Probes until `stop` is cancelled; the first probe is one of `shoots` that may all start now.
    pub async fn run(mut self, shoots: usize, stop: CancellationToken) {
        let now = self.shared.now();
        self.report.verdict(self.verdicts.pending(now));
        let initial_delay = self.inputs.borrow_and_update().config.initial_delay;
        let mut due = schedule::first(now, initial_delay, shoots, (self.shared.random)());
        loop {
            let due_at = self.shared.clock.instant_at(due.0);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = self.inputs.changed() => match changed {
                    // Somebody may just have mended what was broken: look soon, but not in a storm of changes.
                    Ok(()) => {
                        self.state.forget_nodes();
                        let soon = self.shared.now().after(schedule::MIN_SPACING);
                        due = due.min(soon.max(self.throttled_until));
                        continue;
                    }
                    Err(_) => return,
                },
                // Ask at once whether the API server is still there: an outage must be seen from its start. Not exactly
                // at once, because a seed may lose all its connections together.
                () = self.client.disconnected(), if due > self.no_wake_before => {
                    let now = self.shared.now();
                    let soon = now.after(schedule::MIN_SPACING.mul_f64((self.shared.random)()));
                    let spaced = soon.max(self.started.after(schedule::MIN_SPACING));
                    due = due.min(spaced.max(self.no_wake_before).max(self.throttled_until));
                    // A server that closes its connections all the time, or idle ones, must not make the probes many.
                    let interval = self.inputs.borrow().config.probe_interval;
                    self.no_wake_before = due.after((self.state.renew_interval() / 2).max(interval / MOST_WAKES));
                    continue;
                }
                () = tokio::time::sleep_until(due_at) => {}
            }
            SCHEDULE_LAG.record((), due_at.elapsed());
            let inputs = self.inputs.borrow_and_update().clone();
            due = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                // On the heap while it runs: a shoot is idle most of the time and would keep room for it.
                due = Box::pin(self.probe(&inputs)) => due,
            };
        }
    }

    /// Probes once and reports; returns when the next probe is due.
    async fn probe(&mut self, inputs: &ProbeInputs) -> UnixTime {
        let started = Instant::now();
        self.started = self.shared.now();
        let found = self.ask(inputs).await;
        PROBE_DURATION.record((), started.elapsed());
        let now = self.shared.now();
        let judged = found.as_ref().ok().map(|found| found.assessment.judged);
        let (mut verdict, next_due, crossing) = match found {
            Ok(found) => self.assessed(inputs, found, now),
            Err((endpoint, failure)) => self.failed(inputs, endpoint, &failure, started, now),
        };
        self.state.reported(&verdict.outcome);
        let loss = verdict.outcome.is_loss();
        let turned = verdict.outcome_since == verdict.observed_at;
        if turned {
            tracing::info!(
                outcome = verdict.outcome.as_str(),
                reason = verdict.failure,
                explanation = verdict.message,
                "verdict changed"
            );
        }
        if let Err(malformed) = inputs.failure_fraction() {
            verdict.message.push_str(&format!(" {malformed}"));
        }
        self.report.verdict(verdict);
        if let (true, true, Some(crossing)) = (loss, turned, crossing) {
            // Silence may have been proven while no probe could run.
            DETECTION_LAG.record((), self.shared.now().since(crossing.max(self.judged)));
        }
        if let Some(judged) = judged {
            self.judged = judged;
        }
        next_due
    }

    fn assessed(
        &mut self,
        inputs: &ProbeInputs,
        found: ProbeResult,
        now: UnixTime,
    ) -> (Verdict, UnixTime, Option<UnixTime>) {
        let ProbeResult {
            assessment: mut found,
            throttled,
        } = found;
        PROBES.inc(&found.outcome);
        self.failures = 0;
        self.failing = None;
        let config = &inputs.config;
        let thresholds = Thresholds {
            failure: config.failure_threshold,
            success: config.success_threshold,
        };
        let (last_reported, renew_interval) = (self.verdicts.last_reported(), self.state.renew_interval());
        let result = self
            .streak
            .note(&found.outcome, last_reported, thresholds, now, renew_interval);
        let seen = ScheduleInputs {
            outcome: &result.outcome,
            counting: result.counting.is_some(),
            urgent: found.urgent,
            started: self.started,
            judged: found.judged,
            crossing: found.crossing,
            renew_interval,
            look_ahead: found.look_ahead,
            longest_pause: longest_pause(found.evidence.expiry_age),
        };
        match (&self.close, found.urgent || result.outcome.is_loss()) {
            (None, true) => self.close = Some(CloseProbing::begin(&self.shared)),
            (Some(_), false) => self.close = None,
            _ => {}
        }
        let pace = self.shared.pace(config);
        let mut next_due = schedule::after_assessment(now, pace, seen, (self.shared.random)());
        if let Some(failure) = throttled {
            THROTTLED.inc(());
            let random = (self.shared.random)();
            self.throttled_until = schedule::after_failure((now, now), pace, &failure, 1, false, random);
            next_due = next_due.max(self.throttled_until);
        }
        let mut message = verdict::sentence(&found, result.counting);
        let grace = inputs.grace_period();
        found.evidence.grace = grace;
        found.evidence.grace_too_short = grace < shortest_grace(renew_interval);
        if found.evidence.grace_too_short {
            message.push_str(&verdict::too_short(grace));
        }
        let valid_until = schedule::valid_until(next_due, config.probe_timeout);
        let crossing = found.crossing;
        let verdict = self
            .verdicts
            .assessed(result.outcome, message, found, valid_until);
        (verdict, next_due, crossing)
    }

    fn failed(
        &mut self,
        inputs: &ProbeInputs,
        endpoint: Endpoint,
        failure: &ProbeFailure,
        started: Instant,
        now: UnixTime,
    ) -> (Verdict, UnixTime, Option<UnixTime>) {
        let outcome = failure.outcome();
        PROBES.inc(&outcome);
        self.report.failure(endpoint, failure);
        note_suspicion(&self.shared, &mut self.client, &mut self.state);
        let started = self.shared.time_of(started);
        let since = started.before(self.state.renew_interval());
        match failure.evidence() {
            FailureEvidence::Away => self.state.answered_mut().note_outage(since, false),
            FailureEvidence::Silent => self.state.answered_mut().note_outage(since, true),
            FailureEvidence::Throttles => self.state.answered_mut().note_outage(now, false),
            FailureEvidence::None => {}
        }
        if matches!(failure, ProbeFailure::TooManyLeases(_)) {
            // Their memory was given back.
            self.state.forget();
        }
        if self.failing.replace(failure.as_str()) != Some(failure.as_str()) {
            tracing::warn!(reason = failure.as_str(), error = %failure, "probe failed");
        }
        self.failures = self.failures.saturating_add(1);
        let mut next_due = schedule::after_failure(
            (started, now),
            self.shared.pace(&inputs.config),
            failure,
            self.failures,
            self.close.is_some(),
            (self.shared.random)(),
        );
        if matches!(failure, ProbeFailure::MachinesThrottled(_))
            && let Some(pause) = self.state.machines_pause(now)
        {
            next_due = next_due.min(now.after(pause));
        }
        if failure.is_throttled() {
            THROTTLED.inc(());
            self.throttled_until = next_due;
        }
        let valid_until = schedule::valid_until(next_due, inputs.config.probe_timeout);
        (self.verdicts.failed(failure, now, valid_until), next_due, None)
    }

    /// Lists the leases, the nodes and machines if they matter, and asks the external endpoint at the same time if
    /// there is one.
    async fn ask(&mut self, inputs: &ProbeInputs) -> Result<ProbeResult, (Endpoint, ProbeFailure)> {
        let budget = Budget::starting_now(inputs.config.probe_timeout);
        let Some(access) = &inputs.external else {
            let threshold = inputs.config.failure_threshold;
            self.state.note_external(true, threshold, self.shared.now());
            let found = ask_internal(&self.shared, &mut self.client, &mut self.state, inputs, budget);
            return found.await.map_err(|failure| (Endpoint::Internal, failure));
        };
        let asked = self.ask_both(inputs, access, budget).await;
        let (mut found, answer) = asked.map_err(|failure| (Endpoint::Internal, failure))?;
        let Some(answer) = answer else {
            return Ok(found);
        };
        let failure = answer.err();
        if let Some(failure) = &failure {
            self.report.failure(Endpoint::External, failure);
        }
        let lost_outside = found.assessment.outcome == Outcome::ExternalUnreachable;
        // Nothing new is known: neither is a loss over because this replica could not ask.
        let own = failure.as_ref().filter(|failure| failure.is_own());
        if let (Some(failure), true) = (own, lost_outside) {
            return Err((Endpoint::External, failure.clone()));
        }
        if own.is_none() {
            // A kubeconfig that cannot be used is no evidence about the endpoint, and a refusal is an answer.
            let answers = failure
                .as_ref()
                .is_none_or(|failure| failure.outcome() != Outcome::ApiServerUnreachable);
            let judged = found.assessment.judged;
            self.state
                .note_external(answers, inputs.config.failure_threshold, judged);
            if answers {
                found.assessment.outcome = found.assessment.by_leases.clone();
            } else if lost_outside {
                // The endpoint had its time to answer; since the list some lease may have been renewed.
                let found = ask_internal(&self.shared, &mut self.client, &mut self.state, inputs, budget);
                return found.await.map_err(|failure| (Endpoint::Internal, failure));
            }
        }
        if let Some(failure @ ProbeFailure::Throttled(_)) = failure {
            found.throttled = Some(failure);
        }
        Ok(found)
    }

    /// Asks both endpoints at the same time. Returns no answer of the external one after a loss, which need not wait
    /// for it.
    async fn ask_both(
        &mut self,
        inputs: &ProbeInputs,
        access: &Access,
        budget: Budget,
    ) -> Result<(ProbeResult, Option<Result<(), ProbeFailure>>), ProbeFailure> {
        let internal = ask_internal(&self.shared, &mut self.client, &mut self.state, inputs, budget);
        let mut internal = pin!(internal);
        let mut external = pin!(self.external.answers(access, budget));
        let mut answered = None;
        let found = loop {
            tokio::select! {
                biased;
                found = &mut internal => break found?,
                answer = &mut external, if answered.is_none() => answered = Some(answer),
            }
        };
        if found.assessment.by_leases.is_loss() {
            return Ok((found, None));
        }
        let answer = match answered {
            Some(answer) => answer,
            None => external.await,
        };
        Ok((found, Some(answer)))
    }
}
