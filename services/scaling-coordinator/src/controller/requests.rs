//! The requests to the seed: they begin when there is room and the rate allows it, and are reported when they end.

use std::sync::Arc;

use futures::FutureExt;
use tokio::task::{Id, JoinError};
use tokio::time::Instant;
use tracing::Instrument as _;
use watchdog_runtime::trace::Span;

use super::inputs::MODE_CHANGED;
use super::request_queue::RequestBatch;
use super::{Controller, events, traces};
use crate::domain::flow::{Action, ActionKind, ActionOutcome};
use crate::metrics::{UNDER_WAY, WAITING};

/// Requests on the seed at once. A healthy API server answers within 20 ms, so this carries more than any sensible
/// rate; a slow one is not flooded.
const MAX_REQUESTS: usize = 64;

/// A request under way, and why it is made.
pub(super) struct InFlightRequest {
    pub(super) shoot: Arc<str>,
    /// [`ShootRecord::generation`].
    pub(super) generation: u64,
    action: Action,
    reason: String,
    sent: Instant,
    span: Option<Span>,
}

impl Controller {
    /// Makes the requests for which there is room now. Returns when to come back if only the rate prevents more.
    pub(super) fn make_requests(&mut self) -> Option<Instant> {
        let mut next_token = None;
        while self.requests.len() < MAX_REQUESTS && self.queue.len() > 0 {
            if let Err(at) = self.bucket.check(Instant::now()) {
                next_token = Some(at);
                break;
            }
            let Some((shoot, batch)) = self.queue.pop() else {
                break;
            };
            if let Some(batch) = self.of_this_epoch(&shoot, batch) {
                self.send(&shoot, batch);
            }
        }
        // Counts below 2^52.
        WAITING.set((), self.queue.len() as f64);
        UNDER_WAY.set((), self.requests.len() as f64);
        next_token
    }

    /// The batch, or the one that takes its place if the epoch has changed since it was queued: its writes would be
    /// cancelled (S3). The shoot keeps its turn, because one watch that fails in a mass loss concerns all that wait.
    fn of_this_epoch(&mut self, shoot: &Arc<str>, batch: RequestBatch) -> Option<RequestBatch> {
        if batch.epoch == self.inputs.ownership_epoch() {
            return Some(batch);
        }
        self.reconcile(shoot);
        self.queue.remove(shoot)
    }

    /// Sends the requests of a turn. Each write is checked once more right before it is sent.
    fn send(&mut self, shoot: &Arc<str>, batch: RequestBatch) {
        let Some(known) = self.shoots.get_mut(shoot) else {
            return;
        };
        self.bucket.take(requests_for(&batch.actions));
        let confirmed = {
            let (writer, of_shoot) = (self.writer.clone(), shoot.clone());
            async move { writer.confirm(&of_shoot).await }.boxed().shared()
        };
        let (now, epoch, generation, mode) = (Instant::now(), batch.epoch, known.generation, known.mode);
        for action in batch.actions {
            let within = known.start(now, &action);
            let observed = self.inputs.resources.observed(&action.reference, shoot);
            let disposition = known.disposition(&action, &observed);
            let (inputs, writer) = (self.inputs.clone(), self.writer.clone());
            let (of_shoot, to_make, confirmed) = (shoot.clone(), action.clone(), confirmed.clone());
            let request = async move {
                let authorize = || Ok((inputs.authorize(&of_shoot, &to_make, epoch, mode)?, disposition));
                writer
                    .run(&of_shoot, &to_make, within, confirmed, authorize)
                    .await
            };
            let request = request.instrument(events::span(shoot, &action));
            let under_way = InFlightRequest {
                shoot: shoot.clone(),
                generation,
                reason: batch.reason.clone(),
                sent: now,
                span: self.traces.request(shoot, &action),
                action,
            };
            self.under_way
                .insert(self.requests.spawn(request).id(), under_way);
        }
        // Shows that they are under way.
        self.reconcile(shoot);
    }

    pub(super) fn ended(&mut self, ended: Result<(Id, ActionOutcome), JoinError>) {
        let (id, outcome) = ended.unwrap_or_else(|error| {
            tracing::error!(%error, "a request to the seed panicked: report this defect of scaling-coordinator");
            let outcome = ActionOutcome::Unknown {
                why: format!("this program failed: {error}"),
                retry_after: None,
            };
            (error.id(), outcome)
        });
        let Some(InFlightRequest {
            shoot,
            generation,
            action,
            reason,
            sent,
            span,
        }) = self.under_way.remove(&id)
        else {
            return;
        };
        let outcome = self.kept_back(&shoot, generation, &action, outcome);
        traces::ended(span, &outcome);
        events::span(&shoot, &action).in_scope(|| events::ended(&action.kind, &outcome));
        if matches!(action.kind, ActionKind::Write(_)) {
            self.publish_events(&shoot, &action, &outcome, &reason);
            self.write_counts.count(&shoot, action.direction, &outcome);
            if let Some(history) = &self.history {
                history.write_ended(&shoot, &action, &outcome, sent.elapsed());
            }
        }
        let known = self.shoots.get_mut(&shoot);
        if let Some(known) = known.filter(|known| known.generation == generation) {
            known.ended(Instant::now(), &action, reason, outcome);
        }
        self.reconcile(&shoot);
    }

    /// Shows a write that was kept back to the flow that made it, unless its shoot has another mode by now.
    fn kept_back(
        &mut self,
        shoot: &Arc<str>,
        generation: u64,
        action: &Action,
        outcome: ActionOutcome,
    ) -> ActionOutcome {
        if outcome != ActionOutcome::KeptBack {
            return outcome;
        }
        let observed = self.inputs.resources.observed(&action.reference, shoot);
        let known = self.shoots.get_mut(shoot);
        match known.filter(|known| known.generation == generation) {
            Some(known) => known.keep_back(action, &observed),
            None => ActionOutcome::Cancelled { why: MODE_CHANGED },
        }
    }
}

/// Requests that these actions take together: one for the Cluster, if any of them needs it, and one for each action. (A
/// read of a kind that does not show its replicas takes another one, which is not known before.)
fn requests_for(actions: &[Action]) -> u32 {
    let confirms = u32::from(actions.iter().any(|action| action.kind.needs_cluster()));
    u32::try_from(actions.len())
        .unwrap_or(u32::MAX)
        .saturating_add(confirms)
}
