//! Reconciles the shoots, each in a task of its own: when something about it has changed, or at a time that it asked
//! for.
//!
//! ```text
//! watches, verdicts --> work queue --> Controller --> task of the shoot: look --> nothing to do: wait
//!                                                                             --> wait for a turn, read, write
//! ```

pub(crate) mod collector;
mod events;
mod history;
pub(crate) mod inputs;
pub(crate) mod limiter;
pub(crate) mod reconciler;
pub(crate) mod releaser;
mod shoot;
pub(crate) mod verdicts;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::Instrument as _;
use watchdog_runtime::work_queue::WorkItem;

use self::reconciler::Reconciler;
use crate::cluster::object_index::IndexSignals;

/// The time that requests under way get when the process stops. Below the grace period of the drain, above the deadline
/// of one request. No request begins in that time.
const LAST_REQUESTS: Duration = Duration::from_secs(15);

pub(crate) struct Controller {
    reconciler: Arc<Reconciler>,
    signals: IndexSignals,
    /// Tells the task of a shoot that something has changed.
    news: HashMap<Arc<str>, Arc<Notify>>,
    /// Each ends with the name of its shoot.
    tasks: JoinSet<Arc<str>>,
}

impl Controller {
    pub(crate) fn new(reconciler: Arc<Reconciler>, signals: IndexSignals) -> Self {
        Self {
            reconciler,
            signals,
            news: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Runs until the process drains; then lets the requests end that are under way.
    ///
    /// # Errors
    /// When the seed's etcd was restored from a backup: the process must start anew, to read everything.
    pub(crate) async fn run(mut self) -> anyhow::Result<()> {
        let draining = self.reconciler.inputs.draining.clone();
        let IndexSignals { work_queue, restored } = self.signals.clone();
        loop {
            tokio::select! {
                () = draining.cancelled() => break,
                () = restored.cancelled() => {
                    anyhow::bail!("the seed's etcd was restored from a backup: restarting to read everything again");
                }
                Some(ended) = self.tasks.join_next() => {
                    // A task that panics is a defect, and what it has sent is not known: the next start reads
                    // everything.
                    let shoot = ended?;
                    self.news.remove(&shoot);
                    // What has changed since its last look must not be lost.
                    self.reconcile(&shoot);
                }
                item = work_queue.next() => match item {
                    WorkItem::One(shoot) => self.reconcile(&shoot),
                    WorkItem::All => self.add_all(),
                },
            }
        }
        // Their outcomes are still reported.
        let rest = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_REQUESTS, rest).await.is_err() {
            tracing::warn!(
                "requests to the seed were still in flight when the process stopped; their outcome is unknown"
            );
        }
        Ok(())
    }

    /// Reconciles every shoot, one after the other, interleaved with all other work.
    fn add_all(&self) {
        let listed = self.reconciler.inputs.clusters.names();
        for shoot in listed.iter().chain(self.news.keys()) {
            self.signals.work_queue.add(shoot);
        }
    }

    /// Wakes the task of a shoot, or starts one.
    fn reconcile(&mut self, shoot: &Arc<str>) {
        if let Some(news) = self.news.get(shoot) {
            news.notify_one();
        } else if self.reconciler.inputs.acts_on(shoot) {
            let news = Arc::new(Notify::new());
            self.news.insert(shoot.clone(), news.clone());
            // At the level of errors, so that no filter takes the field away from a line that it lets pass.
            let span = tracing::error_span!("reconcile", shoot = &**shoot);
            let task = self.reconciler.clone().run(shoot.clone(), news);
            self.tasks.spawn(task.instrument(span));
        }
    }
}
