//! Follows the replicas of lease-probe, all at the same time, each over a stream of its own verdicts.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use watchdog_client::consumer;
use watchdog_client::follow::Update;
use watchdog_proto::probe::v1::{Verdict, WatchVerdictsRequest, WatchVerdictsResponse};
use watchdog_proto::stream::v1::Scope;
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::metrics::GaugeGuard;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::rpc_metrics::Measured;

use crate::item::StreamItem;
use crate::metrics::{CONNECTED, RECONNECTS, SKIPPED, StreamName};

/// Replicas that are followed at most. Each probes a share of the shoots; a seed with 10,000 of them needs a handful.
pub const MAX_REPLICAS: usize = 64;

/// The label of their streams.
const STREAM: StreamName<'_> = StreamName(Verdict::STREAM);

/// Where the replicas are, and how they are called.
#[derive(Debug)]
pub struct ReplicaEndpoints {
    /// Their addresses, by identity.
    pub addresses: watch::Receiver<BTreeMap<Arc<str>, Arc<str>>>,
    /// How they are called.
    pub dialer: Dialer,
}

/// Receives what the replicas report.
pub trait ReplicaHandler: Send + Sync + 'static {
    /// The replicas have been listed for the first time; those that were found have joined.
    fn on_listed(&self) {}
    /// A replica is followed from now on.
    fn on_join(&self, replica: &Arc<str>);
    /// A replica is gone; no event of it follows.
    fn on_leave(&self, replica: &Arc<str>);
    /// A replica reported something, or its stream was lost.
    fn on_update(&self, replica: &Arc<str>, update: Update<String, Verdict>);
}

/// Follows the replicas, apart from the one named `me`, until `stop` is cancelled.
///
/// # Errors
/// Never; the type is that of a critical task.
pub async fn follow_replicas(
    me: Option<Arc<str>>,
    endpoints: ReplicaEndpoints,
    handler: Arc<dyn ReplicaHandler>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let ReplicaEndpoints {
        mut addresses,
        dialer,
    } = endpoints;
    // By identity: the address, and the task.
    let mut tasks: BTreeMap<Arc<str>, (Arc<str>, AbortOnDropHandle<()>)> = BTreeMap::new();
    // The first list counts as a change.
    let mut listed = addresses.has_changed().unwrap_or(true);
    loop {
        let current = at_most(addresses.borrow_and_update().clone(), me.as_deref());
        tasks.retain(|replica, (address, task)| {
            let stays = current.get(replica) == Some(address);
            if !stays {
                tracing::info!(stream = Verdict::STREAM, %replica, "replica removed");
                task.abort();
                readiness.part(replica).recovered(Verdict::STREAM);
                handler.on_leave(replica);
            }
            stays
        });
        for (replica, address) in current {
            if tasks.contains_key(&replica) {
                continue;
            }
            tracing::info!(stream = Verdict::STREAM, %replica, %address, "following a replica");
            handler.on_join(&replica);
            let task = follow_one(
                replica.clone(),
                address.clone(),
                dialer.clone(),
                handler.clone(),
                readiness.part(&replica),
                stop.clone(),
            );
            tasks.insert(replica, (address, AbortOnDropHandle::new(tokio::spawn(task))));
        }
        if std::mem::take(&mut listed) {
            handler.on_listed();
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            // Static addresses never change.
            Ok(()) = addresses.changed() => listed = true,
        }
    }
}

/// The first [`MAX_REPLICAS`], apart from this one.
fn at_most(mut replicas: BTreeMap<Arc<str>, Arc<str>>, me: Option<&str>) -> BTreeMap<Arc<str>, Arc<str>> {
    replicas.retain(|replica, _| Some(&**replica) != me);
    if replicas.len() > MAX_REPLICAS {
        tracing::error!(
            stream = Verdict::STREAM,
            replicas = replicas.len(),
            followed = MAX_REPLICAS,
            "there are more replicas than one process can follow; some are not followed"
        );
    }
    replicas.into_iter().take(MAX_REPLICAS).collect()
}

async fn follow_one(
    replica: Arc<str>,
    address: Arc<str>,
    dialer: Dialer,
    handler: Arc<dyn ReplicaHandler>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let channel = match dialer.channel(&address) {
        Ok(channel) => Measured::client(channel),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(stream = Verdict::STREAM, %replica, error, "cannot follow a replica");
            return;
        }
    };
    let request = WatchVerdictsRequest {
        scope: Scope::Replica.into(),
        ..Default::default()
    };
    let mut report = StreamReport::new(readiness);
    consumer::follow::<WatchVerdictsResponse>(channel, request, &stop, |update| {
        report.note(&update);
        handler.on_update(&replica, update);
    })
    .await;
}

/// Shows the state of the stream of one replica: in metrics, in the log, and on /readyz.
struct StreamReport {
    /// Its instance is the replica.
    readiness: Readiness,
    connected: Option<GaugeGuard>,
    /// One line for each stream: a hostile item may come with every probe.
    skipped_before: bool,
}

impl StreamReport {
    fn new(readiness: Readiness) -> Self {
        // Its series is shown from now on.
        RECONNECTS.handle(STREAM).increment(0);
        Self {
            readiness,
            connected: None,
            skipped_before: false,
        }
    }

    fn note(&mut self, update: &Update<String, Verdict>) {
        let (stream, server) = (Verdict::STREAM, self.readiness.instance());
        match update {
            Update::Snapshot(..) => {
                self.readiness.recovered(stream);
                self.connected.get_or_insert_with(|| CONNECTED.track(STREAM));
            }
            Update::Lost(failure) => {
                self.connected = None;
                self.skipped_before = false;
                RECONNECTS.inc(STREAM);
                let code = failure.code.map(tracing::field::debug);
                let reason = failure.reason.as_str();
                if self.readiness.failing(stream, failure.clone()) {
                    tracing::warn!(
                        stream,
                        server,
                        code,
                        reason,
                        error = %failure,
                        "stream lost; connecting again"
                    );
                }
            }
            Update::Skipped(why) => {
                SKIPPED.inc(STREAM);
                if !std::mem::replace(&mut self.skipped_before, true) {
                    tracing::warn!(
                        stream,
                        server,
                        reason = %why,
                        "message of a stream skipped; further ones of this stream are only counted"
                    );
                }
            }
            Update::Upsert(..) | Update::Removed(_) | Update::Completeness(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::message::COMPLETE;

    #[test]
    fn a_replica_that_is_not_followed_any_more_is_not_connected() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let shown = |n: u32| {
            let text = recorder.handle().render();
            let line = format!("watchdog_stream_client_connected{{stream=\"lease-probe\"}} {n}");
            assert!(text.lines().any(|shown| shown == line), "{text}");
        };
        let mut report = StreamReport::new(Readiness::default());
        report.note(&Update::Snapshot(BTreeMap::new(), COMPLETE));
        shown(1);
        drop(report);
        shown(0);
    }
}
