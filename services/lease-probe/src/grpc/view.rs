//! The verdicts of all replicas, merged.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Request, Status};
use watchdog_feed::client::{Received, Source, Update, follow};
use watchdog_feed::message::{Event, Message};
use watchdog_feed::server::Feed;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_runtime::grpc_client::Dialer;

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
                .shifted(-convert::micros(verdict.age.as_ref())),
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

    /// Follows the other replicas until `stop` is cancelled: their addresses by identity, this replica's among them.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub async fn follow_peers(
        self,
        identity: Arc<str>,
        mut addresses: watch::Receiver<BTreeMap<Arc<str>, Arc<str>>>,
        dialer: Dialer,
        now: impl Fn() -> Moment + Clone + Send + Sync + 'static,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut peers: BTreeMap<Arc<str>, (Arc<str>, AbortOnDropHandle<()>)> = BTreeMap::new();
        loop {
            let current = addresses.borrow_and_update().clone();
            let gone: Vec<Arc<str>> = peers
                .iter()
                .filter(|(peer, (address, _))| current.get(*peer) != Some(address))
                .map(|(peer, _)| peer.clone())
                .collect();
            for peer in gone {
                peers.remove(&peer);
                self.forget(&peer, now());
            }
            for (peer, address) in current {
                if peer == identity || peers.contains_key(&peer) {
                    continue;
                }
                let task = self.clone().follow_peer(
                    peer.clone(),
                    address.clone(),
                    dialer.clone(),
                    now.clone(),
                    stop.clone(),
                );
                peers.insert(peer, (address, AbortOnDropHandle::new(tokio::spawn(task))));
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                changed = addresses.changed() => if changed.is_err() {
                    stop.cancelled().await;
                    return Ok(());
                },
            }
        }
    }

    async fn follow_peer(
        self,
        peer: Arc<str>,
        address: Arc<str>,
        dialer: Dialer,
        now: impl Fn() -> Moment,
        stop: CancellationToken,
    ) {
        let channel = match dialer.channel(&address) {
            Ok(channel) => channel,
            Err(error) => {
                tracing::error!(%peer, %error, "cannot follow another replica");
                return;
            }
        };
        let mut source = Peer {
            client: LeaseProbeServiceClient::new(channel),
        };
        follow("lease-probe-peer", &mut source, &stop, |update| match update {
            Update::Snapshot(items) => {
                self.forget_except(&peer, &items, now());
                for (shoot, received) in items {
                    self.set(&peer, &shoot, remote(received), now());
                }
            }
            Update::Upsert(shoot, received) => self.set(&peer, &shoot, remote(received), now()),
            Update::Removed(shoot) => self.unset(&peer, &shoot, now()),
            // What it said stays until it says something else or leaves: its validity is in it.
            Update::Lost(_) => {}
        })
        .await;
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

struct Peer {
    client: LeaseProbeServiceClient<Channel>,
}

impl Source for Peer {
    type Key = String;
    type Value = pb::Verdict;
    type Stream = std::pin::Pin<
        Box<dyn tokio_stream::Stream<Item = Result<Message<String, pb::Verdict>, Status>> + Send>,
    >;

    async fn open(&mut self) -> Result<Self::Stream, Status> {
        let request = pb::WatchVerdictsRequest {
            shoots: Vec::new(),
            scope: pb::Scope::Local.into(),
        };
        let stream = self
            .client
            .watch_verdicts(Request::new(request))
            .await?
            .into_inner();
        let decode = |response: Result<pb::WatchVerdictsResponse, Status>| {
            convert::message(response?).map_err(|part| Status::data_loss(format!("a message has no {part}")))
        };
        Ok(Box::pin(stream.map(decode)))
    }
}
