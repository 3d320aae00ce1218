//! The items of all replicas of a service, merged by each of them, and the answers about them.

mod known_replicas;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tonic::{Extensions, Status};
use watchdog_proto::feed::v1 as pb;
use watchdog_runtime::request::PageRequest;
use watchdog_runtime::rpc_error::{ErrorReason, error, invalid, invalid_field};
use watchdog_runtime::service_builder::ServiceBuilder;

use self::known_replicas::{KnownReplicas, PeerState, WAIT_FOR_REPLICAS};
use crate::client::{Received, Update};
use crate::item::{FeedItem, FeedKey};
use crate::message::{Completeness, Event, Message};
use crate::replicas::{ReplicaEndpoints, ReplicaHandler, follow_replicas};
use crate::reports::{ReplicaReport, Reports};
use crate::server::{CompletenessChanges, Effect, SnapshotTerms, StateStore};
use crate::stream::{Responses, Streams};
use crate::wire::{self, WatchResponse};

/// Reports that were left behind stay at most this much too long, and renewals that are due wait at most this long.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// How often a replica that starts checks whether it has all of its own items.
const START_INTERVAL: Duration = Duration::from_millis(100);

/// A page ends before it grows larger than this: clients take messages of 4 MiB by default, and a weeder that was
/// refused often may fill 20 KiB.
const MAX_PAGE_BYTES: usize = 2 * 1024 * 1024;

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

/// A page of items.
#[derive(Debug)]
pub struct ItemPage<M> {
    /// The items in the order of their keys.
    pub items: Vec<M>,
    /// Token of the next page; empty on the last one.
    pub next_page_token: String,
    /// Number of items over all pages.
    pub total_size: i32,
    /// When the answer was sent.
    pub position: Option<pb::Position>,
    /// Lists what the answer lacks.
    pub completeness: Option<pb::Completeness>,
}

/// An answer about one item.
#[derive(Debug)]
pub struct ItemAnswer<M> {
    /// The item, if there is one.
    pub item: Option<M>,
    /// When the answer was sent.
    pub position: Option<pb::Position>,
    /// Lists what the answer lacks.
    pub completeness: Option<pb::Completeness>,
}

/// Reads the scope of a request.
///
/// # Errors
/// INVALID_ARGUMENT when there is no such scope.
pub fn scope(scope: i32) -> Result<pb::Scope, Status> {
    pb::Scope::try_from(scope).map_err(|_| {
        let why = format!("{scope} is unknown: leave the field out for the whole seed, or use SCOPE_LOCAL");
        invalid_field("scope", &why)
    })
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
            impl Fn(&dyn Fn(&M::Key) -> bool) -> bool + Send + 'static,
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
            let followed = tokio::join!(
                view.follow_own(&store, encode, key, &exists, &stop),
                view.fill(is_filled, &stop),
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
                    let changed = Effect::Changed(report.clone());
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
        let mut ticks = tokio::time::interval(START_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_filled(&|key| self.inner.own.contains(key)) {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
        }
        self.inner.replicas.send_modify(|replicas| replicas.filled = true);
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

    /// Publishes the report that counts; a renewal only when subscribers need it. Under the lock of the reports, so that
    /// two changes keep their order.
    fn publish(&self, key: &M::Key, reports: &mut Reports<M>, now: Instant) {
        let merged = &self.inner.merged;
        let Some(newest) = reports.newest().cloned() else {
            merged.remove(key);
            return;
        };
        merged.update(key.clone(), newest.set_at, |shown| {
            if shown == Some(&newest) && !reports.renewal_is_due(now) {
                return Effect::None;
            }
            let renews = shown.is_some_and(|shown| newest.item.renews(&shown.item));
            if renews && reports.defer_renewal(now) {
                Effect::Renewed(newest)
            } else {
                reports.note_sent(&newest, now);
                Effect::Changed(newest)
            }
        });
    }

    fn note(&self, replica: &Arc<str>, state: PeerState) {
        self.inner.replicas.send_if_modified(|replicas| {
            let known = replicas.others.get_mut(replica).filter(|known| **known != state);
            known.map(|known| *known = state).is_some()
        });
    }

    /// Waits until an answer of this scope is complete, or there is no use in waiting. Returns what it lacks.
    fn settled(&self, scope: pb::Scope) -> impl Future<Output = Completeness> + Send + use<M> {
        let (me, mut replicas) = (self.inner.me.clone(), self.inner.replicas.subscribe());
        let latest = Instant::now() + WAIT_FOR_REPLICAS;
        async move {
            loop {
                let (completeness, wait) = match scope {
                    pb::Scope::Unspecified => replicas.borrow_and_update().completeness(&me),
                    pb::Scope::Local => replicas.borrow_and_update().own_completeness(&me),
                };
                let until = wait.map_or(latest, |until| until.min(latest));
                if wait.is_none() || until <= Instant::now() {
                    return completeness;
                }
                tokio::select! {
                    changed = replicas.changed() => if changed.is_err() { return completeness },
                    () = tokio::time::sleep_until(until) => {}
                }
            }
        }
    }

    /// The completeness of an answer of this scope, whenever it may have changed.
    fn completeness_changes(&self, scope: pb::Scope) -> CompletenessChanges {
        let start = (self.clone(), self.inner.replicas.subscribe());
        let next = move |(view, mut replicas): (Self, watch::Receiver<KnownReplicas>)| async move {
            replicas.changed().await.ok()?;
            let completeness = view.settled(scope).await;
            Some((completeness, (view, replicas)))
        };
        Box::pin(futures::stream::unfold(start, next))
    }

    fn store(&self, scope: pb::Scope) -> &StateStore<M::Key, ReplicaReport<M>> {
        match scope {
            pb::Scope::Unspecified => &self.inner.merged,
            pb::Scope::Local => &self.inner.own,
        }
    }

    /// The body of a Watch RPC. The extensions of the request say who calls.
    ///
    /// # Errors
    /// As [`Streams::serve`].
    pub fn watch<R: WatchResponse<Item = M>>(
        &self,
        streams: &Streams,
        rpc: &'static str,
        extensions: &Extensions,
        scope: pb::Scope,
        matches: impl Fn(&M::Key) -> bool + Send + 'static,
    ) -> Result<Responses<R>, Status> {
        let settled = self.settled(scope);
        let sent_incomplete = Arc::new(AtomicBool::new(false));
        let gate = Box::pin({
            let sent_incomplete = sent_incomplete.clone();
            async move {
                let completeness = settled.await;
                sent_incomplete.store(!completeness.complete, Ordering::Relaxed);
                completeness
            }
        });
        let snapshot = SnapshotTerms {
            gate,
            changes: self.completeness_changes(scope),
        };
        let subscription = self.store(scope).subscribe_after(matches, Some(snapshot));
        let encode = |message: Message<M::Key, Arc<ReplicaReport<M>>>| {
            R::encode(Message {
                position: message.position,
                event: message.event.map(|report| report.now()),
            })
        };
        let body = streams.serve(rpc, extensions, subscription, encode)?;
        if scope == pb::Scope::Unspecified || self.inner.replicas.borrow().filled {
            return Ok(body);
        }
        // Followers must learn when this replica has all of its items, and a stream has one snapshot only.
        let mut replicas = self.inner.replicas.subscribe();
        let filled_late = async move {
            let filled = replicas.wait_for(|replicas| replicas.filled).await.is_ok();
            if !filled || !sent_incomplete.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let why = "this replica has all of its items only now: connect again";
        let end = futures::stream::once(async move { Err(error(ErrorReason::SnapshotIncomplete, why)) });
        Ok(Box::pin(body.take_until(filled_late).chain(end)))
    }

    /// One item of the whole seed. If there is none, waits for the replicas that have not sent their items yet.
    pub async fn get(&self, key: &M::Key) -> ItemAnswer<M> {
        let merged = &self.inner.merged;
        let mut report = merged.get(key);
        let completeness = if report.is_some() {
            self.inner.replicas.borrow().completeness(&self.inner.me).0
        } else {
            let completeness = self.settled(pb::Scope::Unspecified).await;
            report = merged.get(key);
            completeness
        };
        ItemAnswer {
            item: report.map(|report| report.now()),
            position: Some(wire::position(&merged.position())),
            completeness: Some(wire::completeness(&completeness)),
        }
    }

    /// A page of the items that match, after waiting for the replicas that have not sent theirs yet.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the page token holds no key.
    pub async fn list(
        &self,
        scope: pb::Scope,
        request: &PageRequest,
        matches: impl Fn(&M::Key, &M) -> bool + Send,
    ) -> Result<ItemPage<M>, Status> {
        let after = request.after.as_deref().map(read_key).transpose()?;
        let completeness = self.settled(scope).await;
        let page = self
            .store(scope)
            .page(after.as_ref(), request.size, |key, report| {
                matches(key, &report.item)
            });
        let (mut items, mut last, mut bytes, mut more) = (Vec::new(), None, 0, page.more);
        for (key, report) in page.items {
            let item = report.now();
            bytes += item.encoded_len();
            if bytes > MAX_PAGE_BYTES && last.is_some() {
                more = true;
                break;
            }
            items.push(item);
            last = Some(key);
        }
        let last = last.filter(|_| more);
        Ok(ItemPage {
            items,
            next_page_token: last
                .map(|key| request.token_after(&key.to_text()))
                .unwrap_or_default(),
            total_size: i32::try_from(page.total).unwrap_or(i32::MAX),
            position: Some(wire::position(&page.position)),
            completeness: Some(wire::completeness(&completeness)),
        })
    }
}

fn read_key<K: FeedKey>(text: &str) -> Result<K, Status> {
    let why = "was given out by another method: use next_page_token of the previous page, unchanged";
    K::from_text(text).ok_or_else(|| invalid(ErrorReason::InvalidPageToken, "page_token", why))
}

/// Receives the items of the other replicas for a view.
struct PeerHandler<M: FeedItem, X> {
    view: MergedView<M>,
    exists: X,
}

impl<M: FeedItem, X: Clone> Clone for PeerHandler<M, X> {
    fn clone(&self) -> Self {
        Self {
            view: self.view.clone(),
            exists: self.exists.clone(),
        }
    }
}

impl<M: FeedItem, X> ReplicaHandler<M> for PeerHandler<M, X>
where
    X: Fn(&M::Key) -> bool + Clone + Send + Sync + 'static,
{
    fn on_listed(&self) {
        self.view
            .inner
            .replicas
            .send_if_modified(|replicas| !std::mem::replace(&mut replicas.listed, true));
    }

    fn on_join(&self, replica: &Arc<str>) {
        let joined = PeerState::Joined(Instant::now());
        self.view.inner.replicas.send_modify(|replicas| {
            replicas.others.insert(replica.clone(), joined);
        });
    }

    fn on_leave(&self, replica: &Arc<str>) {
        // Before the replica stops to be missing.
        self.view.forget(replica, |_| false, &self.exists);
        self.view.inner.replicas.send_modify(|replicas| {
            replicas.others.remove(replica);
        });
    }

    fn on_update(&self, replica: &Arc<str>, update: Update<M::Key, M>) {
        let view = &self.view;
        let keep = |key: &M::Key| M::MOVES && (self.exists)(key);
        match update {
            Update::Snapshot(items, completeness) => {
                let keys: BTreeSet<M::Key> = items.keys().cloned().collect();
                for (key, received) in items {
                    view.set(replica, key, report(received));
                }
                view.forget(replica, |key| keys.contains(key), keep);
                let complete = completeness.complete;
                let state = if complete {
                    PeerState::Synced
                } else {
                    PeerState::Outdated
                };
                view.note(replica, state);
            }
            Update::Upsert(key, received) => view.set(replica, key, report(received)),
            Update::Removed(key) => view.unset(replica, &key, keep(&key)),
            // Of its own items, a replica has all from its snapshot on.
            Update::Completeness(_) => {}
            // Its items stay until it sends others or leaves.
            Update::Lost(_) => {
                let joined = matches!(
                    view.inner.replicas.borrow().others.get(replica),
                    Some(PeerState::Joined(_))
                );
                if !joined {
                    view.note(replica, PeerState::Outdated);
                }
            }
        }
    }
}

fn report<M>(received: Received<M>) -> ReplicaReport<M> {
    ReplicaReport {
        item: Arc::new(received.value),
        as_of: received.sent_at,
        set_at: received.set_at,
    }
}
