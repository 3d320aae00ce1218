//! The probing of one shoot, from its start to its stop.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::prober::ProberConfig;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::trace::Tracer;

use super::source::{Access, Budget, Outside, Source};
use super::trace;
use crate::domain::assessment::{Assessment, Rule};
use crate::domain::candidates::Roster;
use crate::domain::moment::Moment;
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::probe::{Next, ProbeState};
use crate::domain::renewals::{Listing, expiry_age};
use crate::domain::schedule::{self, Pace, Recent, Seen};
use crate::domain::verdict::{self, Streak, Teller, Thresholds, Verdict};
use crate::metrics::{DETECTION_LAG, PROBE_DURATION, PROBES, SCHEDULE_LAG, THROTTLED};

/// What a probe depends on. A change takes effect on the running probe.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    /// From the Cluster.
    pub settings: Arc<ShootSettings>,
    /// From the configuration file.
    pub config: Arc<ProberConfig>,
    /// The kubeconfig for the internal endpoint, or why there is none.
    pub internal: Access,
    /// The same for the external endpoint, where the configuration names a Secret for it.
    pub external: Option<Access>,
}

/// What all probes of the process share.
pub struct Shared {
    /// Where the machines are listed.
    pub seed: kube::Client,
    /// The clock of the process.
    pub clock: Clock,
    /// Name of this replica.
    pub identity: Arc<str>,
    /// Makes spans of verdicts that changed.
    pub tracer: Tracer,
    /// How many shoots the process probes, as of the last verdict.
    pub probing: AtomicUsize,
}

impl Shared {
    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(self.clock.now_micros())
    }

    fn pace(&self, config: &ProberConfig) -> Pace {
        Pace {
            interval: config.probe_interval,
            jitter: config.backoff_jitter_factor,
            failure_back_off: config
                .internal_probe_failure_back_off_duration
                .max(Duration::from_secs(1)),
            tick: schedule::tick(config.probe_interval, self.probing.load(Ordering::Relaxed)),
        }
    }
}

/// Which endpoint failed, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// The one of `kubeConfigSecretName`.
    Internal,
    /// The one of `externalKubeConfigSecretName`.
    External,
}

/// Where a probe reports to.
pub trait Report: Send + Sync {
    /// A verdict, new or renewed.
    fn verdict(&self, verdict: Verdict);
    /// A request to an endpoint of the shoot failed.
    fn failure(&self, endpoint: Endpoint, failure: &Failure);
}

/// What a look came to.
struct Found {
    assessment: Assessment,
    // A 429 that did not decide what was found: the pause that it asks for is kept all the same.
    throttled: Option<Failure>,
}

/// Probes one shoot.
pub struct Prober<R, S, O> {
    shoot: Arc<str>,
    shared: Arc<Shared>,
    inputs: watch::Receiver<Inputs>,
    report: R,
    state: ProbeState,
    streak: Streak,
    teller: Teller,
    recent: Recent,
    failures: u32,
    // The trace that the last change of the outcome began.
    traceparent: Option<Arc<str>>,
    // Why the last probe failed, if it did.
    failing: Option<&'static str>,
    // Whether the external endpoint did not answer when it was last asked.
    external_lost: bool,
    internal: S,
    external: O,
}

impl<R: Report, S: Source, O: Outside> Prober<R, S, O> {
    /// Prepares the probing of a shoot through its two endpoints.
    pub fn new(
        shoot: Arc<str>,
        shared: Arc<Shared>,
        inputs: watch::Receiver<Inputs>,
        report: R,
        internal: S,
        external: O,
    ) -> Self {
        let teller = Teller::new(shared.identity.clone(), shared.now());
        Self {
            shoot,
            shared,
            inputs,
            report,
            state: ProbeState::default(),
            streak: Streak::default(),
            teller,
            recent: Recent::default(),
            failures: 0,
            traceparent: None,
            failing: None,
            external_lost: false,
            internal,
            external,
        }
    }

    /// Probes until `stop` is cancelled; the first probe is one of `shoots` that may all start now.
    pub async fn run(mut self, shoots: usize, stop: CancellationToken) {
        let now = self.shared.now();
        self.report.verdict(self.teller.pending(now));
        let initial_delay = self.inputs.borrow_and_update().config.initial_delay;
        let mut due = schedule::first(now, initial_delay, shoots, rand::random());
        loop {
            let due_at = self.shared.clock.instant_at(due.0);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = self.inputs.changed() => match changed {
                    // Somebody may just have mended what was broken: look soon, but not in a storm of changes.
                    Ok(()) => {
                        self.state.forget_exclusions();
                        due = due.min(self.shared.now().after(schedule::MIN_SPACING));
                        continue;
                    }
                    Err(_) => return,
                },
                () = tokio::time::sleep_until(due_at) => {}
            }
            SCHEDULE_LAG.record(&[], due_at.elapsed());
            let inputs = self.inputs.borrow_and_update().clone();
            due = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                due = self.probe(&inputs) => due,
            };
        }
    }

    /// Probes once, reports, and says when the next probe is due.
    async fn probe(&mut self, inputs: &Inputs) -> Moment {
        let (started, told) = (Instant::now(), self.teller.told().as_str());
        self.recent.note(self.shared.now());
        let found = self.look(inputs).await;
        PROBE_DURATION.record(&[], started.elapsed());
        let now = self.shared.now();
        let (mut verdict, next_due, crossing) = match found {
            Ok(found) => self.assessed(inputs, found, now),
            Err((endpoint, failure)) => self.failed(inputs, endpoint, &failure, now),
        };
        let loss = verdict.outcome.is_loss();
        let turned = verdict.outcome_since == verdict.observed_at;
        if turned {
            tracing::info!(
                shoot = &*self.shoot,
                outcome = verdict.outcome.as_str(),
                reason = verdict.failure,
                message = verdict.message,
                "verdict changed"
            );
            let span = trace::changed(&self.shared.tracer, &self.shoot, told, &verdict, started);
            self.traceparent = span.map(|span| span.traceparent().into());
        }
        verdict.traceparent.clone_from(&self.traceparent);
        self.report.verdict(verdict);
        if let (true, true, Some(crossing)) = (loss, turned, crossing) {
            DETECTION_LAG.record(&[], self.shared.now().since(crossing));
        }
        next_due
    }

    fn assessed(&mut self, inputs: &Inputs, found: Found, now: Moment) -> (Verdict, Moment, Option<Moment>) {
        let Found {
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
        let turn = self.streak.note(&found.outcome, self.teller.told(), thresholds);
        let seen = Seen {
            outcome: &turn.outcome,
            counting: turn.counting.is_some(),
            judged: found.judged,
            crossing: found.crossing,
            renew_interval: self.state.renew_interval(),
            look_ahead: found.look_ahead,
        };
        let pace = self.shared.pace(config);
        let mut next_due = schedule::after_assessment(now, pace, seen, &self.recent, rand::random());
        if let Some(failure) = throttled {
            count_throttled(&failure);
            let pause = schedule::after_failure(now, pace, &failure, 1, rand::random());
            next_due = next_due.max(pause);
        }
        let message = if found.outcome == Outcome::ExternalUnreachable {
            "The internal endpoint of the API server answers, the external one does not.".to_owned()
        } else {
            verdict::sentence(&found, turn.counting)
        };
        let valid_until = schedule::valid_until(next_due, config.probe_timeout);
        let verdict = self
            .teller
            .assessed(turn.outcome, message, found.evidence, now, valid_until);
        (verdict, next_due, found.crossing)
    }

    fn failed(
        &mut self,
        inputs: &Inputs,
        endpoint: Endpoint,
        failure: &Failure,
        now: Moment,
    ) -> (Verdict, Moment, Option<Moment>) {
        let outcome = failure.outcome();
        PROBES.inc(&[("outcome", outcome.as_str().to_owned())]);
        count_throttled(failure);
        self.report.failure(endpoint, failure);
        if failure.may_concern_kubelets() {
            self.state.interrupt();
        }
        if self.failing.replace(failure.as_str()) != Some(failure.as_str()) {
            tracing::warn!(shoot = &*self.shoot, reason = failure.as_str(), error = %failure, "probe failed");
        }
        self.failures = self.failures.saturating_add(1);
        self.streak.note(
            &outcome,
            self.teller.told(),
            Thresholds {
                failure: 1,
                success: 1,
            },
        );
        let next_due = schedule::after_failure(
            now,
            self.shared.pace(&inputs.config),
            failure,
            self.failures,
            rand::random(),
        );
        let valid_until = schedule::valid_until(next_due, inputs.config.probe_timeout);
        (self.teller.failed(failure, now, valid_until), next_due, None)
    }

    /// Looks at the leases, at the nodes and machines if they matter, and at the same time at the external endpoint if
    /// there is one.
    async fn look(&mut self, inputs: &Inputs) -> Result<Found, (Endpoint, Failure)> {
        let budget = Budget::starting_now(inputs.config.probe_timeout);
        let lost = self.teller.told().is_loss();
        let inside = look_inside(
            &self.shared,
            &mut self.internal,
            &mut self.state,
            inputs,
            lost,
            budget,
        );
        let of_internal = |failure| (Endpoint::Internal, failure);
        let Some(access) = &inputs.external else {
            self.external_lost = false;
            return inside.await.map_err(of_internal);
        };
        let mut inside = pin!(inside);
        let mut outside = pin!(self.external.answers(access, budget));
        let mut answered = None;
        let mut found = loop {
            tokio::select! {
                found = &mut inside => break found.map_err(of_internal)?,
                answer = &mut outside, if answered.is_none() => answered = Some(answer),
            }
        };
        // A loss need not wait for what the other endpoint says.
        if found.assessment.outcome.is_loss() {
            return Ok(found);
        }
        let answer = match answered {
            Some(answer) => answer,
            None => outside.await,
        };
        let Err(failure) = answer else {
            self.external_lost = false;
            return Ok(found);
        };
        // Nothing new is known: neither is a loss over because nobody looked.
        if matches!(failure, Failure::NoPlace(_)) && self.external_lost {
            return Err((Endpoint::External, failure));
        }
        // A kubeconfig that cannot be used says nothing about the endpoint: no loss, but not silence either.
        self.report.failure(Endpoint::External, &failure);
        self.external_lost = failure.outcome() == Outcome::ApiServerUnreachable;
        if self.external_lost {
            found.assessment.outcome = Outcome::ExternalUnreachable;
        }
        if matches!(failure, Failure::Throttled(_)) {
            found.throttled = Some(failure);
        }
        Ok(found)
    }
}

async fn look_inside<S: Source>(
    shared: &Shared,
    source: &mut S,
    state: &mut ProbeState,
    inputs: &Inputs,
    lost: bool,
    budget: Budget,
) -> Result<Found, Failure> {
    let done = |assessment| Found {
        assessment,
        throttled: None,
    };
    let rule = rule(inputs);
    let sent = shared.now();
    let listed = source.leases(&inputs.internal, budget).await?;
    let received = shared.now();
    let ahead = match state.leases(Listing { sent, received }, &listed, rule, lost) {
        Next::Done(assessment) => return Ok(done(assessment)),
        Next::ListNodes => None,
        Next::Ahead(assessment) => Some(assessment),
    };
    match (source.nodes_and_machines(&inputs.internal, budget).await, ahead) {
        (Ok((nodes, machines)), _) => {
            let roster = Roster::new(&nodes, &machines, &inputs.settings);
            Ok(done(state.judge(&listed, roster, rule, sent)))
        }
        // They did not matter yet.
        (Err(failure), Some(assessment)) => Ok(Found {
            assessment,
            throttled: failure.is_throttled().then_some(failure),
        }),
        (Err(failure), None) => Err(failure),
    }
}

fn count_throttled(failure: &Failure) {
    if failure.outcome() == Outcome::Throttled {
        THROTTLED.inc(&[]);
    }
}

fn rule(inputs: &Inputs) -> Rule {
    let grace = inputs
        .settings
        .node_monitor_grace
        .unwrap_or(inputs.config.kcm_node_monitor_grace_duration);
    Rule {
        expiry_age: expiry_age(grace),
        threshold: inputs.config.node_lease_failure_fraction,
    }
}
