//! Reconciles the shoots: each at most once at a time, when something about it has changed or a timer has expired.
//!
//! ```text
//! watches, verdicts, timers --> work queue --> Controller --look--> nothing to do: done
//!                                                         --act---> a task of the shoot: turn, reads, writes
//! ```
//!
//! A look only computes, so the task of the controller does it by itself. Only what needs requests gets a task of its
//! own, which waits for its turn ([`limiter`]).

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

use futures::StreamExt;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;
use tracing::Instrument as _;
use watchdog_runtime::work_queue::WorkItem;

use self::reconciler::Reconciler;
use self::shoot::ShootMemory;
use crate::cluster::object_index::IndexSignals;

/// The time that requests under way get when the process stops. Below the grace period of the drain, above the deadline
/// of one request. No request begins in that time.
const LAST_REQUESTS: Duration = Duration::from_secs(15);

/// The longest delay of a shoot's timer.
const LONGEST_TIMER: Duration = Duration::from_secs(3600);

pub(crate) struct Controller {
    reconciler: Arc<Reconciler>,
    signals: IndexSignals,
    shoots: HashMap<Arc<str>, ReconciledShoot>,
    timers: DelayQueue<Arc<str>>,
    tasks: JoinSet<(Arc<str>, ShootMemory)>,
}

/// A shoot that the controller reconciles.
#[derive(Default)]
struct ReconciledShoot {
    /// None while its task has it.
    memory: Option<ShootMemory>,
    /// Tells its task that something has changed.
    news: Arc<Notify>,
    /// The time of the next reconciliation.
    timer: Option<(Key, Instant)>,
}

impl Controller {
    pub(crate) fn new(reconciler: Arc<Reconciler>, signals: IndexSignals) -> Self {
        Self {
            reconciler,
            signals,
            shoots: HashMap::new(),
            timers: DelayQueue::new(),
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
                Some(ended) = self.tasks.join_next() => self.ended(ended)?,
                Some(expired) = self.timers.next() => {
                    let shoot = expired.into_inner();
                    if let Some(known) = self.shoots.get_mut(&shoot) {
                        known.timer = None;
                    }
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
        for shoot in listed.iter().chain(self.shoots.keys()) {
            self.signals.work_queue.add(shoot);
        }
    }

    /// Reconciles a shoot: looks, and starts its task if requests must be made.
    fn reconcile(&mut self, shoot: &Arc<str>) {
        // At the level of errors, so that no filter takes the field away from a line that it lets pass.
        let span = tracing::error_span!("reconcile", shoot = &**shoot);
        let inputs = &self.reconciler.inputs;
        let is_ours = inputs.acts_on(shoot);
        let known = match self.shoots.get_mut(shoot) {
            Some(known) => known,
            None if !is_ours => return,
            None => {
                let now = Instant::now();
                let new = ReconciledShoot {
                    memory: Some(ShootMemory::new(now, inputs.mode(shoot, now).mode)),
                    ..ReconciledShoot::default()
                };
                self.shoots.entry(shoot.clone()).or_insert(new)
            }
        };
        let Some(mut memory) = known.memory.take() else {
            // Its end reconciles the shoot again.
            known.news.notify_one();
            return;
        };
        if !is_ours {
            set_timer(&mut known.timer, &mut self.timers, shoot, None);
            self.shoots.remove(shoot);
            self.reconciler.forget(shoot);
            return;
        }
        let next = span.in_scope(|| self.reconciler.look(shoot, &mut memory));
        if next.requests.is_empty() {
            known.memory = Some(memory);
            set_timer(&mut known.timer, &mut self.timers, shoot, next.wake);
            return;
        }
        set_timer(&mut known.timer, &mut self.timers, shoot, None);
        let (reconciler, shoot, news) = (self.reconciler.clone(), shoot.clone(), known.news.clone());
        let act = async move {
            reconciler.act(&shoot, &mut memory, &news).await;
            (shoot, memory)
        };
        self.tasks.spawn(act.instrument(span));
    }

    fn ended(&mut self, ended: Result<(Arc<str>, ShootMemory), JoinError>) -> anyhow::Result<()> {
        // A task that panics is a defect, and what it has sent is not known: the next start reads everything.
        let (shoot, memory) = ended?;
        if let Some(known) = self.shoots.get_mut(&shoot) {
            known.memory = Some(memory);
        }
        self.reconcile(&shoot);
        Ok(())
    }
}

/// Sets the time of the next reconciliation if nothing else triggers one before.
fn set_timer(
    timer: &mut Option<(Key, Instant)>,
    timers: &mut DelayQueue<Arc<str>>,
    shoot: &Arc<str>,
    at: Option<Instant>,
) {
    // A configuration may ask for delays of years, which the timer queue does not take.
    let at = at.map(|at| at.min(Instant::now() + LONGEST_TIMER));
    if timer.map(|(_, set)| set) == at {
        return;
    }
    if let Some((key, _)) = timer.take() {
        timers.try_remove(&key);
    }
    *timer = at.map(|at| (timers.insert_at(shoot.clone(), at), at));
}
