//! The body of a Watch RPC.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream;
use metrics::Histogram;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use watchdog_runtime::metrics::GaugeGuard;
use watchdog_runtime::rpc_error::{self, ErrorReason, error};

use crate::message::Message;
use crate::metrics::{DROPPED, LAG, Rpc, SUBSCRIBERS};
use crate::subscription::{Lagged, Subscription};

/// The body of a streaming RPC.
pub type Responses<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

/// Serves a subscription as the body of the RPC named `rpc`, until `draining` is cancelled. `encode` runs when the
/// transport asks for the message, so that ages are those of the moment of sending. Its error ends the stream.
///
/// # Errors
/// UNAVAILABLE while draining.
pub fn serve<K, V, R>(
    rpc: &'static str,
    draining: CancellationToken,
    subscription: Subscription<K, V>,
    encode: impl FnMut(Message<K, Arc<V>>) -> Result<R, Status> + Send + 'static,
) -> Result<Responses<R>, Status>
where
    K: Ord + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
    R: 'static,
{
    if draining.is_cancelled() {
        return Err(rpc_error::draining());
    }
    let reader = Reader {
        subscription,
        encode,
        draining,
        rpc,
        lag: LAG.handle(Rpc(rpc)),
        _open: SUBSCRIBERS.track(Rpc(rpc)),
    };
    let next = async |reader: Option<Reader<K, V, _>>| Some(reader?.next().await);
    Ok(Box::pin(stream::unfold(Some(reader), next)))
}

/// One stream.
struct Reader<K, V, F> {
    subscription: Subscription<K, V>,
    encode: F,
    draining: CancellationToken,
    rpc: &'static str,
    lag: Histogram,
    _open: GaugeGuard,
}

impl<K: Ord + Clone, V, R, F: FnMut(Message<K, Arc<V>>) -> Result<R, Status>> Reader<K, V, F> {
    /// The next item of the stream, and the stream if it goes on.
    async fn next(mut self) -> (Result<R, Status>, Option<Self>) {
        let next = tokio::select! {
            biased;
            () = self.draining.cancelled() => return (Err(rpc_error::draining()), None),
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
                DROPPED.inc(Rpc(self.rpc));
                let why = "you read too slowly, and removals were forgotten: connect again";
                (Err(error(ErrorReason::ReaderTooSlow, why)), None)
            }
        }
    }
}
