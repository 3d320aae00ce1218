//! The items of the whole seed, as each replica answers with them: its own ones, and where the replicas share the seed,
//! those of the others merged with them.

mod answers;
mod known_replicas;
mod peers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use watchdog_runtime::publish::publish_if_changed;
use watchdog_runtime::service_builder::ServiceBuilder;

pub use self::answers::{ItemAnswer, scope};
use self::known_replicas::KnownReplicas;
pub use self::known_replicas::PeerState;
use self::peers::PeerHandler;
use crate::client::{Received, Update};
use crate::item::StreamItem;
use crate::message::{COMPLETE, Event};
use crate::replicas::{ReplicaEndpoints, ReplicaHandler, follow_replicas};
use crate::reports::{ReplicaReport, Reports};
use crate::server::{KeyUpdate, StreamStore};
use crate::wire::forward;

/// Reports that were left behind stay at most this much too long, and renewals that are due wait at most this long.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// How often a replica that starts checks whether it has all of its own items.
const START_INTERVAL: Duration = Duration::from_millis(100);

/// The items of this replica: how its state becomes what is sent.
pub trait OwnItems<M: StreamItem>: Send + Sync + 'static {
    /// The key of the state.
    type Key: Ord + Clone + Send + Sync + 'static;
    /// The state.
    type Value: Send + Sync + 'static;

    /// The state of this replica.
    fn store(&self) -> &StreamStore<Self::Key, Self::Value>;

    /// The key of an item.
    fn key(&self, key: &Self::Key) -> M::Key;

    /// An item as it is sent now.
    fn encode(&self, key: &Self::Key, value: &Self::Value) -> M;

    /// Returns false if it is certain that no replica has this item any more. Only asked where the items of several
    /// replicas are merged.
    fn exists(&self, _key: &M::Key) -> bool {
        false
    }

    /// Returns true if all items of this replica are there, by what says so of a key.
    fn is_filled(&self, has: &dyn Fn(&M::Key) -> bool) -> bool;
}

/// The items of the whole seed. Cheap to clone.
#[derive(Clone)]
pub struct SeedView<M: StreamItem> {
    me: Arc<str>,
    own: StreamStore<M::Key, ReplicaReport<M>>,
    whole: StreamStore<M::Key, ReplicaReport<M>>,
    reports: Arc<Mutex<HashMap<M::Key, Reports<M>>>>,
    replicas: watch::Sender<KnownReplicas>,
    answering: watch::Sender<BTreeSet<Arc<str>>>,
}

// === impl SeedView ===

impl<M: StreamItem> std::fmt::Debug for SeedView<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SeedView")
            .field("stream", &M::STREAM)
            .finish_non_exhaustive()
    }
}

impl<M: StreamItem> SeedView<M> {
    /// A view of the replica named `me`, without any items.
    #[must_use]
    pub fn new(me: Arc<str>) -> Self {
        Self {
            me,
            own: StreamStore::new(),
            whole: StreamStore::new(),
            reports: Arc::default(),
            replicas: watch::Sender::new(KnownReplicas::new(Instant::now())),
            answering: watch::Sender::default(),
        }
    }

    /// The other replicas that answer: all of their items are here and up to date.
    #[must_use]
    pub fn answering(&self) -> watch::Receiver<BTreeSet<Arc<str>>> {
        self.answering.subscribe()
    }

    /// Follows the items of this replica and of the others until the process drains. A replica without reachable peers
    /// answers from what it has; nothing here keeps it from being ready.
    pub fn spawn(&self, base: &ServiceBuilder, own: impl OwnItems<M>, peers: ReplicaEndpoints) {
        let (view, own) = (self.clone(), Arc::new(own));
        let handler = PeerHandler {
            view: view.clone(),
            own: own.clone(),
        };
        let follow = follow_replicas(
            Some(base.identity.clone()),
            peers,
            handler,
            base.readiness.clone(),
            base.draining.clone(),
        );
        base.tasks.critical(M::STREAM, async move {
            tokio::select! {
                _ = view.merge_own(&*own) => Ok(()),
                // Ends with the drain, and the rest with it.
                followed = follow => followed,
            }
        });
    }

    /// Follows the items of a program of which one replica leads, until the process drains. Only the leader is asked,
    /// so there is nothing to merge. `leads` says whether this one leads; each time it begins to, answers wait until it
    /// has all items.
    pub fn spawn_led(&self, base: &ServiceBuilder, own: impl OwnItems<M>, leads: watch::Receiver<bool>) {
        let (view, stop) = (self.clone(), base.draining.clone());
        view.replicas.send_modify(|replicas| replicas.listed = true);
        base.tasks.critical(M::STREAM, async move {
            // What the leader takes back is gone.
            let follow = view.follow_own(&own, |_| false);
            let led = async { tokio::join!(follow, view.follow_lead(leads, &own)) };
            stop.run_until_cancelled(led).await;
            Ok(())
        });
    }

    /// Takes over the items of this replica among those of the others. Never ends.
    async fn merge_own(&self, own: &impl OwnItems<M>) {
        let follow = self.follow_own(own, |key| own.exists(key));
        tokio::join!(follow, self.fill(own), self.tidy(own));
    }

    /// A replica that begins to lead has all items once it has those of the whole seed. Ends with the election.
    async fn follow_lead(&self, mut leads: watch::Receiver<bool>, own: &impl OwnItems<M>) {
        loop {
            let leads_now = *leads.borrow_and_update();
            self.replicas.send_modify(|replicas| replicas.filled = false);
            let filled = async {
                if leads_now {
                    self.fill(own).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                changed = leads.changed() => if changed.is_err() { return },
                () = filled => {}
            }
        }
    }

    /// Takes over the items of this replica. One that it takes back and that `stays` waits for that of another replica.
    /// Never ends.
    async fn follow_own(&self, own: &impl OwnItems<M>, stays: impl Fn(&M::Key) -> bool) {
        let (me, store) = (&self.me, own.store());
        let remove = |of: &M::Key| {
            self.own.remove(of);
            self.unset(me, of, stays(of));
        };
        let mut subscription = store.subscribe(|_| true);
        loop {
            let Ok((message, _)) = subscription.next().await else {
                subscription = store.subscribe(|_| true);
                continue;
            };
            match message.event {
                Event::Upsert(of, value) => {
                    let (of, item) = (own.key(&of), own.encode(&of, &value));
                    let as_of = Instant::now();
                    let age = forward(message.position.item_age.as_ref());
                    let report = ReplicaReport {
                        item: Arc::new(item),
                        as_of,
                        set_at: as_of.checked_sub(age).unwrap_or(as_of),
                    };
                    let changed = KeyUpdate::Changed(report.clone());
                    self.own.update(of.clone(), report.set_at, |_| changed);
                    self.set(me, of, report);
                }
                Event::Removed(of) => remove(&own.key(&of)),
                // What was removed before the snapshot. What is removed from then on comes as an event.
                Event::SnapshotComplete { .. } => {
                    let keys: HashSet<M::Key> = store.keys().iter().map(|of| own.key(of)).collect();
                    let before = self.own.keys().into_iter();
                    before.filter(|of| !keys.contains(of)).for_each(|of| remove(&of));
                }
                Event::Heartbeat { .. } => {}
            }
        }
    }

    /// Waits until this replica has all of its own items.
    async fn fill(&self, own: &impl OwnItems<M>) {
        let mut ticks = tokio::time::interval(START_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !own.is_filled(&|key| self.own.get(key).is_some()) {
            ticks.tick().await;
        }
        self.replicas.send_modify(|replicas| replicas.filled = true);
    }

    /// Tells a handler in this process of the items of this replica, as [`follow_replicas`] does over a connection.
    /// Ends with `stop`.
    pub async fn follow_in_process(&self, handler: impl ReplicaHandler<M>, stop: &CancellationToken) {
        handler.on_join(&self.me);
        handler.on_listed();
        let follow = async {
            let mut subscription = self.own.subscribe(|_| true);
            // Until it is complete.
            let mut snapshot = Some(BTreeMap::new());
            loop {
                let Ok((message, _)) = subscription.next().await else {
                    (subscription, snapshot) = (self.own.subscribe(|_| true), Some(BTreeMap::new()));
                    continue;
                };
                let update = match message.event {
                    Event::Upsert(key, report) => {
                        let received = Received {
                            value: report.now(),
                            sent_at: Instant::now(),
                            set_at: report.set_at,
                        };
                        match &mut snapshot {
                            Some(items) => {
                                items.insert(key, received);
                                continue;
                            }
                            None => Update::Upsert(key, received),
                        }
                    }
                    Event::Removed(key) => match &mut snapshot {
                        Some(items) => {
                            items.remove(&key);
                            continue;
                        }
                        None => Update::Removed(key),
                    },
                    Event::SnapshotComplete { .. } => match snapshot.take() {
                        Some(items) => Update::Snapshot(items, COMPLETE),
                        None => continue,
                    },
                    Event::Heartbeat { .. } => continue,
                };
                handler.on_update(&self.me, update);
            }
        };
        stop.run_until_cancelled(follow).await;
    }

    /// Drops what was left behind once its time is over or the item is gone, and publishes the renewals that are due,
    /// all at once: to wake every subscriber for each of them costs more than to send them.
    async fn tidy(&self, own: &impl OwnItems<M>) {
        let mut ticks = tokio::time::interval(TIDY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let others = self.replicas.borrow().others.clone();
            let is_lost = |replica: &str| others.get(replica) == Some(&PeerState::Outdated);
            self.reports.lock().retain(|key, reports| {
                if reports.tidy(now, || own.exists(key), is_lost) || reports.renewal_is_due(now) {
                    self.publish(key, reports, now);
                }
                !reports.is_empty()
            });
        }
    }

    fn set(&self, replica: &Arc<str>, key: M::Key, report: ReplicaReport<M>) {
        let mut all = self.reports.lock();
        let reports = all.entry(key.clone()).or_default();
        reports.upsert(replica, report);
        self.publish(&key, reports, Instant::now());
    }

    fn unset(&self, replica: &Arc<str>, key: &M::Key, keep: bool) {
        let mut all = self.reports.lock();
        if let Some(reports) = all.get_mut(key) {
            let now = Instant::now();
            if reports.remove(replica, keep, now) {
                self.publish(key, reports, now);
            }
            if reports.is_empty() {
                all.remove(key);
            }
        }
    }

    /// Removes the reports of a replica on all keys that it does not report.
    fn forget(
        &self,
        replica: &Arc<str>,
        is_reported: impl Fn(&M::Key) -> bool,
        keep: impl Fn(&M::Key) -> bool,
    ) {
        let now = Instant::now();
        self.reports.lock().retain(|key, reports| {
            if !is_reported(key) && reports.remove(replica, keep(key), now) {
                self.publish(key, reports, now);
            }
            !reports.is_empty()
        });
    }

    /// Publishes the report that counts; a renewal only when subscribers need it. Under the lock of the reports, so
    /// that two changes keep their order.
    fn publish(&self, key: &M::Key, reports: &mut Reports<M>, now: Instant) {
        let whole = &self.whole;
        let Some(newest) = reports.newest(now).cloned() else {
            whole.remove(key);
            return;
        };
        whole.update(key.clone(), newest.set_at, |shown| {
            if shown == Some(&newest) && !reports.renewal_is_due(now) {
                return KeyUpdate::None;
            }
            let renews = shown.is_some_and(|shown| newest.item.renews(&shown.item));
            if renews && reports.defer_renewal(now) {
                KeyUpdate::Renewed(newest)
            } else {
                reports.note_sent(&newest, now);
                KeyUpdate::Changed(newest)
            }
        });
    }

    fn note(&self, replica: &Arc<str>, state: PeerState) {
        self.replicas.send_if_modified(|replicas| {
            let known = replicas.others.get_mut(replica).filter(|known| **known != state);
            known.map(|known| *known = state).is_some()
        });
        self.note_answering();
    }

    fn note_answering(&self) {
        let replicas = self.replicas.borrow();
        let others = replicas.others.iter();
        let synced = others.filter(|(_, state)| **state == PeerState::Synced);
        let answering = synced.map(|(replica, _)| replica.clone()).collect();
        drop(replicas);
        publish_if_changed(&self.answering, &answering);
    }
}
