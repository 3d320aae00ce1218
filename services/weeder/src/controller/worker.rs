//! Deletes the pods that the state gives, a bounded number at a time, while this replica leads.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use watchdog_api::policy::Mode;
use watchdog_kube::client::REQUEST_DEADLINE;
use watchdog_kube::events::EventSink;
use watchdog_kube::leadership::{Leadership, Permit};
use watchdog_runtime::work_queue::WorkItem;

use super::deletion::Deletion;
use super::notices;
use super::state::{SharedState, weeder_span};
use crate::cluster::deletion;
use crate::cluster::pace::Pace;
use crate::domain::deletion_result::DeletionResult;
use crate::metrics::{self, Discovered};

/// Deletions at one time, each on a connection of its own (kube's client speaks HTTP/1.1). Their number a second is
/// bounded by `--request-rate`.
const MAX_REQUESTS: usize = 32;

/// A deletion that would have less time than this is not sent.
const LEAST_DEADLINE: Duration = Duration::from_millis(500);

/// How often weeders begin and end, and pods are tried again.
const TICK: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct DeletionWorker {
    pub(crate) state: Arc<SharedState>,
    /// Permits each deletion.
    pub(crate) leadership: Leadership,
    /// Each deletion waits for its turn by `pace`.
    pub(crate) seed: kube::Client,
    pub(crate) pace: Pace,
    pub(crate) events: EventSink,
    pub(crate) mode: Mode,
}

impl DeletionWorker {
    /// Deletes until `stop` is cancelled, then waits for the requests that are under way; each has a deadline.
    ///
    /// # Errors
    /// When a request panics.
    pub(crate) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let queue = self.state.lock().queue.clone();
        let in_flight = metrics::REQUESTS.handle(());
        let mut leads = self.leadership.subscribe();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut requests = JoinSet::new();
        while !stop.is_cancelled() {
            in_flight.set(requests.len() as f64);
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = requests.join_next() => ended?,
                item = queue.next() => match item {
                    WorkItem::One(namespace) => self.reconcile(&namespace, &mut requests, &stop).await?,
                    WorkItem::All => self.state.lock().queue_all(),
                },
                // Nothing was taken while nobody led.
                Ok(()) = leads.changed() => self.state.lock().queue_all(),
                _ = ticks.tick() => self.state.lock().tick(self.state.now()),
            }
        }
        while let Some(ended) = requests.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Deletes one pod of a namespace that must be deleted; its other pods come after those of the namespaces that are
    /// queued by then. What this replica may not or cannot do now stays due, and is found by the next tick.
    async fn reconcile(
        &self,
        namespace: &str,
        requests: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let take = || self.state.lock().take(namespace, self.state.now());
        let is_due = self.state.lock().due(namespace, self.state.now()).is_some();
        if !self.leadership.is_leader() {
            self.state.lock().take_notices();
        } else if !is_due {
            let notices = self.state.lock().review(namespace, self.state.now());
            notices.into_iter().for_each(|notice| self.events.publish(notice));
        } else if self.mode != Mode::Protect {
            // The pod counts as deleted from now on, and nothing is sent.
            let kept_back = |deletion: &Deletion| self.answered(deletion, &DeletionResult::KeptBack);
            take().iter().for_each(kept_back);
        } else {
            while requests.len() >= MAX_REQUESTS {
                requests.join_next().await.transpose()?;
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.pace.turn() => {}
            }
            // What is decided now is sent now.
            if let Some((permit, within)) = self.permit()
                && let Some(deletion) = take()
            {
                requests.spawn(self.clone().delete(deletion, permit, within));
            }
        }
        Ok(())
    }

    /// The right to delete a pod, and within which time. Until it is dropped the Lease is not released, and nobody else
    /// leads.
    fn permit(&self) -> Option<(Permit, Duration)> {
        let permit = self.leadership.act()?;
        let covered = permit.until().saturating_duration_since(Instant::now());
        (covered >= LEAST_DEADLINE).then_some((permit, covered.min(REQUEST_DEADLINE)))
    }

    async fn delete(self, deletion: Deletion, permit: Permit, within: Duration) {
        let result = deletion::delete(&permit.client(&self.seed), &deletion.pod, within).await;
        drop(permit);
        self.answered(&deletion, &result);
        // A successor may have crashed before the answer about its predecessor came.
        self.state.lock().queue.add(&deletion.pod.key.namespace);
    }

    /// Takes up, counts and reports how a deletion was answered or, in mode observe, that it was not sent.
    fn answered(&self, deletion: &Deletion, result: &DeletionResult) {
        let Deletion { pod, recovery, .. } = deletion;
        let now = self.state.now();
        self.state.lock().answered(deletion, result, now);
        metrics::DELETIONS.inc(result.clone());
        let _span = weeder_span(&deletion.service).entered();
        if result.is_obsolete() {
            tracing::info!(pod = &*pod.key.name, why = %result, "pod left alone");
        } else if !result.is_done() {
            tracing::warn!(
                pod = &*pod.key.name,
                error = %result,
                "a deletion failed; trying again if the pod is still there"
            );
        } else {
            let discovered = match deletion.seen_at > recovery.at {
                true => Discovered::Later,
                false => Discovered::AtStart,
            };
            metrics::DELETION_DELAY.record(discovered, now.since(deletion.seen_at.max(recovery.at)));
            let observes = *result == DeletionResult::KeptBack;
            let message = match observes {
                true => {
                    "crash-looping pod not deleted because the mode is observe; it would have been deleted now"
                }
                false => "crash-looping pod deleted",
            };
            let crash = &pod.crash;
            tracing::info!(
                pod = &*pod.key.name,
                service_ready_time = %recovery.at,
                container = crash.container,
                exit_code = crash.exit_code,
                exit_reason = crash.reason,
                restarts = crash.restarts,
                "{message}"
            );
            if !observes {
                metrics::count_deleted_pod(&deletion.service.name, crash);
            }
            self.events.publish(notices::deletion(deletion, observes));
        }
    }
}
