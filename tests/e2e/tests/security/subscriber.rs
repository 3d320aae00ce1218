//! Callers of lease-probe, and one who follows all verdicts and behaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::stream::v1::Scope;
use watchdog_test_support::wait::{self, BOUND};

/// The number of verdicts.
pub(crate) async fn list(channel: Channel) -> Result<i32, Status> {
    let request = pb::ListVerdictsRequest::default();
    let answer = LeaseProbeServiceClient::new(channel)
        .list_verdicts(request)
        .await?;
    Ok(answer.into_inner().total_size)
}

pub(crate) async fn watch(channel: Channel) -> Result<Streaming<pb::WatchVerdictsResponse>, Status> {
    // Every renewal is sent.
    let request = pb::WatchVerdictsRequest {
        scope: Scope::Replica.into(),
        ..Default::default()
    };
    let answer = LeaseProbeServiceClient::new(channel)
        .watch_verdicts(request)
        .await?;
    Ok(answer.into_inner())
}

/// A stream of all verdicts that counts what comes.
pub(crate) struct Subscriber {
    messages: Arc<AtomicU64>,
    task: AbortOnDropHandle<Status>,
}

// === impl Subscriber ===

impl Subscriber {
    pub(crate) async fn start(channel: Channel) -> Result<Self, Status> {
        let mut stream = watch(channel).await?;
        let messages = Arc::new(AtomicU64::new(0));
        let count = messages.clone();
        let task = tokio::spawn(async move {
            loop {
                match stream.message().await {
                    Ok(Some(_)) => count.fetch_add(1, Ordering::Relaxed),
                    Ok(None) => return Status::ok("the stream ended"),
                    Err(status) => return status,
                };
            }
        });
        Ok(Self {
            messages,
            task: AbortOnDropHandle::new(task),
        })
    }

    /// Waits for more than this number of verdicts from now on, on the stream from before.
    pub(crate) async fn until_more(&self, verdicts: u64) {
        let before = self.messages.load(Ordering::Relaxed);
        wait::until_true("verdicts keep flowing", BOUND, || async {
            anyhow::ensure!(!self.task.is_finished(), "the stream of who behaves has ended");
            Ok(self.messages.load(Ordering::Relaxed) > before + verdicts)
        })
        .await
        .unwrap();
    }
}
