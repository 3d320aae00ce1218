//! Follows the replicas of a service, all at the same time, each over a stream of its own items.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tower::Layer as _;
use watchdog_client::setup_error::SetupError;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::rpc_metrics::RpcMetrics;

use crate::client::{Update, follow};
use crate::item::StreamItem;

/// Replicas that are followed at most. Each probes a share of the shoots; a seed with 10,000 of them needs a handful.
pub const MAX_REPLICAS: usize = 64;

/// Where the replicas of a program are, and the channels to them: one for each address, which all streams of the
/// program share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ReplicaEndpoints {
    addresses: watch::Receiver<BTreeMap<Arc<str>, Arc<str>>>,
    dialer: Dialer,
    open: Arc<Mutex<HashMap<Arc<str>, Weak<Channel>>>>,
}

impl ReplicaEndpoints {
    /// The replicas at these addresses, by identity. No channel is open yet.
    #[must_use]
    pub fn new(addresses: watch::Receiver<BTreeMap<Arc<str>, Arc<str>>>, dialer: Dialer) -> Self {
        Self {
            addresses,
            dialer,
            open: Arc::default(),
        }
    }

    /// The channel to an address. It is closed when nobody holds it any more.
    fn channel(&self, address: &Arc<str>) -> Result<Arc<Channel>, SetupError> {
        let mut open = self.open.lock();
        if let Some(channel) = open.get(address).and_then(Weak::upgrade) {
            return Ok(channel);
        }
        open.retain(|_, channel| channel.strong_count() > 0);
        let channel = Arc::new(self.dialer.channel(address)?);
        open.insert(address.clone(), Arc::downgrade(&channel));
        Ok(channel)
    }
}

/// The replicas that are followed, and what following one takes.
struct FollowedReplicas<M: StreamItem> {
    endpoints: ReplicaEndpoints,
    handler: Arc<dyn ReplicaHandler<M>>,
    readiness: Readiness,
    stop: CancellationToken,
    // By identity: the address, and the task.
    tasks: BTreeMap<Arc<str>, (Arc<str>, AbortOnDropHandle<()>)>,
}

/// Receives what the replicas report.
pub trait ReplicaHandler<M: StreamItem>: Send + Sync + 'static {
    /// The replicas have been listed for the first time; those that were found have joined.
    fn on_listed(&self) {}
    /// A replica is followed from now on.
    fn on_join(&self, replica: &Arc<str>);
    /// A replica is gone; no event of it follows.
    fn on_leave(&self, replica: &Arc<str>);
    /// A replica reported something, or its stream was lost.
    fn on_update(&self, replica: &Arc<str>, update: Update<M::Key, M>);
}

/// Follows the replicas, apart from the one named `me`, until `stop` is cancelled.
///
/// # Errors
/// Never; the type is that of a critical task.
pub async fn follow_replicas<M: StreamItem>(
    me: Option<Arc<str>>,
    endpoints: ReplicaEndpoints,
    handler: impl ReplicaHandler<M>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut addresses = endpoints.addresses.clone();
    let mut replicas = FollowedReplicas {
        endpoints,
        handler: Arc::new(handler),
        readiness,
        stop: stop.clone(),
        tasks: BTreeMap::new(),
    };
    // The first list counts as a change.
    let mut listed = addresses.has_changed().unwrap_or(true);
    loop {
        let mut current = addresses.borrow_and_update().clone();
        if let Some(me) = &me {
            current.remove(me);
        }
        let current = at_most::<M>(current);
        replicas.unfollow_gone(&current);
        replicas.follow_new(current);
        if std::mem::take(&mut listed) {
            replicas.handler.on_listed();
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = addresses.changed() => {
                if changed.is_err() {
                    // Static addresses never change.
                    stop.cancelled().await;
                    return Ok(());
                }
                listed = true;
            }
        }
    }
}

impl<M: StreamItem> FollowedReplicas<M> {
    /// Ends with the replicas that are no longer there, or are at another address.
    fn unfollow_gone(&mut self, current: &BTreeMap<Arc<str>, Arc<str>>) {
        let gone: Vec<Arc<str>> = self
            .tasks
            .iter()
            .filter(|(replica, (address, _))| current.get(*replica) != Some(address))
            .map(|(replica, _)| replica.clone())
            .collect();
        for replica in gone {
            tracing::info!(stream = M::STREAM, %replica, "replica removed");
            self.tasks.remove(&replica);
            self.readiness.part(&replica).recovered(M::STREAM);
            self.handler.on_leave(&replica);
        }
    }

    /// Begins with the replicas that are not followed yet.
    fn follow_new(&mut self, current: BTreeMap<Arc<str>, Arc<str>>) {
        for (replica, address) in current {
            if self.tasks.contains_key(&replica) {
                continue;
            }
            tracing::info!(stream = M::STREAM, %replica, %address, "following a replica");
            self.handler.on_join(&replica);
            let task = follow_one(
                replica.clone(),
                address.clone(),
                self.endpoints.clone(),
                self.handler.clone(),
                self.readiness.part(&replica),
                self.stop.clone(),
            );
            self.tasks
                .insert(replica, (address, AbortOnDropHandle::new(tokio::spawn(task))));
        }
    }
}

/// The first [`MAX_REPLICAS`].
fn at_most<M: StreamItem>(replicas: BTreeMap<Arc<str>, Arc<str>>) -> BTreeMap<Arc<str>, Arc<str>> {
    if replicas.len() > MAX_REPLICAS {
        tracing::error!(
            stream = M::STREAM,
            replicas = replicas.len(),
            followed = MAX_REPLICAS,
            "there are more replicas than one process can follow; some are not followed"
        );
    }
    replicas.into_iter().take(MAX_REPLICAS).collect()
}

async fn follow_one<M: StreamItem>(
    replica: Arc<str>,
    address: Arc<str>,
    endpoints: ReplicaEndpoints,
    handler: Arc<dyn ReplicaHandler<M>>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let channel = match endpoints.channel(&address) {
        Ok(channel) => channel,
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(stream = M::STREAM, %replica, error, "cannot follow a replica");
            return;
        }
    };
    let on_update = |update| handler.on_update(&replica, update);
    let open = || M::watch(RpcMetrics::client().layer(Channel::clone(&channel)));
    follow(M::STREAM, open, &readiness, &stop, on_update).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_share_a_channel_for_as_long_as_one_of_them_needs_it() {
        let dialer = Dialer {
            tls: None,
            server_name: "localhost".to_owned(),
        };
        let endpoints = ReplicaEndpoints::new(watch::Sender::default().subscribe(), dialer);
        let address: Arc<str> = "127.0.0.1:1".into();
        let (first, second) = (
            endpoints.channel(&address).unwrap(),
            endpoints.channel(&address).unwrap(),
        );
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        let other: Arc<str> = "127.0.0.1:2".into();
        let _other = endpoints.channel(&other).unwrap();
        let open = endpoints.open.lock();
        assert_eq!(open.len(), 1, "the one that nobody holds is forgotten");
    }
}
