//! Bounds the requests a second of everything that shares a pace.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::client::Body;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use watchdog_kube::client::REQUEST_DEADLINE;

const WINDOW: Duration = Duration::from_secs(1);

/// At most this many requests in any second. Those beyond wait for their turn in the order in which they came. Cheap to
/// clone.
///
/// There are as many slots as requests a second. A request holds one until [`WINDOW`] after its answer began. When it
/// is sent in between is not known, because a connection may have to be opened first; the next one in the same slot is
/// sent a second later in any case.
#[derive(Clone)]
pub(crate) struct Pace(Arc<Semaphore>);

/// Is free again [`WINDOW`] after it was dropped.
pub(crate) struct RequestSlot(Option<OwnedSemaphorePermit>);

// === impl RequestSlot ===

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let permit = self.0.take();
        // Outside of a runtime nothing is sent any more.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                sleep(WINDOW).await;
                drop(permit);
            });
        }
    }
}

// === impl Pace ===

impl Pace {
    /// `rate` is in requests a second, and not zero.
    pub(crate) fn new(rate: u16) -> Self {
        Self(Arc::new(Semaphore::new(rate.into())))
    }

    /// Waits for the turn of a request. Safe to cancel.
    pub(crate) async fn turn(&self) -> RequestSlot {
        // It fails only for a semaphore that was closed, and this one never is.
        RequestSlot(self.0.clone().acquire_owned().await.ok())
    }

    /// A client whose requests each wait for their turn. The deadline of a request begins with its turn: to wait for
    /// that says nothing about the API server.
    pub(crate) fn client(&self, client: kube::Client) -> kube::Client {
        let (pace, namespace) = (self.clone(), client.default_namespace().to_owned());
        let paced = tower::service_fn(move |request: Request<Body>| {
            let (pace, client) = (pace.clone(), client.clone());
            async move {
                let slot = pace.turn().await;
                let answer = timeout(REQUEST_DEADLINE, client.send(request)).await;
                drop(slot);
                answer.unwrap_or_else(|_| {
                    let why = format!("no answer within {REQUEST_DEADLINE:?}");
                    Err(kube::Error::Service(why.into()))
                })
            }
        });
        kube::Client::new(paced, namespace)
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use tokio::runtime;
    use tokio::time::Instant;

    use super::*;

    /// In milliseconds.
    #[derive(Debug, Clone)]
    struct Sent {
        after: u64,
        connect: u64,
        answer: u64,
        given_up_after: u64,
    }

    fn requests() -> impl Strategy<Value = Vec<Sent>> {
        let request = (0..300_u64, 0..2_000_u64, 0..500_u64, 0..10_000_u64);
        let request = request.prop_map(|(after, connect, answer, given_up_after)| Sent {
            after,
            connect,
            answer,
            given_up_after,
        });
        prop::collection::vec(request, 1..120)
    }

    /// When each request was sent.
    async fn play(rate: u16, requests: Vec<Sent>) -> Vec<Instant> {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let sender = sent.clone();
        let send = move |request: Request<Body>| {
            let sent = sender.clone();
            let of = request.extensions().get::<Sent>().unwrap().clone();
            async move {
                tokio::time::sleep(Duration::from_millis(of.connect)).await;
                sent.lock().push(Instant::now());
                tokio::time::sleep(Duration::from_millis(of.answer)).await;
                Ok::<_, kube::Error>(Response::new(Body::empty()))
            }
        };
        let server = kube::Client::new(tower::service_fn(send), "default");
        let client = Pace::new(rate).client(server);
        let mut tasks = Vec::new();
        for of in requests {
            tokio::time::sleep(Duration::from_millis(of.after)).await;
            let given_up_after = Duration::from_millis(of.given_up_after);
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(of);
            let client = client.clone();
            tasks.push(tokio::spawn(tokio::time::timeout(given_up_after, async move {
                client.send(request).await
            })));
        }
        for task in tasks {
            let _ = task.await.unwrap();
        }
        // Whatever was given up, every slot is free again.
        let last = Sent {
            after: 0,
            connect: 0,
            answer: 0,
            given_up_after: 0,
        };
        for _ in 0..rate {
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(last.clone());
            client.send(request).await.unwrap();
        }
        let mut sent = sent.lock().clone();
        sent.sort();
        sent
    }

    proptest! {
        /// Requests that are sent at any time between their slot and their answer, or are given up.
        #[test]
        fn never_more_in_any_second(rate in 1_u16..20, requests in requests()) {
            let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let sent = runtime.block_on(play(rate, requests));
            for few in sent.windows(usize::from(rate) + 1) {
                prop_assert!(few[usize::from(rate)] - few[0] >= WINDOW, "{:?}", few);
            }
        }
    }
}
