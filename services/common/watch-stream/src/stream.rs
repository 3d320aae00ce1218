//! The body of a Watch RPC.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream;
use metrics::Histogram;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Extensions, Status};
use watchdog_runtime::accept::Peer;
use watchdog_runtime::caller_quota::{CallerQuota, QuotaLimits, QuotaPermit};
use watchdog_runtime::metrics::GaugeGuard;
use watchdog_runtime::rpc_error::{ErrorReason, error, too_many};

use crate::message::Message;
use crate::metrics::{DROPPED, DropReason, LAG, Rpc, SUBSCRIBERS};
use crate::subscription::{Lagged, Subscription};

/// Open streams of one process. Each holds a cursor and at most one batch of shared values. 64 replicas with two
/// streams each, and as many of the coordinator with one, fit into what is reserved.
const STREAMS: QuotaLimits = QuotaLimits {
    total: 1024,
    reserved: 256,
    per_caller: 256,
};

/// The body of a streaming RPC.
pub type Responses<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

/// The state that all Watch RPCs of a service share.
#[derive(Debug, Clone)]
pub struct Streams {
    quota: CallerQuota,
    draining: CancellationToken,
}

impl Streams {
    /// Streams end with UNAVAILABLE once `draining` is cancelled.
    #[must_use]
    pub fn new(draining: CancellationToken) -> Self {
        Self {
            quota: CallerQuota::new(STREAMS),
            draining,
        }
    }

    /// Serves a subscription as the body of the RPC named `rpc`. `encode` runs when the transport asks for the
    /// message, so that ages are those of the moment of sending. Its error ends the stream.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when there are too many streams, UNAVAILABLE while draining.
    pub fn serve<K, V, R>(
        &self,
        rpc: &'static str,
        extensions: &Extensions,
        subscription: Subscription<K, V>,
        encode: impl FnMut(Message<K, Arc<V>>) -> Result<R, Status> + Send + 'static,
    ) -> Result<Responses<R>, Status>
    where
        K: Ord + Clone + Send + Sync + 'static,
        V: Send + Sync + 'static,
        R: 'static,
    {
        if self.draining.is_cancelled() {
            return Err(stopping());
        }
        let caller = extensions.get::<Peer>().map(|peer| &peer.caller);
        let permit = caller.map(|caller| self.quota.acquire(caller)).transpose();
        let permit = permit.map_err(|exceeded| {
            DROPPED.inc((Rpc(rpc), DropReason::Limit));
            too_many("streams", exceeded)
        })?;
        let reader = Reader {
            subscription,
            encode,
            draining: self.draining.clone(),
            rpc,
            lag: LAG.handle(Rpc(rpc)),
            _open: SUBSCRIBERS.track(Rpc(rpc)),
            _permit: permit,
        };
        let next = async |reader: Option<Reader<K, V, _>>| Some(reader?.next().await);
        Ok(Box::pin(stream::unfold(Some(reader), next)))
    }
}

/// One stream.
struct Reader<K, V, F> {
    subscription: Subscription<K, V>,
    encode: F,
    draining: CancellationToken,
    rpc: &'static str,
    lag: Histogram,
    _open: GaugeGuard,
    /// None if the stream came over no transport.
    _permit: Option<QuotaPermit>,
}

impl<K: Ord + Clone, V, R, F: FnMut(Message<K, Arc<V>>) -> Result<R, Status>> Reader<K, V, F> {
    /// The next item of the stream, and the stream if it goes on.
    async fn next(mut self) -> (Result<R, Status>, Option<Self>) {
        let next = tokio::select! {
            biased;
            () = self.draining.cancelled() => return (Err(stopping()), None),
            next = self.subscription.next() => next,
        };
        match next {
            Ok((message, published)) => {
                self.lag.record(published.elapsed().as_secs_f64());
                let sent = (self.encode)(message);
                let next = sent.is_ok().then_some(self);
                (sent, next)
            }
            Err(Lagged) => {
                DROPPED.inc((Rpc(self.rpc), DropReason::Behind));
                let why = "you read too slowly, and removals were forgotten: connect again";
                (Err(error(ErrorReason::ReaderTooSlow, why)), None)
            }
        }
    }
}

fn stopping() -> Status {
    error(ErrorReason::Draining, "this replica is stopping: connect again")
}
