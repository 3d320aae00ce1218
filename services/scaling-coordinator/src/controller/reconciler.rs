//! The reconciliation of one shoot: look, wait for a turn, read what a write rests on, write, look again.
//!
//! [`Reconciler::look`] only computes. A conflict, a lost answer, a watch that lags or is half open, and a new leader
//! need no rule of their own: what is there is read, and the next look derives what follows from it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::OptionFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::Instrument as _;
use watchdog_api::policy::Mode;
use watchdog_api::prober::ResourceRef;
use watchdog_kube::events::{EventSink, Notice};
use watchdog_watch_stream::server::StreamStore;

use super::events;
use super::history;
use super::inputs::DecisionInputs;
use super::limiter::{RequestLimiter, Turn};
use super::shoot::ShootMemory;
use crate::cluster::requests::{LEAST_DEADLINE, ResourceRequests, deadline, read_failed, refused};
use crate::domain::Direction;
use crate::domain::next_step::{Alert, NextStep, earliest, next_step};
use crate::domain::observed::Dependent;
use crate::domain::request::Request;
use crate::domain::request::RequestOutcome;
use crate::domain::resource_step::ResourceWrite;
use crate::domain::status::{FlowState, ShootScaling};
use crate::metrics::FAILURES;

/// After a write that met a newer version or got no answer the resource is read within this time.
const READ_AFTER_WRITE: Duration = Duration::from_secs(5);

/// Most rounds of requests of one turn: four times reads and the writes that rest on them. The next level often follows
/// at once, or the removal of meltdown-protection-active and the next level. After these it is another shoot's turn.
const ROUNDS_OF_A_TURN: u32 = 8;

pub(crate) struct Reconciler {
    pub(crate) inputs: Arc<DecisionInputs>,
    pub(crate) requests: ResourceRequests,
    pub(crate) limiter: RequestLimiter,
    /// The states of the shoots, while this replica leads.
    pub(crate) states: StreamStore<String, ShootScaling>,
    pub(crate) events: EventSink,
    /// Kubernetes Events also about shoots in mode observe.
    pub(crate) observe_events: bool,
}

impl Reconciler {
    /// Computes what a shoot needs now, and publishes its state.
    fn look(&self, shoot: &Arc<str>, memory: &mut ShootMemory) -> NextStep {
        let now = Instant::now();
        let mode = self.inputs.mode(shoot, now);
        let decision = self.inputs.decide(shoot, now);
        memory.keep_mode(now, mode);
        memory.keep_decision(now, &decision);
        if memory.hints.begins(decision.direction) {
            self.inputs.resources.forget_unlisted(shoot);
        }
        let mut dependents = self.inputs.resources.dependents(shoot);
        for dependent in &mut dependents {
            dependent.read = memory.reads.covers(now, &dependent.config.reference);
        }
        let hints = &mut memory.hints;
        let mut next = next_step(now, decision.direction, mode.mode, &dependents, hints);
        next.wake = earliest(next.wake, decision.again_at);
        for write in &next.kept_back {
            if memory.is_news(write) {
                let outcome = RequestOutcome::KeptBack;
                memory.note_write(now, write, &outcome);
                self.report_write(shoot, write, &outcome, &decision.reason);
            }
        }
        memory.keep_status(now, &next.status);
        if mode.mode == Mode::Observe {
            for other in memory.others.find(&dependents) {
                let (resource, by, direction) = (&other.reference, &other.writer, other.direction.as_str());
                let (from, to) = (other.from, other.to);
                tracing::info!(%resource, by, direction, from, to, "another writer scaled a resource");
                // Gardener itself scales what hibernates.
                if decision.direction != Some(Direction::Release) {
                    memory.shown.incidents.note_other(now, &other);
                }
            }
        }
        self.report_alerts(shoot, mode.mode, &next.alerts);
        self.report_warnings(shoot, memory, &dependents);
        let is_done =
            next.status.state == FlowState::Settled || decision.direction == Some(Direction::Release);
        let is_over = is_done && next.status.held_down() == 0;
        if is_over && let Some(ended) = memory.shown.incidents.end(now, decision.direction) {
            history::log(shoot, &ended);
            history::measure(&ended);
            self.publish_notice(mode.mode, events::incident_ended(shoot, ended.summary()));
        }
        self.states
            .upsert_unless(shoot.to_string(), memory.shown.clone(), |old, new| old == new);
        next
    }

    /// Reconciles a shoot until it is gone, this replica no longer acts on it, or the process drains. `news` says that
    /// something about the shoot has changed. Returns the shoot.
    pub(super) async fn run(self: Arc<Self>, shoot: Arc<str>, news: Arc<Notify>) -> Arc<str> {
        let (now, draining) = (Instant::now(), &self.inputs.draining);
        let replica = self.inputs.leadership.identity().clone();
        let mut memory = ShootMemory::new(ShootScaling::new(now, self.inputs.mode(&shoot, now), replica));
        let uid = self.inputs.uid(&shoot);
        while !draining.is_cancelled() {
            if !self.inputs.acts_on(&shoot) || self.inputs.uid(&shoot) != uid {
                self.states.remove(&shoot.to_string());
                break;
            }
            let next = self.look(&shoot, &mut memory);
            if let Some(direction) = next.work() {
                // In memory only while it runs: most shoots never need it.
                Box::pin(self.act(&shoot, &mut memory, direction, &news)).await;
                continue;
            }
            let wake = OptionFuture::from(next.wake.map(sleep_until));
            tokio::select! {
                () = draining.cancelled() => {}
                () = news.notified() => {}
                Some(()) = wake => {}
            }
        }
        shoot
    }

    /// Waits for a turn in this direction, and uses it.
    async fn act(&self, shoot: &Arc<str>, memory: &mut ShootMemory, direction: Direction, news: &Notify) {
        let Some(turn) = self.wait_for_turn(shoot, memory, direction, news).await else {
            return;
        };
        memory.reads.begin_round(Instant::now());
        for _ in 0..ROUNDS_OF_A_TURN {
            if !self.use_turn(shoot, memory, direction, &turn).await {
                break;
            }
        }
        memory.reads.end_turn();
    }

    /// Waits for a turn; none if nothing is left to do, or in another direction. A shoot keeps its place while
    /// it waits, whatever changes.
    async fn wait_for_turn(
        &self,
        shoot: &Arc<str>,
        memory: &mut ShootMemory,
        direction: Direction,
        news: &Notify,
    ) -> Option<Turn<'_>> {
        let turn = self.limiter.turn(direction);
        tokio::pin!(turn);
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => return Some(turn),
                () = self.inputs.draining.cancelled() => return None,
                () = news.notified() => {
                    let next = self.look(shoot, memory);
                    if next.work() != Some(direction) {
                        return None;
                    }
                }
            }
        }
    }

    /// Makes the requests that are due. Those that rest on the Cluster come in the next round if it must be read first.
    /// Returns false if there is nothing to do in the direction of the turn.
    async fn use_turn(
        &self,
        shoot: &Arc<str>,
        memory: &mut ShootMemory,
        direction: Direction,
        turn: &Turn<'_>,
    ) -> bool {
        // Time has passed.
        let next = self.look(shoot, memory);
        if next.work() != Some(direction) || self.inputs.draining.is_cancelled() {
            return false;
        }
        let mut requests = next.requests;
        let rests_on_cluster = next.prepares_write || requests.iter().any(Request::needs_cluster);
        let reads_cluster = rests_on_cluster && !memory.reads.covers_cluster(Instant::now());
        requests.retain(|request| !reads_cluster || !request.needs_cluster());
        let cluster = OptionFuture::from(reads_cluster.then(|| self.confirm(shoot, turn)));
        let (confirmed, ()) = tokio::join!(cluster, self.make(shoot, memory, requests, turn));
        let now = Instant::now();
        match confirmed {
            Some(Ok(())) => memory.reads.note_cluster(now),
            Some(Err(outcome)) => {
                let mut due = self.look(shoot, memory).requests;
                due.retain(Request::needs_cluster);
                for request in &due {
                    memory.hints.begin(now, request);
                    memory.hints.end(now, request, &outcome);
                }
            }
            None if next.prepares_write => {}
            None => memory.reads.begin_round(now),
        }
        true
    }

    async fn confirm(&self, shoot: &str, turn: &Turn<'_>) -> Result<(), RequestOutcome> {
        let _in_flight = turn.begin_request();
        let confirmed = self.inputs.clusters.confirm(shoot).await;
        confirmed.map_err(|error| {
            tracing::warn!(%error, "the Cluster could not be read before a write; trying again");
            read_failed("reading the Cluster before the write", &error)
        })
    }

    /// Makes requests together, and reports each when it ends.
    async fn make(
        &self,
        shoot: &Arc<str>,
        memory: &mut ShootMemory,
        requests: Vec<Request>,
        turn: &Turn<'_>,
    ) {
        let (mut running, mode) = (FuturesUnordered::new(), memory.shown.mode.mode);
        let reason = memory.shown.reason.clone();
        for request in requests {
            let within = memory.hints.begin(Instant::now(), &request);
            running.push(async move {
                let outcome = match &request.write {
                    None => self.read(shoot, &request.reference, within, turn).await,
                    Some(change) => {
                        let write = self.write(shoot, &request, change, mode, within, turn);
                        write.instrument(events::span(shoot, &request)).await
                    }
                };
                (request, outcome)
            });
        }
        while let Some((request, outcome)) = running.next().await {
            let (now, resource) = (Instant::now(), &request.reference);
            if outcome == RequestOutcome::Done {
                memory.reads.note(now, resource);
            } else if request.write.is_some() {
                // What came of the write is not known.
                memory.reads.forget(resource);
            } else if let Some(error) = outcome.error() {
                tracing::warn!(%resource, error, "a read of a resource failed; reading it again later");
            }
            memory.hints.end(now, &request, &outcome);
            if request.write.is_none() {
                continue;
            }
            memory.note_write(now, &request, &outcome);
            self.report_write(shoot, &request, &outcome, &reason);
            if !running.is_empty() {
                self.look(shoot, memory);
            }
        }
    }

    async fn read(
        &self,
        shoot: &str,
        reference: &ResourceRef,
        within: Duration,
        turn: &Turn<'_>,
    ) -> RequestOutcome {
        let _in_flight = turn.begin_request();
        self.requests.read(shoot, reference, within).await
    }

    /// Makes a write, if it is still allowed. This is the only place where the resources of a shoot are written. If the
    /// answer does not show what came of it, a read does.
    async fn write(
        &self,
        shoot: &str,
        request: &Request,
        (write, against): &(ResourceWrite, Arc<str>),
        mode: Mode,
        within: Duration,
        turn: &Turn<'_>,
    ) -> RequestOutcome {
        let reference = &request.reference;
        let permit = match self.inputs.authorize(shoot, request, mode) {
            Ok(permit) => permit,
            Err(why) => return RequestOutcome::Cancelled { why },
        };
        let covered = permit.until().saturating_duration_since(Instant::now());
        if covered < LEAST_DEADLINE {
            return refused("the leadership of this replica is about to expire".to_owned());
        }
        let within = deadline(within).min(covered);
        let in_flight = turn.begin_request();
        let outcome = self
            .requests
            .write(&permit, shoot, reference, write, against, within)
            .await;
        drop((in_flight, permit));
        let version = self.inputs.resources.version(reference, shoot);
        if outcome == RequestOutcome::Done && version.as_ref() != Some(against)
            || matches!(outcome, RequestOutcome::Refused { .. })
        {
            return outcome;
        }
        let read = self.read(shoot, reference, READ_AFTER_WRITE, turn).await;
        if let Some(error) = read.error() {
            tracing::warn!(error, "the result of a write could not be read; deciding again");
        }
        let observed = self.inputs.resources.observed(reference, shoot);
        let seen = observed.seen().filter(|seen| seen.resource_version != *against);
        let applied = seen.and_then(|seen| write.shows_in(seen)) == Some(true);
        if applied && matches!(outcome, RequestOutcome::Unknown { .. }) {
            tracing::info!("a write without an answer was applied");
            return RequestOutcome::Done;
        }
        outcome
    }

    /// Reports a write that has ended or was kept back.
    fn report_write(&self, shoot: &Arc<str>, write: &Request, outcome: &RequestOutcome, reason: &str) {
        events::span(shoot, write).in_scope(|| events::ended(outcome));
        let about = || self.inputs.resources.about(&write.reference, shoot);
        let notices = match outcome {
            RequestOutcome::Done => events::events(about(), write, reason),
            RequestOutcome::KeptBack if self.observe_events => {
                vec![events::kept_back(about(), write, reason)]
            }
            _ => Vec::new(),
        };
        notices.into_iter().for_each(|notice| self.events.publish(notice));
    }

    fn report_alerts(&self, shoot: &str, mode: Mode, alerts: &[Alert]) {
        for alert in alerts {
            let (resource, error, direction) = (&alert.reference, &alert.why, alert.direction.as_str());
            let about = self.inputs.resources.about(resource, shoot);
            let notice = if alert.failed {
                FAILURES.inc(alert.direction);
                tracing::warn!(%resource, direction, error, "a resource failed its level; trying again");
                events::failed(about, alert.direction, alert.why.clone())
            } else {
                tracing::warn!(
                    %resource,
                    direction,
                    "a resource that is not optional is absent; continuing without it"
                );
                events::missing(about, alert.why.clone())
            };
            self.publish_notice(mode, notice);
        }
    }

    /// Reports what is newly wrong with the annotations of a Shoot and of its resources.
    fn report_warnings(&self, shoot: &str, memory: &mut ShootMemory, dependents: &[Dependent]) {
        let of_resource = |dependent: &Dependent| {
            let warning = dependent.observed.seen()?.warning()?;
            Some((Some(dependent.config.reference.clone()), warning))
        };
        let of_shoot = self.inputs.malformed_policy(shoot);
        let of_shoot = of_shoot.into_iter().map(|warning| (None, warning));
        let warnings = dependents.iter().filter_map(of_resource).chain(of_shoot);
        for (resource, warning) in memory.new_warnings(warnings.collect()) {
            let notice = match resource {
                Some(resource) => {
                    tracing::warn!(%resource, warning, "the annotation ignore-scaling is invalid");
                    let about = self.inputs.resources.about(&resource, shoot);
                    events::invalid_ignore_scaling(about, &warning)
                }
                None => {
                    tracing::warn!(warning, "an annotation of a Shoot is malformed");
                    events::malformed_policy(shoot, warning)
                }
            };
            self.publish_notice(memory.shown.mode.mode, notice);
        }
    }

    /// Publishes a Kubernetes Event about a shoot in this mode.
    fn publish_notice(&self, mode: Mode, notice: Notice) {
        if mode != Mode::Observe || self.observe_events {
            self.events.publish(notice);
        }
    }
}
