//! The probing of one shoot, from its start to its stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::kubeconfig::ShootAccess;
use watchdog_api::prober::ProberConfig;
use watchdog_runtime::clock::Clock;

use super::connection::Connection;
use super::{machines, shoot_api};
use crate::domain::assessment::{Assessment, Leases, Rule};
use crate::domain::candidates::Roster;
use crate::domain::moment::Moment;
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::probe::{Next, ProbeState};
use crate::domain::renewals::{Listing, expiry_age};
use crate::domain::schedule::{self, Pace};
use crate::domain::verdict::{self, Streak, Teller, Thresholds, Verdict};
use crate::metrics::{DETECTION_LAG, PROBE_DURATION, PROBES, SCHEDULE_LAG, THROTTLED};

/// What a probe depends on. A change takes effect on the running probe.
#[derive(Debug, Clone)]
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

/// A kubeconfig with the version of the Secret that it came from, or why it cannot be used.
pub type Access = Result<Arc<Kubeconfig>, Failure>;

/// A usable kubeconfig.
#[derive(Debug)]
pub struct Kubeconfig {
    /// Tells one content from another.
    pub digest: u64,
    /// How to reach the API server.
    pub access: ShootAccess,
}

/// What all probes of the process share.
pub struct Shared {
    /// Where the machines are listed.
    pub seed: kube::Client,
    /// The clock of the process.
    pub clock: Clock,
    /// Name of this replica.
    pub identity: Arc<str>,
}

impl Shared {
    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(self.clock.now_micros())
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

/// Probes one shoot.
pub struct Prober<R> {
    shoot: Arc<str>,
    shared: Arc<Shared>,
    inputs: watch::Receiver<Inputs>,
    report: R,
    state: ProbeState,
    streak: Streak,
    teller: Teller,
    failures: u32,
    internal: Option<Client>,
    external: Option<Client>,
}

/// A connection and the kubeconfig that it was made from.
struct Client {
    digest: u64,
    connection: Connection,
}

impl<R: Report> Prober<R> {
    /// Prepares the probing of a shoot.
    pub fn new(shoot: Arc<str>, shared: Arc<Shared>, inputs: watch::Receiver<Inputs>, report: R) -> Self {
        let teller = Teller::new(shared.identity.clone(), shared.now());
        Self {
            shoot,
            shared,
            inputs,
            report,
            state: ProbeState::default(),
            streak: Streak::default(),
            teller,
            failures: 0,
            internal: None,
            external: None,
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
        let started = Instant::now();
        let found = self.look(inputs).await;
        PROBE_DURATION.record(&[], started.elapsed());
        let now = self.shared.now();
        let (verdict, next_due, crossing) = match found {
            Ok(assessment) => self.assessed(inputs, assessment, now),
            Err(failure) => self.failed(inputs, &failure, now),
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
        }
        self.report.verdict(verdict);
        if let (true, true, Some(crossing)) = (loss, turned, crossing) {
            DETECTION_LAG.record(&[], self.shared.now().since(crossing));
        }
        next_due
    }

    fn assessed(
        &mut self,
        inputs: &Inputs,
        found: Assessment,
        now: Moment,
    ) -> (Verdict, Moment, Option<Moment>) {
        PROBES.inc(&[("outcome", found.outcome.as_str().to_owned())]);
        self.failures = 0;
        let config = &inputs.config;
        let thresholds = Thresholds {
            failure: config.failure_threshold,
            success: config.success_threshold,
        };
        let turn = self.streak.note(&found.outcome, self.teller.told(), thresholds);
        let next_due = schedule::after_assessment(
            now,
            pace(config),
            &turn.outcome,
            turn.counting.is_some(),
            found.crossing,
            self.state.renew_interval(),
            rand::random(),
        );
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
        failure: &Failure,
        now: Moment,
    ) -> (Verdict, Moment, Option<Moment>) {
        let outcome = failure.outcome();
        PROBES.inc(&[("outcome", outcome.as_str().to_owned())]);
        if outcome == Outcome::Throttled {
            THROTTLED.inc(&[]);
        }
        self.report.failure(Endpoint::Internal, failure);
        if failure.may_concern_kubelets() {
            self.state.interrupt();
        }
        if self.failures == 0 {
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
        let next_due =
            schedule::after_failure(now, pace(&inputs.config), failure, self.failures, rand::random());
        let valid_until = schedule::valid_until(next_due, inputs.config.probe_timeout);
        (self.teller.failed(failure, now, valid_until), next_due, None)
    }

    /// Looks at the leases, at the nodes and machines if they matter, and at the external endpoint if there is one.
    async fn look(&mut self, inputs: &Inputs) -> Result<Assessment, Failure> {
        let rule = rule(inputs);
        let limit = inputs.config.probe_timeout;
        let internal = client(&mut self.internal, &inputs.internal)?;
        let sent = Moment(self.shared.clock.now_micros());
        let listed = shoot_api::within(limit, internal, shoot_api::list_leases).await?;
        let received = Moment(self.shared.clock.now_micros());
        let mut assessment = match self.state.leases(Listing { sent, received }, &listed, rule) {
            Next::Done(assessment) => assessment,
            Next::ListNodes => self.judge(inputs, &listed, rule).await?,
        };
        let connected = !assessment.outcome.is_loss();
        if let (true, Some(access)) = (connected, &inputs.external) {
            // A kubeconfig that cannot be used says nothing about the endpoint: no loss, but not silence either.
            match self.external_answers(access).await {
                Ok(()) => {}
                Err(failure) => {
                    self.report.failure(Endpoint::External, &failure);
                    if failure.outcome() == Outcome::ApiServerUnreachable {
                        assessment.outcome = Outcome::ExternalUnreachable;
                    }
                }
            }
        }
        Ok(assessment)
    }

    async fn judge(&mut self, inputs: &Inputs, listed: &Leases, rule: Rule) -> Result<Assessment, Failure> {
        let limit = inputs.config.probe_timeout;
        let internal = client(&mut self.internal, &inputs.internal)?;
        let nodes = shoot_api::within(limit, internal, shoot_api::list_nodes);
        let (nodes, machines) = tokio::join!(nodes, machines::list(&self.shared.seed, &self.shoot));
        let roster = Roster::new(&nodes?, &machines?, &inputs.settings);
        Ok(self.state.judge(listed, &roster, rule, self.shared.now()))
    }

    async fn external_answers(&mut self, access: &Access) -> Result<(), Failure> {
        shoot_api::version(client(&mut self.external, access)?).await
    }
}

/// The connection for a kubeconfig, a new one when the kubeconfig has changed.
fn client<'a>(slot: &'a mut Option<Client>, access: &Access) -> Result<&'a mut Connection, Failure> {
    let kubeconfig = access.as_ref().map_err(Clone::clone)?;
    if slot
        .as_ref()
        .is_none_or(|client| client.digest != kubeconfig.digest)
    {
        let connection = Connection::new(&kubeconfig.access)?;
        return Ok(&mut slot
            .insert(Client {
                digest: kubeconfig.digest,
                connection,
            })
            .connection);
    }
    match slot {
        Some(client) => Ok(&mut client.connection),
        None => Err(Failure::Kubeconfig("there is none".to_owned())),
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

fn pace(config: &ProberConfig) -> Pace {
    Pace {
        interval: config.probe_interval,
        jitter: config.backoff_jitter_factor,
        failure_back_off: config
            .internal_probe_failure_back_off_duration
            .max(Duration::from_secs(1)),
    }
}
