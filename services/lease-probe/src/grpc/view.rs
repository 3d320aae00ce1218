//! The verdicts of all replicas, merged.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use watchdog_feed::client::{Received, Update};
use watchdog_feed::message::Event;
use watchdog_feed::server::Feed;
use watchdog_feed::verdicts::Audience;
use watchdog_feed::wire::micros;
use watchdog_proto::probe::v1 as pb;

use super::convert;
use crate::domain::moment::Moment;
use crate::domain::verdict::Verdict;

/// A verdict of this replica or of another.
#[derive(Debug, Clone)]
pub enum Seen {
    /// Of this replica.
    Local(Arc<Verdict>),
    /// Of another one, as it was when it was sent.
    Remote(Arc<pb::Verdict>, Instant),
}

impl Seen {
    /// As it is told at `now`.
    #[must_use]
    pub fn told(&self, shoot: &str, now: Moment) -> pb::Verdict {
        match self {
            Self::Local(verdict) => convert::verdict(shoot, verdict, now),
            Self::Remote(verdict, sent_at) => convert::aged(verdict, sent_at.elapsed()),
        }
    }

    fn observed(&self, now: Moment) -> Moment {
        match self {
            Self::Local(verdict) => verdict.observed_at,
            Self::Remote(verdict, sent_at) => now
                .before(sent_at.elapsed())
                .shifted(-micros(verdict.age.as_ref())),
        }
    }
}

/// What each replica says of a shoot.
type ByReplica = BTreeMap<Arc<str>, Seen>;

/// The merged verdicts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// One verdict a shoot: the newest of all replicas.
    pub merged: Feed<String, Seen>,
    by_replica: Arc<Mutex<HashMap<String, ByReplica>>>,
}

impl View {
    /// Takes over the verdicts of this replica until `stop` is cancelled.
    ///
    /// # Errors
    /// When the subscription fails, which it does not while the process lives.
    pub async fn follow_local(
        self,
        identity: Arc<str>,
        verdicts: Feed<String, Verdict>,
        now: impl Fn() -> Moment,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut behind = true;
        let mut subscription = verdicts.subscribe(|_| true);
        loop {
            if std::mem::take(&mut behind) {
                subscription = verdicts.subscribe(|_| true);
                self.forget(&identity, now());
            }
            let next = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                next = subscription.next() => next,
            };
            match next.map(|(message, _)| message.event) {
                Ok(Event::Upsert(shoot, verdict)) => self.set(&identity, &shoot, Seen::Local(verdict), now()),
                Ok(Event::Removed(shoot)) => self.unset(&identity, &shoot, now()),
                Ok(Event::SnapshotComplete(_) | Event::Heartbeat) => {}
                Err(_) => behind = true,
            }
        }
    }

    fn set(&self, replica: &Arc<str>, shoot: &str, seen: Seen, now: Moment) {
        let mut all = self.by_replica.lock();
        let of_shoot = all.entry(shoot.to_owned()).or_default();
        of_shoot.insert(replica.clone(), seen);
        self.publish(shoot, of_shoot, now);
    }

    fn unset(&self, replica: &Arc<str>, shoot: &str, now: Moment) {
        let mut all = self.by_replica.lock();
        if let Some(of_shoot) = all.get_mut(shoot) {
            of_shoot.remove(replica);
            self.publish(shoot, of_shoot, now);
            if of_shoot.is_empty() {
                all.remove(shoot);
            }
        }
    }

    fn forget(&self, replica: &Arc<str>, now: Moment) {
        self.forget_except(replica, &BTreeMap::new(), now);
    }

    fn forget_except(&self, replica: &Arc<str>, keep: &BTreeMap<String, Received<pb::Verdict>>, now: Moment) {
        self.by_replica.lock().retain(|shoot, of_shoot| {
            if !keep.contains_key(shoot) && of_shoot.remove(replica).is_some() {
                self.publish(shoot, of_shoot, now);
            }
            !of_shoot.is_empty()
        });
    }

    /// Publishes the newest of the verdicts on a shoot.
    fn publish(&self, shoot: &str, of_shoot: &ByReplica, now: Moment) {
        match of_shoot.values().max_by_key(|seen| seen.observed(now)) {
            Some(newest) => self.merged.upsert(shoot.to_owned(), newest.clone()),
            None => self.merged.remove(&shoot.to_owned()),
        }
    }
}

fn remote(received: Received<pb::Verdict>) -> Seen {
    Seen::Remote(Arc::new(received.value), received.sent_at)
}

/// Hears of the other replicas for a view.
#[derive(Clone)]
pub struct Peers<N> {
    /// The view.
    pub view: View,
    /// Tells the time.
    pub now: N,
}

impl<N: Fn() -> Moment + Clone + Send + Sync + 'static> Audience for Peers<N> {
    fn joined(&self, _replica: &Arc<str>) {}

    fn left(&self, replica: &Arc<str>) {
        self.view.forget(replica, (self.now)());
    }

    fn heard(&self, replica: &Arc<str>, update: Update<String, pb::Verdict>) {
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
            // What it said stays until it says something else or leaves: its validity is in it.
            Update::Lost(_) => {}
        }
    }
}
