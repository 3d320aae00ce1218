//! The items of all replicas of a service, merged by each of them, and the answers about them.

mod answers;
mod known_replicas;
mod peers;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use watchdog_runtime::service_builder::ServiceBuilder;

pub use self::answers::{ItemAnswer, ItemPage, scope};
use self::known_replicas::{KnownReplicas, Leadership, PeerState};
use self::peers::PeerHandler;
use crate::item::FeedItem;
use crate::message::Event;
use crate::replicas::{ReplicaEndpoints, follow_replicas};
use crate::reports::{ReplicaReport, Reports};
use crate::server::{KeyUpdate, StateStore};

/// Reports that were left behind stay at most this much too long, and renewals that are due wait at most this long.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// How often a replica that starts checks whether it has all of its own items.
const START_INTERVAL: Duration = Duration::from_millis(100);

/// Where the items of this replica come from.
pub struct OwnItems<K, V, E, G, X, F> {
    /// The state of this replica.
    pub store: StateStore<K, V>,
    /// An item as it is sent now.
    pub encode: E,
    /// The key of an item.
    pub key: G,
    /// Returns false if it is certain that no replica has this item any more.
    pub exists: X,
    /// Returns true if all items of this replica are there, by what says so of a key.
    pub is_filled: F,
}

/// The merged items. Cheap to clone.
pub struct MergedView<M: FeedItem> {
    inner: Arc<ViewState<M>>,
}

struct ViewState<M: FeedItem> {
    me: Arc<str>,
    own: StateStore<M::Key, ReplicaReport<M>>,
    merged: StateStore<M::Key, ReplicaReport<M>>,
    reports: Mutex<HashMap<M::Key, Reports<M>>>,
    replicas: watch::Sender<KnownReplicas>,
}

// === impl MergedView ===

impl<M: FeedItem> std::fmt::Debug for MergedView<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MergedView")
            .field("feed", &M::FEED)
            .finish_non_exhaustive()
    }
}

impl<M: FeedItem> Clone for MergedView<M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<M: FeedItem> MergedView<M> {
    /// A view of the replica named `me`, without any items.
    #[must_use]
    pub fn new(me: Arc<str>) -> Self {
        Self {
            inner: Arc::new(ViewState {
                me,
                own: StateStore::new(),
                merged: StateStore::new(),
                reports: Mutex::default(),
                replicas: watch::Sender::new(KnownReplicas::new(Instant::now())),
            }),
        }
    }

    /// Follows the items of this replica and of the others until the process drains. A replica without reachable peers
    /// answers from what it has; nothing here keeps it from being ready.
    pub fn spawn<K, V>(
        &self,
        base: &ServiceBuilder,
        own: OwnItems<
            K,
            V,
            impl Fn(&K, &V) -> M + Send + 'static,
            impl Fn(&K) -> M::Key + Send + 'static,
            impl Fn(&M::Key) -> bool + Clone + Send + Sync + 'static,
            impl Fn(&dyn Fn(&M::Key) -> bool) -> bool + Send + Sync + 'static,
        >,
        peers: ReplicaEndpoints,
    ) where
        K: Ord + Clone + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let OwnItems {
            store,
            encode,
            key,
            exists,
            is_filled,
        } = own;
        let (view, stop) = (self.clone(), base.draining.clone());
        let leader = peers.leader();
        if leader.is_some() {
            view.lead(Leadership::Standby(None));
        }
        let handler = PeerHandler {
            view: view.clone(),
            exists: exists.clone(),
        };
        let follow = follow_replicas(
            Some(base.identity.clone()),
            peers,
            handler,
            base.readiness.clone(),
            stop.clone(),
        );
        base.tasks.critical(M::FEED, async move {
            let filled = async {
                view.fill(&is_filled, &stop).await;
                if let Some(leader) = leader {
                    view.follow_leader(leader, &is_filled, &stop).await;
                }
            };
            let followed = tokio::join!(
                view.follow_own(&store, encode, key, &exists, &stop),
                filled,
                view.tidy(&exists, &stop),
                follow,
            );
            followed.3
        });
    }

    /// Takes over the items of this replica until `stop` is cancelled.
    async fn follow_own<K: Ord + Clone, V>(
        &self,
        store: &StateStore<K, V>,
        encode: impl Fn(&K, &V) -> M,
        key: impl Fn(&K) -> M::Key,
        exists: &impl Fn(&M::Key) -> bool,
        stop: &CancellationToken,
    ) {
        let me = &self.inner.me;
        let mut subscription = store.subscribe(|_| true);
        let mut snapshot = Some(HashSet::new());
        loop {
            let next = tokio::select! {
                () = stop.cancelled() => return,
                next = subscription.next() => next,
            };
            let Ok((message, _)) = next else {
                subscription = store.subscribe(|_| true);
                snapshot = Some(HashSet::new());
                continue;
            };
            match message.event {
                Event::Upsert(of, value) => {
                    let (of, item) = (key(&of), encode(&of, &value));
                    if let Some(keys) = &mut snapshot {
                        keys.insert(of.clone());
                    }
                    let as_of = Instant::now();
                    let age = message.position.item_age.unwrap_or_default();
                    let report = ReplicaReport {
                        item: Arc::new(item),
                        as_of,
                        set_at: as_of.checked_sub(age).unwrap_or(as_of),
                    };
                    let changed = KeyUpdate::Changed(report.clone());
                    self.inner.own.update(of.clone(), report.set_at, |_| changed);
                    self.set(me, of, report);
                }
                Event::Removed(of) => {
                    let of = key(&of);
                    self.inner.own.remove(&of);
                    self.unset(me, &of, M::MOVES && exists(&of));
                }
                Event::SnapshotComplete { .. } => {
                    let keys = snapshot.take().unwrap_or_default();
                    for gone in self.inner.own.keys().into_iter().filter(|of| !keys.contains(of)) {
                        self.inner.own.remove(&gone);
                    }
                    self.forget(me, |of| keys.contains(of), |of| M::MOVES && exists(of));
                }
                Event::Heartbeat { .. } => {}
            }
        }
    }

    /// Waits until this replica has all of its own items.
    async fn fill(&self, is_filled: impl Fn(&dyn Fn(&M::Key) -> bool) -> bool, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.until_filled(is_filled) => {
                self.inner.replicas.send_modify(|replicas| replicas.filled = true);
            }
        }
    }

    async fn until_filled(&self, is_filled: impl Fn(&dyn Fn(&M::Key) -> bool) -> bool) {
        let mut ticks = tokio::time::interval(START_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_filled(&|key| self.inner.own.contains(key)) {
            ticks.tick().await;
        }
    }

    /// Follows who leads. A replica that begins to lead has all items once it has those of the whole seed.
    async fn follow_leader(
        &self,
        mut leader: watch::Receiver<Option<Arc<str>>>,
        is_filled: &impl Fn(&dyn Fn(&M::Key) -> bool) -> bool,
        stop: &CancellationToken,
    ) {
        loop {
            let current = leader.borrow_and_update().clone();
            let leads = current.as_ref() == Some(&self.inner.me);
            self.lead(if leads {
                Leadership::Started(Instant::now())
            } else {
                Leadership::Standby(current)
            });
            let filled = async {
                if leads {
                    self.until_filled(is_filled).await;
                    self.lead(Leadership::Leads);
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                // The election ends with the process.
                changed = leader.changed() => if changed.is_err() { return },
                () = filled => {}
            }
        }
    }

    fn lead(&self, leadership: Leadership) {
        self.inner
            .replicas
            .send_modify(|replicas| replicas.leadership = leadership);
    }

    /// Drops what was left behind once its time is over or the item is gone, and publishes the renewals that are due,
    /// all at once: to wake every subscriber for each of them costs more than to send them.
    async fn tidy(&self, exists: &impl Fn(&M::Key) -> bool, stop: &CancellationToken) {
        let mut ticks = tokio::time::interval(TIDY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let now = Instant::now();
            let others = self.inner.replicas.borrow().others.clone();
            let is_lost = |replica: &str| others.get(replica) == Some(&PeerState::Outdated);
            self.inner.reports.lock().retain(|key, reports| {
                if reports.tidy(now, || exists(key), is_lost) || reports.renewal_is_due(now) {
                    self.publish(key, reports, now);
                }
                !reports.is_empty()
            });
        }
    }

    fn set(&self, replica: &Arc<str>, key: M::Key, report: ReplicaReport<M>) {
        let mut all = self.inner.reports.lock();
        let reports = all.entry(key.clone()).or_default();
        reports.upsert(replica, report);
        self.publish(&key, reports, Instant::now());
    }

    fn unset(&self, replica: &Arc<str>, key: &M::Key, keep: bool) {
        let mut all = self.inner.reports.lock();
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
        self.inner.reports.lock().retain(|key, reports| {
            if !is_reported(key) && reports.remove(replica, keep(key), now) {
                self.publish(key, reports, now);
            }
            !reports.is_empty()
        });
    }

    /// Publishes the report that counts; a renewal only when subscribers need it. Under the lock of the reports, so
    /// that two changes keep their order.
    fn publish(&self, key: &M::Key, reports: &mut Reports<M>, now: Instant) {
        let merged = &self.inner.merged;
        let Some(newest) = reports.newest().cloned() else {
            merged.remove(key);
            return;
        };
        merged.update(key.clone(), newest.set_at, |shown| {
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
        self.inner.replicas.send_if_modified(|replicas| {
            let known = replicas.others.get_mut(replica).filter(|known| **known != state);
            known.map(|known| *known = state).is_some()
        });
    }
}
