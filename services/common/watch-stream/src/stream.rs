//! The body of a Watch RPC.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::message::Message;
use crate::metrics::{DROPPED, LAG, SUBSCRIBERS};
use crate::server::{Published, Subscription};

/// A reader that takes nothing for this time is closed.
pub const STALL_DEADLINE: Duration = Duration::from_secs(30);

/// Messages on their way between the cursor and the transport. Small: what waits here is not conflated any more.
const QUEUE: usize = 16;

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
            return Err(draining());
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            DROPPED.inc(&[("rpc", rpc.to_owned()), ("reason", "limit".to_owned())]);
            return Err(Status::resource_exhausted(
                "this replica serves 1024 streams already: close some, or ask another replica",
            ));
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        let end = Arc::new(OnceLock::new());
        let stamp = subscription.stamp();
        let pump = pump(rpc, subscription, sender, self.draining.clone(), end.clone());
        tokio::spawn(async move {
            SUBSCRIBERS.shift(&[("rpc", rpc.to_owned())], 1.0);
            pump.await;
            SUBSCRIBERS.shift(&[("rpc", rpc.to_owned())], -1.0);
            drop(place);
        });
        let lag = metrics::histogram!(LAG.name, "rpc" => rpc);
        let encode = move |mut message: Message<K, Arc<V>>, published: tokio::time::Instant| {
            lag.record(published.elapsed().as_secs_f64());
            stamp.sent(&mut message);
            encode(message)
        };
        Ok(Box::pin(Body {
            receiver,
            end,
            encode,
        }))
    }
}

fn draining() -> Status {
    Status::unavailable("this replica is stopping: connect again")
}

async fn pump<K, V>(
    rpc: &'static str,
    mut subscription: Subscription<K, V>,
    sender: mpsc::Sender<Published<K, V>>,
    draining_token: CancellationToken,
    end: Arc<OnceLock<Status>>,
) where
    K: Ord + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let dropped = |reason: &str| DROPPED.inc(&[("rpc", rpc.to_owned()), ("reason", reason.to_owned())]);
    let status = loop {
        let next = tokio::select! {
            biased;
            () = draining_token.cancelled() => break draining(),
            () = sender.closed() => return,
            next = subscription.next() => next,
        };
        let Ok(published) = next else {
            dropped("behind");
            break Status::resource_exhausted("read too slowly, removals were forgotten: connect again");
        };
        tokio::select! {
            biased;
            () = draining_token.cancelled() => break draining(),
            sent = tokio::time::timeout(STALL_DEADLINE, sender.send(published)) => match sent {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    dropped("stalled");
                    tracing::warn!(rpc, "a stream was not read for 30 s, closing it");
                    break Status::resource_exhausted("nothing was read for 30 s: connect again and read faster");
                }
            },
        }
    };
    // The queue may be full: the status has its own place, and the body ends with it.
    let _ = end.set(status);
}

/// Yields what the pump sends, then the status with which it ended.
struct Body<K, V, F> {
    receiver: mpsc::Receiver<Published<K, V>>,
    end: Arc<OnceLock<Status>>,
    encode: F,
}

impl<K, V, F> Unpin for Body<K, V, F> {}

impl<K, V, R, F> Stream for Body<K, V, F>
where
    F: Fn(Message<K, Arc<V>>, tokio::time::Instant) -> R,
{
    type Item = Result<R, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.receiver.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some((message, published))) => {
                Poll::Ready(Some(Ok((self.encode)(message, published))))
            }
            Poll::Ready(None) => {
                let status = self.end.get().cloned();
                self.end = Arc::default();
                Poll::Ready(status.map(Err))
            }
        }
    }
}
