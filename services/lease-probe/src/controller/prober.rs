//! The probing of one shoot, from its start to its stop.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::policy::parse_failure_fraction;
use watchdog_api::prober::ProberConfig;
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::trace::Tracer;

use super::trace;
use crate::cluster::connection::{Observations, Suspicion};
use crate::cluster::kubeconfig::Access;
use crate::cluster::shoot_client::{Budget, ExternalEndpoint, ShootClient};
use crate::domain::answered::ListTimes;
use crate::domain::assessment::{Assessment, ExpiryRule};
use crate::domain::candidates::NodeIndex;
use crate::domain::outcome::{FailureEvidence, Outcome, ProbeFailure};
use crate::domain::probe_state::{Next, ProbeState};
use crate::domain::renewals::expiry_age;
use crate::domain::schedule::{self, FailureStreak, ProbePace, Recent, ScheduleInputs};
use crate::domain::verdict::{self, Streak, Thresholds, Verdict, VerdictBuilder};
use crate::metrics::{DETECTION_LAG, PROBE_DURATION, PROBES, SCHEDULE_LAG, THROTTLED};

/// The inputs of a probe. A change takes effect on the running probe.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeInputs {
    /// From the Cluster.
    pub settings: Arc<ShootSettings>,
    /// From the configuration file.
    pub config: Arc<ProberConfig>,
    /// The kubeconfig for the internal endpoint, or why there is none.
    pub internal: Access,
    /// The same for the external endpoint, where the configuration names a Secret for it.
    pub external: Option<Access>,
}

/// The state that all probes of the process share.
pub struct ProbeContext {
    /// Where the machines are listed.
    pub seed: kube::Client,
    /// The clock of the process.
    pub clock: Clock,
    /// Name of this replica.
    pub identity: Arc<str>,
    /// Makes spans of verdicts that changed.
    pub tracer: Tracer,
    /// Draws the numbers in [0, 1) by which probes are spread.
    pub random: Box<dyn Fn() -> f64 + Send + Sync>,
    /// How many shoots the process probes, as of the last verdict.
    pub probing: AtomicUsize,
    /// How many of them it probes closely, because a loss stands or seconds decide.
    pub close: AtomicUsize,
}

impl ProbeContext {
    /// Now.
    #[must_use]
    pub fn now(&self) -> UnixTime {
        UnixTime(self.clock.now_micros())
    }

    fn time_of(&self, instant: Instant) -> UnixTime {
        UnixTime(self.clock.micros_at(instant))
    }

    fn pace(&self, config: &ProberConfig) -> ProbePace {
        ProbePace {
            interval: config.probe_interval,
            jitter: config.backoff_jitter_factor,
            failure_back_off: config
                .internal_probe_failure_back_off_duration
                .max(Duration::from_secs(1)),
            shoots: self.probing.load(Ordering::Relaxed),
            close: self.close.load(Ordering::Relaxed),
        }
    }
}

/// In a `probeInterval` the ends of connections make at most about this many probes due.
const MOST_WAKES: u32 = 3;

/// A loss rests on a list of leases that is no older than this when it is reported: lists of nodes and machines may take
/// long, and the leases may be renewed meanwhile.
const STALE_LIST: Duration = Duration::from_secs(2);

/// An endpoint of a shoot, as a label of the failure counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// The one of `kubeConfigSecretName`.
    Internal,
    /// The one of `externalKubeConfigSecretName`.
    External,
}

/// Where a probe reports to.
pub trait ProbeReporter: Send + Sync {
    /// A verdict, new or renewed.
    fn verdict(&self, verdict: Verdict);
    /// A request to an endpoint of the shoot failed.
    fn failure(&self, endpoint: Endpoint, failure: &ProbeFailure);
}

/// The result of one probe.
struct ProbeResult {
    assessment: Assessment,
    // A 429 that did not decide the result. The prober still pauses for as long as the server asked.
    throttled: Option<ProbeFailure>,
}

/// Counts a shoot among those that are probed closely while it exists.
struct CloseProbing(Arc<ProbeContext>);

impl CloseProbing {
    fn begin(shared: &Arc<ProbeContext>) -> Self {
        shared.close.fetch_add(1, Ordering::Relaxed);
        Self(shared.clone())
    }
}

impl Drop for CloseProbing {
    fn drop(&mut self) {
        self.0.close.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Probes one shoot.
pub struct Prober<R, S, E> {
    shoot: Arc<str>,
    shared: Arc<ProbeContext>,
    inputs: watch::Receiver<ProbeInputs>,
    report: R,
    state: ProbeState,
    streak: Streak,
    verdicts: VerdictBuilder,
    recent: Recent,
    failures: u32,
    // The trace that the last change of the outcome began.
    traceparent: Option<Arc<str>>,
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
        shoot: Arc<str>,
        shared: Arc<ProbeContext>,
        inputs: watch::Receiver<ProbeInputs>,
        report: R,
        client: S,
        external: E,
    ) -> Self {
        let verdicts = VerdictBuilder::new(shared.identity.clone(), shared.now());
        Self {
            shoot,
            shared,
            inputs,
            report,
            state: ProbeState::default(),
            streak: Streak::default(),
            verdicts,
            recent: Recent::default(),
            failures: 0,
            traceparent: None,
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
                        self.state.forget_exclusions();
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
                    let wake = self.recent.spaced(soon).max(self.no_wake_before).max(self.throttled_until);
                    due = due.min(wake);
                    // A server that closes its connections all the time, or idle ones, must not make the probes many.
                    let interval = self.inputs.borrow().config.probe_interval;
                    self.no_wake_before = due.after((self.state.renew_interval() / 2).max(interval / MOST_WAKES));
                    continue;
                }
                () = tokio::time::sleep_until(due_at) => {}
            }
            SCHEDULE_LAG.record(&[], due_at.elapsed());
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
        let (started, before) = (Instant::now(), self.verdicts.last_reported().as_str());
        self.recent.note(self.shared.now());
        let found = self.ask(inputs).await;
        PROBE_DURATION.record(&[], started.elapsed());
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
            let span = trace::changed(&self.shared.tracer, &self.shoot, before, &verdict, started);
            self.traceparent = span.map(|span| span.traceparent().into());
        }
        verdict.traceparent.clone_from(&self.traceparent);
        if let Err(malformed) = failure_fraction(inputs) {
            verdict.message.push_str(&format!(" {malformed}"));
        }
        self.report.verdict(verdict);
        if let (true, true, Some(crossing)) = (loss, turned, crossing) {
            // Silence may have been proven while no probe could run.
            DETECTION_LAG.record(&[], self.shared.now().since(crossing.max(self.judged)));
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
            assessment: found,
            throttled,
        } = found;
        PROBES.inc(&[("outcome", found.outcome.as_str().to_owned())]);
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
            tense: found.tense,
            judged: found.judged,
            crossing: found.crossing,
            renew_interval,
            look_ahead: found.look_ahead,
        };
        match (&self.close, found.tense || result.outcome.is_loss()) {
            (None, true) => self.close = Some(CloseProbing::begin(&self.shared)),
            (Some(_), false) => self.close = None,
            _ => {}
        }
        let pace = self.shared.pace(config);
        let mut next_due = schedule::after_assessment(now, pace, seen, &self.recent, (self.shared.random)());
        if let Some(failure) = throttled {
            count_throttled(&failure);
            self.throttled_until = schedule::after_failure(
                (now, now),
                pace,
                &failure,
                FailureStreak::FIRST,
                (self.shared.random)(),
            );
            next_due = next_due.max(self.throttled_until);
        }
        let message = verdict::sentence(&found, result.counting);
        let valid_until = schedule::valid_until(next_due, config.probe_timeout);
        let verdict =
            self.verdicts
                .assessed(result.outcome, message, found.evidence, found.judged, valid_until);
        (verdict, next_due, found.crossing)
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
        PROBES.inc(&[("outcome", outcome.as_str().to_owned())]);
        count_throttled(failure);
        self.report.failure(endpoint, failure);
        note_observations(&self.shared, &mut self.client, &mut self.state);
        let started = self.shared.time_of(started);
        let since = started.before(self.state.renew_interval());
        match failure.evidence() {
            FailureEvidence::Away => self.state.answered_mut().note_outage(since),
            FailureEvidence::Disconnected => self.state.answered_mut().note_disconnect(since, false),
            FailureEvidence::Silent => self.state.answered_mut().note_disconnect(since, true),
            FailureEvidence::Throttles => self.state.answered_mut().note_throttling(now),
            FailureEvidence::None => {}
        }
        if self.failing.replace(failure.as_str()) != Some(failure.as_str()) {
            tracing::warn!(reason = failure.as_str(), error = %failure, "probe failed");
        }
        self.failures = self.failures.saturating_add(1);
        let mut next_due = schedule::after_failure(
            (started, now),
            self.shared.pace(&inputs.config),
            failure,
            FailureStreak {
                in_a_row: self.failures,
                close: self.close.is_some(),
            },
            (self.shared.random)(),
        );
        if matches!(failure, ProbeFailure::MachinesThrottled(_))
            && let Some(pause) = self.state.machines_pause(now)
        {
            next_due = next_due.min(now.after(pause));
        }
        if failure.is_throttled() {
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
        let (mut found, answer) = {
            let internal = ask_internal(&self.shared, &mut self.client, &mut self.state, inputs, budget);
            let mut internal = pin!(internal);
            let mut external = pin!(self.external.answers(access, budget));
            let mut answered = None;
            let found = loop {
                tokio::select! {
                    biased;
                    found = &mut internal => break found.map_err(|failure| (Endpoint::Internal, failure))?,
                    answer = &mut external, if answered.is_none() => answered = Some(answer),
                }
            };
            // A loss need not wait for the external endpoint.
            if found.assessment.by_leases.is_loss() {
                return Ok(found);
            }
            let answer = match answered {
                Some(answer) => answer,
                None => external.await,
            };
            (found, answer)
        };
        let failure = answer.err();
        if let Some(failure) = &failure {
            self.report.failure(Endpoint::External, failure);
        }
        let lost_outside = found.assessment.outcome == Outcome::ExternalUnreachable;
        // Nothing new is known: neither is a loss over because this replica could not ask.
        if let (Some(failure @ ProbeFailure::ConnectQueueTimeout(_)), true) = (&failure, lost_outside) {
            return Err((Endpoint::External, failure.clone()));
        }
        if !matches!(failure, Some(ProbeFailure::ConnectQueueTimeout(_))) {
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
}

/// Takes over why the API server may have been away, and how many lists it failed.
fn note_observations(shared: &ProbeContext, client: &mut impl ShootClient, state: &mut ProbeState) {
    let renew_interval = state.renew_interval();
    let answered = state.answered_mut();
    let Observations { suspicion, lists } = client.take_observations();
    answered.note_lists(lists);
    match suspicion {
        Some(Suspicion::AwaySince(instant)) => answered.note_disconnect(shared.time_of(instant), false),
        Some(Suspicion::SilentSince(instant)) => answered.note_disconnect(shared.time_of(instant), true),
        Some(Suspicion::SilentAt(instant)) => {
            answered.note_disconnect(shared.time_of(instant).before(renew_interval), true);
        }
        // Its start is not known. Pings would have ended the connection within a renew interval; without pings
        // (HTTP/1.1) this is an assumption.
        Some(Suspicion::NoticedAt(instant)) => {
            answered.note_outage(shared.time_of(instant).before(renew_interval));
        }
        None => {}
    }
}

/// Lists the leases, and the nodes and machines if they matter. If those take long, the leases are listed once more.
async fn ask_internal<S: ShootClient>(
    shared: &ProbeContext,
    client: &mut S,
    state: &mut ProbeState,
    inputs: &ProbeInputs,
    budget: Budget,
) -> Result<ProbeResult, ProbeFailure> {
    let done = |assessment| ProbeResult {
        assessment,
        throttled: None,
    };
    // When nodes and machines were asked for that took long.
    let mut slow: Option<UnixTime> = None;
    loop {
        let listed = client.leases(&inputs.internal, budget).await;
        note_observations(shared, client, state);
        // A renew interval that has just changed applies from the next list on: no silence is proven until then.
        let rule = rule(inputs, state.renew_interval());
        let (leases, sent) = listed?;
        let times = ListTimes {
            sent: shared.time_of(sent),
            received: shared.now(),
        };
        let ahead = match state.leases(times, &leases, rule) {
            Next::Done(assessment) => return Ok(done(assessment)),
            Next::ListNodes => None,
            Next::Ahead(assessment) => Some(assessment),
        };
        if let Some(asked) = slow.take()
            && let Some(assessment) = state.judge_again(&leases, rule, asked, times.sent)
        {
            return Ok(done(assessment));
        }
        let asked = shared.now();
        match (list_nodes(shared, client, state, inputs, budget).await, ahead) {
            (Ok(index), _) => {
                let assessment = state.judge(&leases, index, rule, times.sent);
                let listed_lately = shared.now().since(times.received) <= STALE_LIST;
                if listed_lately || !assessment.outcome.is_loss() {
                    return Ok(done(assessment));
                }
                // The leases may have been renewed in the meantime.
                slow = Some(asked);
            }
            // They did not matter yet.
            (Err(failure), Some(assessment)) => {
                return Ok(ProbeResult {
                    assessment,
                    throttled: failure.is_throttled().then_some(failure),
                });
            }
            (Err(failure), None) => return Err(failure),
        }
    }
}

/// Lists the nodes and machines. While the seed wants to be left alone, only the leases are listed.
async fn list_nodes<S: ShootClient>(
    shared: &ProbeContext,
    client: &mut S,
    state: &mut ProbeState,
    inputs: &ProbeInputs,
    budget: Budget,
) -> Result<NodeIndex, ProbeFailure> {
    if let Some(pause) = state.machines_pause(shared.now()) {
        return Err(ProbeFailure::MachinesThrottled(Some(pause)));
    }
    match client.nodes_and_machines(&inputs.internal, budget).await {
        Ok((nodes, machines)) => Ok(NodeIndex::new(&nodes, &machines, &inputs.settings)),
        Err(failure) => {
            if let ProbeFailure::MachinesThrottled(wait) = failure {
                let pace = shared.pace(&inputs.config);
                let pause = schedule::throttle_pause(wait, pace, (shared.random)());
                state.pause_machines(shared.now().after(pause));
            }
            Err(failure)
        }
    }
}

fn count_throttled(failure: &ProbeFailure) {
    if failure.outcome() == Outcome::Throttled {
        THROTTLED.inc(&[]);
    }
}

fn rule(inputs: &ProbeInputs, renew_interval: Duration) -> ExpiryRule {
    let grace = inputs
        .settings
        .node_monitor_grace
        .unwrap_or(inputs.config.kcm_node_monitor_grace_duration);
    ExpiryRule {
        expiry_age: expiry_age(grace, renew_interval),
        threshold: failure_fraction(inputs).unwrap_or(inputs.config.node_lease_failure_fraction),
    }
}

/// The share of expired leases at which the shoot counts as cut off: its own, or that of the configuration. Fails with
/// what is wrong with its own.
fn failure_fraction(inputs: &ProbeInputs) -> Result<f64, String> {
    let own = inputs.settings.failure_fraction.as_deref();
    own.map_or(
        Ok(inputs.config.node_lease_failure_fraction),
        parse_failure_fraction,
    )
}
