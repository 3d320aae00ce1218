//! The probing of one shoot, from its start to its stop.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use watchdog_api::names::BACK_OFF_FOR_THROTTLED_REQUESTS;
use watchdog_api::unix_time::UnixTime;

pub use super::probe_context::{ProbeContext, ProbeInputs};
use crate::cluster::connection::CachedConnection;
use crate::cluster::shoot_client::{ShootClient, answers};
use crate::cluster::transport::{Budget, Connector};
use crate::domain::assessment::Assessment;
use crate::domain::endpoint::Endpoint;
use crate::domain::lease_list::MIN_SPACING;
use crate::domain::outcome::{Outcome, ProbeFailure};
use crate::domain::probe_state::ProbeState;
use crate::domain::schedule;
use crate::domain::verdict::{self, Verdict, VerdictBuilder};
use crate::metrics::{DETECTION_LAG, PROBE_DURATION, PROBES, SCHEDULE_LAG, THROTTLED};

/// In a `probeInterval` the ends of connections make at most about this many probes due.
const MOST_WAKES: u32 = 3;

/// Probes one shoot and reports its verdicts, new and renewed ones.
pub struct Prober<R, C: Connector> {
    pub(super) shared: Arc<ProbeContext>,
    inputs: watch::Receiver<ProbeInputs>,
    report: R,
    pub(super) client: ShootClient<C>,
    pub(super) state: ProbeState,
    // Until then the seed's API server wants to be left alone.
    pub(super) machines_paused_until: UnixTime,
    external: CachedConnection<C>,
    verdicts: VerdictBuilder,
    // When the last probe began.
    started: UnixTime,
    failures: u32,
    // Why the last probe failed, if it did.
    failing: Option<&'static str>,
    _probing: Arc<()>,
    close: Option<Arc<()>>,
    // Until when the end of a connection makes no probe due: it has just done so.
    no_wake_before: UnixTime,
    // Until when an API server wants to be left alone, and until when the external endpoint does.
    throttled_until: UnixTime,
    external_paused_until: UnixTime,
    // When the leases were judged last.
    judged: UnixTime,
}

impl<R: Fn(Verdict) + Send + Sync, C: Connector> Prober<R, C> {
    /// Prepares the probing of a shoot, by its namespace, through its internal and its external endpoint.
    pub fn new(
        shared: Arc<ProbeContext>,
        inputs: watch::Receiver<ProbeInputs>,
        report: R,
        shoot: Arc<str>,
        [internal, external]: [C; 2],
    ) -> Self {
        let limits = shared.limits.clone();
        Self {
            inputs,
            report,
            client: ShootClient::new(shoot, shared.seed.clone(), shared.clock, internal, limits.clone()),
            state: ProbeState::at_place((shared.random)()),
            machines_paused_until: UnixTime::default(),
            external: CachedConnection::new(external, limits),
            verdicts: VerdictBuilder::new(shared.identity.clone(), shared.now()),
            started: UnixTime::default(),
            failures: 0,
            failing: None,
            _probing: shared.probing.clone(),
            close: None,
            no_wake_before: UnixTime::default(),
            throttled_until: UnixTime::default(),
            external_paused_until: UnixTime::default(),
            judged: UnixTime::default(),
            shared,
        }
    }

    /// Probes until the sender of the inputs is dropped; the first probe is one of `shoots` that may all start now.
    /// Safe to cancel.
    pub async fn run(mut self, shoots: usize) {
        let now = self.shared.now();
        let message = "The first probe has no result yet.".to_owned();
        let pending = self.verdicts.report(Outcome::Pending, message, None, now);
        (self.report)(pending);
        let mut inputs = self.inputs.borrow_and_update().clone();
        let mut due = schedule::first(now, inputs.config.initial_delay, shoots, (self.shared.random)());
        loop {
            let due_at = self.shared.clock.instant_at(due.0);
            tokio::select! {
                biased;
                changed = self.inputs.changed() => match changed {
                    // Somebody may just have mended what was broken: look soon, but not in a storm of changes.
                    Ok(()) => {
                        self.state.forget_nodes();
                        let before = std::mem::replace(&mut inputs, self.inputs.borrow_and_update().clone());
                        // Another server, or another user, has not asked to be left alone.
                        if inputs.internal != before.internal {
                            self.throttled_until = UnixTime::default();
                        }
                        if inputs.external != before.external {
                            self.external_paused_until = UnixTime::default();
                        }
                        let soon = self.shared.now().after(MIN_SPACING);
                        due = due.min(soon.max(self.throttled_until));
                        continue;
                    }
                    Err(_) => return,
                },
                // Ask at once whether the API server is still there: an outage must be seen from its start. Not exactly
                // at once, because a seed may lose all its connections together.
                () = self.client.disconnected(), if due > self.no_wake_before => {
                    let now = self.shared.now();
                    let soon = now.after(MIN_SPACING.mul_f64((self.shared.random)()));
                    let spaced = soon.max(self.started.after(MIN_SPACING));
                    due = due.min(spaced.max(self.no_wake_before).max(self.throttled_until));
                    // A server that closes its connections all the time, or idle ones, must not make the probes many.
                    let interval = self.inputs.borrow().config.probe_interval;
                    let pause = (self.state.renew_interval() / 2).max(interval / MOST_WAKES);
                    self.no_wake_before = due.after(pause);
                    continue;
                }
                () = tokio::time::sleep_until(due_at) => {}
            }
            SCHEDULE_LAG.record((), due_at.elapsed());
            // On the heap while it runs: a shoot is idle most of the time and would keep room for it.
            due = Box::pin(self.probe(&inputs)).await;
        }
    }

    /// Probes once and reports; returns when the next probe is due.
    async fn probe(&mut self, inputs: &ProbeInputs) -> UnixTime {
        let started = Instant::now();
        self.started = self.shared.now();
        let found = self.ask(inputs).await;
        PROBE_DURATION.record((), started.elapsed());
        let (mut verdict, due) = match found {
            Ok(found) => self.assessed(inputs, found),
            Err((endpoint, failure)) => self.failed(inputs, endpoint, &failure),
        };
        let due = due.max(self.throttled_until);
        verdict.valid_until = schedule::valid_until(due, inputs.config.probe_timeout);
        self.state.reported(&verdict.outcome);
        if verdict.is_turn() {
            tracing::info!(
                outcome = verdict.outcome.as_str(),
                reason = self.failing.unwrap_or_default(),
                explanation = verdict.message,
                "verdict changed"
            );
        }
        if let Err(malformed) = inputs.failure_fraction() {
            verdict.message.push_str(&format!(" {malformed}"));
        }
        (self.report)(verdict);
        due
    }

    fn assessed(&mut self, inputs: &ProbeInputs, found: Assessment) -> (Verdict, UnixTime) {
        PROBES.inc(&found.outcome);
        self.failures = 0;
        self.failing = None;
        let (now, config) = (self.shared.now(), &inputs.config);
        let needed = match &found.outcome {
            Outcome::Healthy => config.success_threshold,
            outcome if outcome.is_loss() => config.failure_threshold,
            _ => 1,
        };
        let (outcome, counting) = self
            .verdicts
            .note(&found.outcome, needed, now, found.renew_interval);
        let is_close = found.urgent || outcome.is_loss();
        self.close = is_close.then(|| self.shared.close.clone());
        let due = schedule::after_assessment(
            (self.started, now),
            self.shared.pace(config),
            &found,
            &outcome,
            counting.is_some(),
        );
        let message = verdict::sentence(&found, counting);
        // Silence may have been proven while no probe could run.
        let last_judged = std::mem::replace(&mut self.judged, found.judged);
        let crossed = found.crossing.map(|crossing| crossing.max(last_judged));
        let evidence = Some(Arc::new(found));
        let verdict = self.verdicts.report(outcome, message, evidence, self.judged);
        if let Some(crossed) = crossed.filter(|_| verdict.is_turn() && verdict.outcome.is_loss()) {
            DETECTION_LAG.record((), self.shared.now().since(crossed));
        }
        (verdict, due)
    }

    fn failed(
        &mut self,
        inputs: &ProbeInputs,
        endpoint: Endpoint,
        failure: &ProbeFailure,
    ) -> (Verdict, UnixTime) {
        let now = self.shared.now();
        PROBES.inc(&failure.outcome());
        self.verdicts.count(endpoint, failure);
        self.note_suspicion();
        let state = &mut self.state;
        // A 429 is an answer, but from now on kubelets may be throttled too.
        let since = match failure.is_throttled() {
            true => now,
            false => self.started.before(state.renew_interval()),
        };
        if failure.suggests_outage() {
            state.answered_mut().note_outage(since, failure.is_timeout());
        }
        if matches!(failure, ProbeFailure::TooManyLeases(_)) {
            // Their memory was given back.
            state.forget();
        }
        if self.failing.replace(failure.as_str()) != Some(failure.as_str()) {
            tracing::warn!(reason = failure.as_str(), error = %failure, "probe failed");
        }
        self.failures = self.failures.saturating_add(1);
        let pace = self.shared.pace(&inputs.config);
        let mut due = schedule::after_failure(
            (self.started, now),
            pace,
            failure,
            self.failures,
            self.close.is_some(),
        );
        if matches!(failure, ProbeFailure::MachinesThrottled(_)) {
            due = due.min(self.machines_paused_until.max(now));
        }
        if failure.is_throttled() {
            THROTTLED.inc(());
            self.throttled_until = due;
        }
        let (outcome, message) = (failure.outcome(), failure.to_string());
        let mut verdict = self.verdicts.report(outcome, message, None, now);
        if let ProbeFailure::Forbidden(refused) = failure {
            verdict.refused.clone_from(refused);
        }
        (verdict, due)
    }

    /// Lists the leases, the nodes and machines if they matter, and then asks the external endpoint if there is one.
    async fn ask(&mut self, inputs: &ProbeInputs) -> Result<Assessment, (Endpoint, ProbeFailure)> {
        let threshold = inputs.config.failure_threshold;
        let budget = Budget::starting_now(inputs.config.probe_timeout);
        let internal = |failure| (Endpoint::Internal, failure);
        let mut found = self.ask_internal(inputs, budget).await.map_err(internal)?;
        let lost_outside = found.outcome == Outcome::ExternalUnreachable;
        let answer = self.ask_external(inputs, &found, budget).await;
        if let Some(Err(failure)) = &answer {
            self.verdicts.count(Endpoint::External, failure);
        }
        let state = &mut self.state;
        match answer {
            None => {}
            // Nothing new is known: neither is a loss over because this replica could not ask.
            Some(Err(failure)) if failure.is_own() && lost_outside => {
                return Err((Endpoint::External, failure));
            }
            Some(Err(failure)) if failure.is_own() => {}
            Some(Err(failure)) if failure.outcome() == Outcome::ApiServerUnreachable => {
                state.note_external(false, threshold, found.judged);
            }
            // A kubeconfig that cannot be used is no evidence about the endpoint, and a refusal is an answer.
            Some(answer) => {
                state.note_external(true, threshold, found.judged);
                found.outcome = found.by_leases.clone();
                // The other endpoint still answers, and a loss must be seen in time.
                if let Err(ProbeFailure::Throttled(wait)) = answer {
                    THROTTLED.inc(());
                    let pace = self.shared.pace(&inputs.config);
                    let pause = pace.pause(wait, BACK_OFF_FOR_THROTTLED_REQUESTS);
                    self.external_paused_until = self.shared.now().after(pause);
                }
            }
        }
        if found.outcome == Outcome::ExternalUnreachable {
            // While the endpoint had its time to answer, some lease may have been renewed.
            return self.ask_internal(inputs, budget).await.map_err(internal);
        }
        Ok(found)
    }

    /// Asks the external endpoint after the leases were judged. Returns none after a loss, while the endpoint wants to
    /// be left alone, and if the answer does not come before the next expiry of a lease: an endpoint that hangs must
    /// not delay either. Where there is no such endpoint, none is away.
    async fn ask_external(
        &mut self,
        inputs: &ProbeInputs,
        found: &Assessment,
        budget: Budget,
    ) -> Option<Result<(), ProbeFailure>> {
        let Some(access) = &inputs.external else {
            return Some(Ok(()));
        };
        if found.by_leases.is_loss() || self.shared.now() < self.external_paused_until {
            return None;
        }
        let next_change = found.next_change().map(|at| self.shared.clock.instant_at(at.0));
        let until = next_change.map_or(budget.deadline, |at| at.min(budget.deadline));
        timeout_at(until, answers(&mut self.external, access, budget))
            .await
            .ok()
    }
}
