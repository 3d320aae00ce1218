//! Drives the flows of all shoots with what the indexes, the verdicts and the timers bring.
//!
//! One task owns the flows of all shoots. It reconciles a shoot only when something about it has changed or a timer has
//! expired. Reconciling only computes. Requests ([`requests`]) run in other tasks, at most 64 at once and within the
//! configured rate, and the shoots take turns.

mod events;
pub(crate) mod history;
pub(crate) mod inputs;
pub(crate) mod releaser;
mod request_queue;
mod requests;
mod shoot;
pub(crate) mod traces;
pub(crate) mod verdicts;
pub(crate) mod write_counts;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::OptionFuture;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use watchdog_api::policy::{Mode, ModeInForce};
use watchdog_kube::events::{EventSink, Notice};
use watchdog_runtime::token_bucket::TokenBucket;
use watchdog_runtime::trace::Tracer;
use watchdog_runtime::work_queue::{WorkItem, WorkQueue};
use watchdog_watch_stream::server::StateStore;

use self::history::HistoryStore;
use self::inputs::DecisionInputs;
use self::request_queue::{RequestBatch, RequestQueue};
use self::requests::InFlightRequest;
use self::shoot::{Reconciled, ShootRecord};
use self::traces::Traces;
use self::write_counts::WriteCounts;
use crate::cluster::writer::ResourceWriter;
use crate::domain::flow::{Action, ActionKind, ActionOutcome, earliest};
use crate::domain::overview::ShootScaling;
use crate::domain::{Direction, direction_name};
use crate::metrics::FAILURES;

/// The time that requests under way get when the process stops. Below the grace period of the drain, above the deadline
/// of one request. No request begins in that time.
const LAST_REQUESTS: Duration = Duration::from_secs(15);

pub(crate) struct Controller {
    inputs: Arc<DecisionInputs>,
    work_queue: Arc<WorkQueue>,
    writer: Arc<ResourceWriter>,
    states: StateStore<String, ShootScaling>,
    write_counts: Arc<WriteCounts>,
    events: EventSink,
    shoots: HashMap<Arc<str>, ShootRecord>,
    timers: DelayQueue<Arc<str>>,
    queue: RequestQueue,
    bucket: TokenBucket,
    requests: JoinSet<ActionOutcome>,
    under_way: HashMap<Id, InFlightRequest>,
    traces: Traces,
    history: Option<Arc<HistoryStore>>,
    /// Kubernetes Events also about shoots in mode observe.
    observe_events: bool,
    generations: u64,
}

impl Controller {
    /// An engine that makes at most `request_rate` requests a second.
    pub(crate) fn new(
        inputs: Arc<DecisionInputs>,
        work_queue: Arc<WorkQueue>,
        writer: ResourceWriter,
        events: EventSink,
        request_rate: u32,
    ) -> Self {
        let rate = f64::from(request_rate);
        Self {
            traces: Traces::new(Tracer::off(), inputs.verdicts.clone()),
            inputs,
            work_queue,
            writer: Arc::new(writer),
            states: StateStore::new(),
            write_counts: Arc::default(),
            events,
            shoots: HashMap::new(),
            timers: DelayQueue::new(),
            queue: RequestQueue::default(),
            // A tenth of a second's requests at once.
            bucket: TokenBucket::new(rate, rate / 10.0, Instant::now()),
            requests: JoinSet::new(),
            under_way: HashMap::new(),
            history: None,
            observe_events: false,
            generations: 0,
        }
    }

    /// The states of the shoots that this replica owns.
    pub(crate) fn states(&self) -> StateStore<String, ShootScaling> {
        self.states.clone()
    }

    pub(crate) fn write_counts(&self) -> Arc<WriteCounts> {
        self.write_counts.clone()
    }

    /// Goes on with the traces of verdicts.
    pub(crate) fn traced(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// Records what happens.
    pub(crate) fn recorded(mut self, history: Arc<HistoryStore>) -> Self {
        self.history = Some(history);
        self
    }

    /// Publishes Kubernetes Events also about shoots in mode observe.
    pub(crate) fn observe_events(mut self, publish: bool) -> Self {
        self.observe_events = publish;
        self
    }

    /// Runs until the process drains; then lets the requests end that are under way.
    pub(crate) async fn run(mut self) -> anyhow::Result<()> {
        let draining = self.inputs.draining.clone();
        let work_queue = self.work_queue.clone();
        loop {
            let next_token = self.make_requests();
            let token = next_token.map(tokio::time::sleep_until);
            tokio::select! {
                () = draining.cancelled() => break,
                Some(ended) = self.requests.join_next_with_id() => self.ended(ended),
                Some(expired) = self.timers.next() => {
                    let shoot = expired.into_inner();
                    if let Some(known) = self.shoots.get_mut(&shoot) {
                        known.timer = None;
                    }
                    self.reconcile(&shoot);
                }
                wake = work_queue.next() => match wake {
                    WorkItem::One(shoot) => self.reconcile(&shoot),
                    WorkItem::All => self.wake_all(),
                },
                Some(()) = OptionFuture::from(token) => {}
            }
        }
        // Their outcomes are still reported.
        let rest = async {
            while let Some(ended) = self.requests.join_next_with_id().await {
                self.ended(ended);
            }
        };
        if tokio::time::timeout(LAST_REQUESTS, rest).await.is_err() {
            tracing::warn!(
                "requests to the seed were still under way when the process stopped; their outcome is not known"
            );
        }
        Ok(())
    }

    /// Reconciles every shoot, one after the other, interleaved with all other work.
    fn wake_all(&self) {
        for shoot in self.inputs.clusters.names() {
            self.work_queue.add(&shoot);
        }
        for shoot in self.shoots.keys() {
            self.work_queue.add(shoot);
        }
    }

    /// The record of a shoot in this mode. Another mode is like a restart of the coordinator: what is known of the flow
    /// is forgotten, and what follows is derived from what is really there.
    fn record(&mut self, shoot: &Arc<str>, mode: ModeInForce, now: Instant) -> &mut ShootRecord {
        let before = self.shoots.get(shoot).map(|known| known.mode);
        if before != Some(mode.mode) {
            if let Some(before) = before {
                let (from, to) = (before.as_str(), mode.mode.as_str());
                tracing::info!(
                    from,
                    to,
                    from_annotation = mode.from_annotation,
                    "the mode of a shoot has changed"
                );
            }
            if let Some(mut known) = self.shoots.remove(shoot) {
                known.set_timer(&mut self.timers, shoot, None);
            }
            self.generations = self.generations.wrapping_add(1);
        }
        let generation = self.generations;
        self.shoots
            .entry(shoot.clone())
            .or_insert_with(|| ShootRecord::new(now, generation, mode.mode))
    }

    /// Reconciles a shoot: queues its requests, sets its timer and publishes its state.
    fn reconcile(&mut self, shoot: &Arc<str>) {
        // At the level of errors, so that no filter takes the field away from a line that it lets pass.
        let _span = tracing::error_span!("reconcile", shoot = &**shoot).entered();
        if !self.inputs.owns_existing(shoot) {
            self.forget(shoot);
            return;
        }
        let (now, epoch) = (Instant::now(), self.inputs.ownership_epoch());
        let config = self.inputs.config();
        let decision = self.inputs.decide(shoot, now);
        let dependents = self.inputs.resources.dependents(&config, shoot);
        let mode = self.inputs.mode(shoot, now);
        let known = self.record(shoot, mode, now);
        known.keep_epoch(epoch);
        let mut reconciled = known.reconcile(now, &decision, &dependents);
        let wake = earliest(reconciled.steps.wake, decision.again_at);
        let (since, generation) = (known.since, known.generation);
        if let Some(known) = self.shoots.get_mut(shoot) {
            known.set_timer(&mut self.timers, shoot, wake);
        }
        let actions = std::mem::take(&mut reconciled.steps.actions);
        // A shoot that went and came back may have a request under way of which its flow knows nothing (S3). The end of
        // that request reconciles the shoot again.
        let mut others = self.under_way.values();
        let waits = others.any(|other| other.shoot == *shoot && other.generation != generation);
        match decision.direction {
            Some(direction) if !actions.is_empty() && !waits => {
                let reason = decision.reason.clone();
                let batch = RequestBatch {
                    actions,
                    direction,
                    epoch,
                    reason,
                };
                self.queue.push(shoot, batch);
            }
            _ => drop(self.queue.remove(shoot)),
        }
        self.warn_of_policy(shoot, mode.mode);
        self.report(shoot, decision.direction, mode.mode, &reconciled);
        let scaling = ShootScaling {
            direction: decision
                .direction
                .filter(|direction| *direction != Direction::Release),
            held: decision.held,
            reason: decision.reason,
            since,
            mode,
            status: reconciled.steps.status,
            owner: self.inputs.membership.identity().clone(),
        };
        self.traces.reconciled(shoot, &scaling);
        self.publish(shoot, scaling);
    }

    /// Reports what a reconciliation has found, in the log and as Kubernetes Events.
    fn report(&self, shoot: &str, direction: Option<Direction>, mode: Mode, found: &Reconciled) {
        for other in &found.others {
            let (resource, by, direction) = (&other.reference, &other.writer, other.direction.as_str());
            let (from, to) = (other.from, other.to);
            tracing::info!(%resource, by, direction, from, to, "another writer scaled a resource");
            if let Some(history) = &self.history {
                history.other_wrote(shoot, other);
            }
        }
        for (action, reason) in &found.applied {
            tracing::info!(resource = %action.reference, "a write without an answer was applied");
            if let Some(history) = &self.history {
                history.write_ended(shoot, action, &ActionOutcome::Done, Duration::ZERO);
            }
            self.publish_events(shoot, action, &ActionOutcome::Done, reason);
        }
        for (reference, why) in &found.steps.alerts {
            // While a shoot is held, no level runs that could fail.
            if let Some(direction) = direction {
                FAILURES.inc(direction);
            }
            let name = direction_name(direction);
            tracing::warn!(
                resource = %reference,
                direction = name,
                error = why,
                "a resource failed its level and is tried again"
            );
            let about = self.inputs.resources.about(reference, shoot);
            self.publish_notice(mode, events::failed(about, direction, why));
        }
        for (reference, warning) in &found.warnings {
            tracing::warn!(resource = %reference, warning, "the annotation ignore-scaling is invalid");
            let about = self.inputs.resources.about(reference, shoot);
            self.publish_notice(mode, events::invalid_ignore_scaling(about, warning));
        }
    }

    /// Reports what is newly wrong with the annotations of a Shoot.
    fn warn_of_policy(&mut self, shoot: &str, mode: Mode) {
        let malformed = self.inputs.malformed_policy(shoot);
        let Some(known) = self.shoots.get_mut(shoot) else {
            return;
        };
        let before = std::mem::replace(&mut known.malformed_policy, malformed.clone());
        for warning in malformed.iter().filter(|warning| !before.contains(warning)) {
            tracing::warn!(warning, "an annotation of a Shoot is malformed");
            self.publish_notice(mode, events::malformed_policy(shoot, warning));
        }
    }

    /// Publishes a Kubernetes Event about a shoot in this mode.
    fn publish_notice(&self, mode: Mode, notice: Notice) {
        if mode != Mode::Observe || self.observe_events {
            self.events.publish(notice);
        }
    }

    fn publish(&self, shoot: &str, scaling: ShootScaling) {
        let key = shoot.to_owned();
        if let Some(history) = &self.history
            && self.states.get(&key).is_none_or(|old| *old != scaling)
        {
            history.published(shoot, &scaling);
        }
        self.states.upsert_unless(key, scaling, |old, new| old == new);
    }

    /// Publishes the Kubernetes Events about a write that was applied, or would have been.
    fn publish_events(&self, shoot: &str, action: &Action, outcome: &ActionOutcome, reason: &str) {
        let ActionKind::Write(write) = &action.kind else {
            return;
        };
        let about = || self.inputs.resources.about(&action.reference, shoot);
        let notices = match outcome {
            ActionOutcome::Done => events::events(about(), action, write, reason),
            ActionOutcome::KeptBack if self.observe_events => vec![events::kept_back(about(), write, reason)],
            _ => Vec::new(),
        };
        notices.into_iter().for_each(|notice| self.events.publish(notice));
    }

    /// A shoot is gone or another replica's. Its requests under way end by themselves: each was checked before it
    /// began.
    fn forget(&mut self, shoot: &Arc<str>) {
        self.queue.remove(shoot);
        if let Some(mut known) = self.shoots.remove(shoot) {
            known.set_timer(&mut self.timers, shoot, None);
        }
        self.write_counts.forget(shoot);
        if let Some(history) = &self.history {
            history.forget(shoot);
        }
        self.traces.forget(shoot);
        self.states.remove(&shoot.to_string());
    }
}
