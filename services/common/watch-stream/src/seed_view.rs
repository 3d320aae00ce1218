//! The items of the whole seed, as each replica answers with them: its own ones, and where the replicas share the seed,
//! those of the others merged with them.

mod answers;
mod known_replicas;
mod merge;
mod reports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use watchdog_proto::probe::v1::Verdict;
use watchdog_runtime::service_builder::ServiceBuilder;

pub use self::answers::{ItemAnswer, scope};
pub use self::known_replicas::{KnownReplicas, PeerState};
use self::reports::Reports;
use crate::item::{StreamItem, TimedItem};
use crate::message::Event;
use crate::replicas::ReplicaHandler;
use crate::server::{KeyUpdate, StreamStore};
use crate::wire::forward;

/// How often a replica that starts checks whether it has all of its own items.
const START_INTERVAL: Duration = Duration::from_millis(100);

/// The items of this replica: how its state becomes what is sent.
pub struct OwnItems<K, V, M: StreamItem> {
    /// The state of this replica.
    pub store: StreamStore<K, V>,
    /// The key of an item.
    pub key: fn(&K) -> M::Key,
    /// An item as it is sent now.
    pub encode: Encode<K, V, M>,
    /// Returns true if all items of this replica are present; `has` checks one key.
    pub is_filled: IsFilled<M::Key>,
}

/// Makes an item as it is sent now.
pub type Encode<K, V, M> = Box<dyn Fn(&K, &V) -> M + Send + Sync>;

/// Says whether all items are there, by what says so of a key.
pub type IsFilled<K> = Box<dyn Fn(&dyn Fn(&K) -> bool) -> bool + Send + Sync>;

/// The items of the whole seed. Cheap to clone.
#[derive(Clone)]
pub struct SeedView<M: StreamItem> {
    me: Arc<str>,
    own: StreamStore<M::Key, TimedItem<M>>,
    /// The same store as `own` where nothing is merged.
    whole: StreamStore<M::Key, TimedItem<M>>,
    /// The reports that are merged.
    reports: Arc<Mutex<HashMap<M::Key, Reports>>>,
    replicas: watch::Sender<KnownReplicas>,
    draining: CancellationToken,
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
    /// A view of the replica named `me`, of a program of which one replica leads, without any items. Only the leader is
    /// asked, so there is nothing to merge. Streams end with UNAVAILABLE once `draining` is cancelled.
    #[must_use]
    pub fn new(me: Arc<str>, draining: CancellationToken) -> Self {
        let own = StreamStore::new();
        Self {
            whole: own.clone(),
            own,
            reports: Arc::default(),
            replicas: watch::Sender::new(KnownReplicas::new(me.clone(), Instant::now())),
            me,
            draining,
        }
    }

    /// The replicas whose items a complete answer has.
    #[must_use]
    pub fn replicas(&self) -> watch::Receiver<KnownReplicas> {
        self.replicas.subscribe()
    }

    /// Follows the items of this replica until the process drains. `leads` says whether it leads; each time it begins
    /// to, answers wait until it has all items.
    pub fn spawn_led<K, V>(&self, base: &ServiceBuilder, own: OwnItems<K, V, M>, leads: watch::Receiver<bool>)
    where
        K: Ord + Clone + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let view = self.clone();
        view.replicas.send_modify(|replicas| replicas.listed = true);
        base.tasks.critical(M::STREAM, async move {
            let follow = view.follow_own(&own, |_, _| ());
            let led = async { tokio::join!(follow, view.follow_lead(leads, &own.is_filled)) };
            view.draining.run_until_cancelled(led).await;
            Ok(())
        });
    }

    /// A replica that begins to lead has all items once it has those of the whole seed. Ends with the election.
    async fn follow_lead(&self, mut leads: watch::Receiver<bool>, is_filled: &IsFilled<M::Key>) {
        loop {
            let leads_now = *leads.borrow_and_update();
            self.replicas.send_modify(|replicas| replicas.set_filled(false));
            let filled = async {
                if leads_now {
                    self.fill(is_filled).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                changed = leads.changed() => if changed.is_err() { return },
                () = filled => {}
            }
        }
    }

    /// Takes over the items of this replica, and tells `changed` of each, or that it is gone. Never ends.
    async fn follow_own<K: Ord + Clone, V>(
        &self,
        own: &OwnItems<K, V, M>,
        changed: impl Fn(&M::Key, Option<TimedItem<M>>),
    ) {
        let remove = |key: &M::Key| {
            self.own.remove(key);
            changed(key, None);
        };
        let mut subscription = own.store.subscribe(|_| true);
        loop {
            let Ok((message, _)) = subscription.next().await else {
                subscription = own.store.subscribe(|_| true);
                continue;
            };
            match message.event {
                Event::Upsert(of, value) => {
                    let key = (own.key)(&of);
                    let as_of = Instant::now();
                    let age = forward(message.position.item_age.as_ref());
                    let item = TimedItem {
                        item: Arc::new((own.encode)(&of, &value)),
                        as_of,
                        set_at: as_of.checked_sub(age).unwrap_or(as_of),
                    };
                    let update = KeyUpdate::Changed(item.clone());
                    self.own.update(key.clone(), |_| update);
                    changed(&key, Some(item));
                }
                Event::Removed(of) => remove(&(own.key)(&of)),
                // What was removed before the snapshot. What is removed from then on comes as an event.
                Event::SnapshotComplete { .. } => {
                    let keys: BTreeSet<M::Key> = own.store.keys().iter().map(own.key).collect();
                    let before = self.own.keys().into_iter();
                    before
                        .filter(|key| !keys.contains(key))
                        .for_each(|key| remove(&key));
                }
                Event::Heartbeat { .. } => {}
            }
        }
    }

    /// Waits until this replica has all of its own items.
    async fn fill(&self, is_filled: &IsFilled<M::Key>) {
        let mut ticks = tokio::time::interval(START_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_filled(&|key| self.own.get(key).is_some()) {
            ticks.tick().await;
        }
        self.replicas.send_modify(|replicas| replicas.set_filled(true));
    }
}

impl SeedView<Verdict> {
    /// Tells a handler in this process of the items of this replica, as
    /// [`follow_replicas`](crate::replicas::follow_replicas) does over a connection. Ends with the drain.
    pub async fn follow_in_process(&self, handler: impl ReplicaHandler) {
        handler.on_join(&self.me);
        handler.on_listed();
        let open = || {
            let messages = stream::unfold(self.own.subscribe(|_| true), async |mut subscription| {
                let (message, _) = subscription.next().await.ok()?;
                Some((Ok(TimedItem::message(message)), subscription))
            });
            std::future::ready(Ok(Box::pin(messages)))
        };
        let on_update = |update| handler.on_update(&self.me, update);
        crate::follow::follow(open, &self.draining, on_update).await;
    }
}
