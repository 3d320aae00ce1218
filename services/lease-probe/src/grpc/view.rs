//! The verdicts of all replicas, merged.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use watchdog_api::unix_time::UnixTime;
use watchdog_proto::probe::v1 as pb;
use watchdog_watch_stream::client::{Received, Update};
use watchdog_watch_stream::message::Event;
use watchdog_watch_stream::server::StateStore;
use watchdog_watch_stream::verdicts::ReplicaHandler;

pub(crate) use super::merge::ReplicaVerdict;
use super::merge::ShootVerdicts;
use crate::domain::verdict::Verdict;

/// Verdicts that were left behind stay at most this much too long.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// The merged verdicts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct MergedVerdicts {
    /// The newest verdict of all replicas, by shoot.
    pub(crate) merged: StateStore<String, ReplicaVerdict>,
    by_shoot: Arc<Mutex<HashMap<String, ShootVerdicts>>>,
}

impl MergedVerdicts {
    /// Drops verdicts left behind once they have expired or their shoot is gone, until `stop` is cancelled.
    pub(crate) async fn tidy(
        self,
        exists: impl Fn(&str) -> bool,
        now: impl Fn() -> UnixTime,
        stop: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(TIDY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let now = now();
            self.by_shoot.lock().retain(|shoot, verdicts| {
                if verdicts.tidy(now, || exists(shoot)) {
                    self.publish(shoot, verdicts, now);
                }
                !verdicts.is_empty()
            });
        }
    }

    /// Takes over the verdicts of this replica until `stop` is cancelled.
    pub(crate) async fn follow_local(
        self,
        identity: Arc<str>,
        verdicts: StateStore<String, Verdict>,
        now: impl Fn() -> UnixTime,
        stop: CancellationToken,
    ) {
        let mut behind = true;
        let mut subscription = verdicts.subscribe(|_| true);
        loop {
            if std::mem::take(&mut behind) {
                subscription = verdicts.subscribe(|_| true);
                self.forget(&identity, now());
            }
            let next = tokio::select! {
                () = stop.cancelled() => return,
                next = subscription.next() => next,
            };
            match next.map(|(message, _)| message.event) {
                Ok(Event::Upsert(shoot, verdict)) => {
                    self.set(&identity, &shoot, ReplicaVerdict::Local(verdict), now())
                }
                Ok(Event::Removed(shoot)) => self.unset(&identity, &shoot, now()),
                Ok(Event::SnapshotComplete(_) | Event::Heartbeat) => {}
                Err(_) => behind = true,
            }
        }
    }

    fn set(&self, replica: &Arc<str>, shoot: &str, verdict: ReplicaVerdict, now: UnixTime) {
        let mut all = self.by_shoot.lock();
        let verdicts = all.entry(shoot.to_owned()).or_default();
        verdicts.upsert(replica, verdict, now);
        self.publish(shoot, verdicts, now);
    }

    fn unset(&self, replica: &Arc<str>, shoot: &str, now: UnixTime) {
        let mut all = self.by_shoot.lock();
        if let Some(verdicts) = all.get_mut(shoot) {
            if verdicts.remove(replica, now) {
                self.publish(shoot, verdicts, now);
            }
            if verdicts.is_empty() {
                all.remove(shoot);
            }
        }
    }

    fn forget(&self, replica: &Arc<str>, now: UnixTime) {
        self.forget_except(replica, &BTreeMap::new(), now);
    }

    fn forget_except(
        &self,
        replica: &Arc<str>,
        keep: &BTreeMap<String, Received<pb::Verdict>>,
        now: UnixTime,
    ) {
        self.by_shoot.lock().retain(|shoot, verdicts| {
            if !keep.contains_key(shoot) && verdicts.remove(replica, now) {
                self.publish(shoot, verdicts, now);
            }
            !verdicts.is_empty()
        });
    }

    /// Publishes what counts of the verdicts on a shoot.
    fn publish(&self, shoot: &str, verdicts: &ShootVerdicts, now: UnixTime) {
        match verdicts.newest(now) {
            Some(newest) => self.merged.upsert(shoot.to_owned(), newest.clone()),
            None => self.merged.remove(&shoot.to_owned()),
        }
    }
}

fn remote(received: Received<pb::Verdict>) -> ReplicaVerdict {
    ReplicaVerdict::Remote(Arc::new(received.value), received.sent_at)
}

/// Receives the verdicts of the other replicas for a view.
#[derive(Clone)]
pub(crate) struct PeerHandler<N> {
    pub(crate) view: MergedVerdicts,
    pub(crate) now: N,
}

impl<N: Fn() -> UnixTime + Clone + Send + Sync + 'static> ReplicaHandler for PeerHandler<N> {
    fn on_join(&self, _replica: &Arc<str>) {}

    fn on_leave(&self, replica: &Arc<str>) {
        self.view.forget(replica, (self.now)());
    }

    fn on_update(&self, replica: &Arc<str>, update: Update<String, pb::Verdict>) {
        let (view, now) = (&self.view, (self.now)());
        match update {
            Update::Snapshot(items) => {
                view.forget_except(replica, &items, now);
                for (shoot, received) in items {
                    view.set(replica, &shoot, remote(received), now);
                }
            }
            Update::Upsert(shoot, received) => view.set(replica, &shoot, remote(received), now),
            Update::Removed(shoot) => view.unset(replica, &shoot, now),
            // Its verdicts stay until it sends others or leaves; each has its own validity.
            Update::Lost(_) => {}
        }
    }
}
