//! Following the verdicts of lease-probe: the one feed that more than one service follows, from every replica of
//! lease-probe at the same time.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tower::Layer as _;
use watchdog_client::consumer;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::rpc_metrics::{Measured, RpcMetrics};

use crate::client::{Source, Update, follow};
use crate::message::Message;

/// Replicas that are followed at most. Each owns a share of the shoots; a seed with 10,000 of them needs a handful.
const MAX_REPLICAS: usize = 64;

/// Name of the feed in logs, metrics and readiness.
const FEED: &str = "lease-probe";

/// Largest message that is read. A verdict with its evidence stays below 2 KiB.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// Addresses of the replicas of lease-probe by identity.
pub type Addresses = BTreeMap<Arc<str>, Arc<str>>;

/// The verdicts received from the replicas of lease-probe.
pub trait ReplicaHandler: Clone + Send + Sync + 'static {
    /// A replica is followed from now on.
    fn on_join(&self, replica: &Arc<str>);
    /// A replica is gone; no event of it follows.
    fn on_leave(&self, replica: &Arc<str>);
    /// A replica said something, or its stream was lost.
    fn on_update(&self, replica: &Arc<str>, update: Update<String, pb::Verdict>);
}

/// Follows the replicas, apart from the one named `me`, until `stop` is cancelled.
///
/// # Errors
/// Never; the type is that of a critical task.
pub async fn follow_replicas(
    me: Option<Arc<str>>,
    mut addresses: watch::Receiver<Addresses>,
    dialer: Dialer,
    handler: impl ReplicaHandler,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut followed: BTreeMap<Arc<str>, (Arc<str>, AbortOnDropHandle<()>)> = BTreeMap::new();
    loop {
        let mut current = addresses.borrow_and_update().clone();
        if let Some(me) = &me {
            current.remove(me);
        }
        if current.len() > MAX_REPLICAS {
            tracing::error!(
                replicas = current.len(),
                followed = MAX_REPLICAS,
                "there are too many replicas of lease-probe, some are not followed"
            );
        }
        let current: Addresses = current.into_iter().take(MAX_REPLICAS).collect();
        let gone: Vec<Arc<str>> = followed
            .iter()
            .filter(|(replica, (address, _))| current.get(*replica) != Some(address))
            .map(|(replica, _)| replica.clone())
            .collect();
        for replica in gone {
            tracing::info!(%replica, "a replica of lease-probe is gone");
            followed.remove(&replica);
            readiness.part(&replica).recovered(FEED);
            handler.on_leave(&replica);
        }
        for (replica, address) in current {
            if followed.contains_key(&replica) {
                continue;
            }
            tracing::info!(%replica, %address, "following a replica of lease-probe");
            handler.on_join(&replica);
            let task = follow_one(
                replica.clone(),
                address.clone(),
                dialer.clone(),
                handler.clone(),
                readiness.part(&replica),
                stop.clone(),
            );
            followed.insert(replica, (address, AbortOnDropHandle::new(tokio::spawn(task))));
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = addresses.changed() => if changed.is_err() {
                // Static addresses never change.
                stop.cancelled().await;
                return Ok(());
            },
        }
    }
}

async fn follow_one(
    replica: Arc<str>,
    address: Arc<str>,
    dialer: Dialer,
    handler: impl ReplicaHandler,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let channel = match dialer.channel(&address) {
        Ok(channel) => channel,
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(%replica, error, "cannot follow a replica of lease-probe");
            return;
        }
    };
    let client = LeaseProbeServiceClient::new(RpcMetrics::client().layer(channel))
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let hear = |update| handler.on_update(&replica, update);
    follow(FEED, &mut Replica { client }, &readiness, &stop, hear).await;
}

struct Replica {
    client: LeaseProbeServiceClient<Measured<Channel>>,
}

impl Source for Replica {
    type Key = String;
    type Value = pb::Verdict;
    type Stream = Pin<Box<dyn Stream<Item = Result<Message<String, pb::Verdict>, Status>> + Send>>;

    async fn open(&mut self) -> Result<Self::Stream, Status> {
        let request = pb::WatchVerdictsRequest {
            shoots: Vec::new(),
            scope: watchdog_proto::feed::v1::Scope::Local.into(),
        };
        let stream = self
            .client
            .watch_verdicts(Request::new(request))
            .await?
            .into_inner();
        Ok(Box::pin(stream.map(|message| consumer::decode(message?))))
    }
}
