//! The body of a Watch RPC.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream;
use metrics::Histogram;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::message::Message;
use watchdog_runtime::rpc_error::{ErrorReason, error};

use crate::metrics::{DROPPED, DropReason, LAG, Rpc, SUBSCRIBERS};
use crate::server::{Lagged, Subscription};

/// Open streams of one process at most. Each holds a cursor and at most one batch of shared values.
const MAX_STREAMS: usize = 1024;

/// The body of a streaming RPC.
pub type Responses<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

/// The state that all Watch RPCs of a service share.
#[derive(Debug, Clone)]
pub struct Streams {
    places: Arc<Semaphore>,
    draining: CancellationToken,
}

impl Streams {
    /// Streams end with UNAVAILABLE once `draining` is cancelled.
    #[must_use]
    pub fn new(draining: CancellationToken) -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_STREAMS)),
            draining,
        }
    }

    /// Serves a subscription as the body of the RPC named `rpc`. `encode` runs when the transport asks for the
    /// message, so that ages are those of the moment of sending.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when there are too many streams, UNAVAILABLE while draining.
    pub fn serve<K, V, R>(
        &self,
        rpc: &'static str,
        subscription: Subscription<K, V>,
        encode: impl Fn(Message<K, Arc<V>>) -> R + Send + 'static,
    ) -> Result<Responses<R>, Status>
    where
        K: Ord + Clone + Send + Sync + 'static,
        V: Send + Sync + 'static,
        R: 'static,
    {
        if self.draining.is_cancelled() {
            return Err(stopping());
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            DROPPED.inc((Rpc(rpc), DropReason::Limit));
            return Err(error(
                ErrorReason::TooManyStreams,
                "this replica serves 1024 streams already: close some, or ask another replica",
            ));
        };
        let reader = Reader {
            subscription,
            encode,
            draining: self.draining.clone(),
            lag: LAG.handle(Rpc(rpc)),
            open: OpenStream::new(rpc, place),
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
    lag: Histogram,
    open: OpenStream,
}

impl<K: Ord + Clone, V, R, F: Fn(Message<K, Arc<V>>) -> R> Reader<K, V, F> {
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
                (Ok((self.encode)(message)), Some(self))
            }
            Err(Lagged) => {
                DROPPED.inc((Rpc(self.open.rpc), DropReason::Behind));
                let why = "read too slowly, removals were forgotten: connect again";
                (Err(error(ErrorReason::ReaderTooSlow, why)), None)
            }
        }
    }
}

fn stopping() -> Status {
    error(ErrorReason::Draining, "this replica is stopping: connect again")
}

/// Counts a stream for as long as it is open, and holds its place.
struct OpenStream {
    rpc: &'static str,
    _place: OwnedSemaphorePermit,
}

impl OpenStream {
    fn new(rpc: &'static str, place: OwnedSemaphorePermit) -> Self {
        SUBSCRIBERS.shift(Rpc(rpc), 1.0);
        Self { rpc, _place: place }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        SUBSCRIBERS.shift(Rpc(self.rpc), -1.0);
    }
}
