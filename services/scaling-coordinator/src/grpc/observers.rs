//! Follows every replica of lease-probe.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Request, Status};
use watchdog_feed::client::{Source, Update, follow};
use watchdog_feed::message::Message;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_runtime::grpc_client::Dialer;

use super::convert;
use crate::verdicts::Verdicts;

/// Replicas that are followed at most. Each owns a share of the shoots; a seed with 10,000 of them needs a handful.
const MAX_OBSERVERS: usize = 64;

/// Largest message that is read. A verdict with its evidence stays below 2 KiB.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// Addresses of the replicas of lease-probe by identity.
pub type Addresses = BTreeMap<Arc<str>, Arc<str>>;

/// Follows the replicas until `stop` is cancelled.
///
/// # Errors
/// Never; the type is that of a critical task.
pub async fn observe(
    mut addresses: watch::Receiver<Addresses>,
    dialer: Dialer,
    verdicts: Arc<Verdicts>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut followed: BTreeMap<Arc<str>, (Arc<str>, AbortOnDropHandle<()>)> = BTreeMap::new();
    loop {
        let current = addresses.borrow_and_update().clone();
        if current.len() > MAX_OBSERVERS {
            tracing::error!(
                replicas = current.len(),
                followed = MAX_OBSERVERS,
                "there are too many replicas of lease-probe, some are not followed"
            );
        }
        let current: Addresses = current.into_iter().take(MAX_OBSERVERS).collect();
        let gone: Vec<Arc<str>> = followed
            .iter()
            .filter(|(replica, (address, _))| current.get(*replica) != Some(address))
            .map(|(replica, _)| replica.clone())
            .collect();
        for replica in gone {
            tracing::info!(%replica, "a replica of lease-probe is gone");
            followed.remove(&replica);
            verdicts.left(&replica);
        }
        for (replica, address) in current {
            if followed.contains_key(&replica) {
                continue;
            }
            tracing::info!(%replica, %address, "following a replica of lease-probe");
            verdicts.joined(&replica);
            let task = observe_one(
                replica.clone(),
                address.clone(),
                dialer.clone(),
                verdicts.clone(),
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

async fn observe_one(
    replica: Arc<str>,
    address: Arc<str>,
    dialer: Dialer,
    verdicts: Arc<Verdicts>,
    stop: CancellationToken,
) {
    let channel = match dialer.channel(&address) {
        Ok(channel) => channel,
        Err(error) => {
            tracing::error!(%replica, %error, "cannot follow a replica of lease-probe");
            return;
        }
    };
    let client = LeaseProbeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    follow(
        "lease-probe",
        &mut Observer { client },
        &stop,
        |update| match update {
            Update::Snapshot(items) => {
                let read = |(shoot, received)| {
                    let verdict = convert::verdict(&received);
                    (shoot, verdict)
                };
                verdicts.snapshot(&replica, items.into_iter().map(read));
            }
            Update::Upsert(shoot, received) => verdicts.said(&replica, &shoot, convert::verdict(&received)),
            Update::Removed(shoot) => verdicts.withdrawn(&replica, &shoot),
            Update::Lost(_) => verdicts.lost(&replica),
        },
    )
    .await;
}

struct Observer {
    client: LeaseProbeServiceClient<Channel>,
}

impl Source for Observer {
    type Key = String;
    type Value = pb::Verdict;
    type Stream = Pin<Box<dyn Stream<Item = Result<Message<String, pb::Verdict>, Status>> + Send>>;

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
