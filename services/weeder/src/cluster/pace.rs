//! Bounds the requests a second of everything that shares a client.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tower::Service;
use watchdog_kube::client::REQUEST_DEADLINE;

const WINDOW: Duration = Duration::from_secs(1);

/// A client that sends at most this many requests in any second. Those beyond wait for their turn in the order in which
/// they came. The deadline of a request begins with its turn: to wait for that says nothing about the API server.
pub(crate) fn paced(client: kube::Client, rate: NonZeroU32) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let send = move |request| {
        let client = client.clone();
        async move { client.send(request).await }.boxed()
    };
    kube::Client::new(Paced::new(send, rate), namespace)
}

type ResponseFuture = BoxFuture<'static, kube::Result<Response<Body>>>;

/// There are as many slots as requests a second. A request holds one until [`WINDOW`] after its answer began. When it
/// is sent in between is not known, because a connection may have to be opened first; the next one in the same slot is
/// sent a second later in any case.
struct Paced<F> {
    send: F,
    // From when on each slot is free.
    free: mpsc::Receiver<Instant>,
    ended: mpsc::Sender<Instant>,
    wait: Option<Pin<Box<Sleep>>>,
    slot: Option<RequestSlot>,
}

/// Is free again [`WINDOW`] after it was dropped.
struct RequestSlot(mpsc::Sender<Instant>);

impl Drop for RequestSlot {
    fn drop(&mut self) {
        // There is room for every slot; without a receiver nothing is sent any more.
        let _ = self.0.try_send(Instant::now() + WINDOW);
    }
}

impl<F> Paced<F> {
    fn new(send: F, rate: NonZeroU32) -> Self {
        let slots = usize::try_from(rate.get()).unwrap_or(usize::MAX);
        let (ended, free) = mpsc::channel(slots);
        for _ in 0..slots {
            let _ = ended.try_send(Instant::now());
        }
        Self {
            send,
            free,
            ended,
            wait: None,
            slot: None,
        }
    }
}

impl<F: Fn(Request<Body>) -> ResponseFuture> Service<Request<Body>> for Paced<F> {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        while self.slot.is_none() {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(cx));
                self.wait = None;
                self.slot = Some(RequestSlot(self.ended.clone()));
            } else if let Some(from) = ready!(self.free.poll_recv(cx)) {
                self.wait = Some(Box::pin(tokio::time::sleep_until(from)));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (slot, answer) = (self.slot.take(), (self.send)(request));
        async move {
            let answer = tokio::time::timeout(REQUEST_DEADLINE, answer).await;
            drop(slot);
            answer.unwrap_or_else(|_| {
                let why = format!("no answer within {REQUEST_DEADLINE:?}");
                Err(kube::Error::Service(why.into()))
            })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use proptest::prelude::*;
    use tokio::runtime;

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
    async fn play(rate: u32, requests: Vec<Sent>) -> Vec<Instant> {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let sender = sent.clone();
        let send = move |request: Request<Body>| {
            let sent = sender.clone();
            let of = request.extensions().get::<Sent>().unwrap().clone();
            async move {
                tokio::time::sleep(Duration::from_millis(of.connect)).await;
                sent.lock().push(Instant::now());
                tokio::time::sleep(Duration::from_millis(of.answer)).await;
                Ok(Response::new(Body::empty()))
            }
            .boxed()
        };
        let client = kube::Client::new(Paced::new(send, NonZeroU32::new(rate).unwrap()), "default");
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
        fn never_more_in_any_second(rate in 1_u32..20, requests in requests()) {
            let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let sent = runtime.block_on(play(rate, requests));
            for few in sent.windows(rate as usize + 1) {
                prop_assert!(few[rate as usize] - few[0] >= WINDOW, "{:?}", few);
            }
        }
    }
}
