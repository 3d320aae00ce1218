//! Bounds the requests a second of everything that shares a client.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use tokio::time::{Instant, Sleep};
use tower::Service;

const WINDOW: Duration = Duration::from_secs(1);

/// A client that makes at most this many requests in any second. Those beyond wait for their turn in the order in which
/// they came.
pub(crate) fn paced(client: kube::Client, rate: NonZeroU32) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let paced = Paced {
        inner: client,
        window: SlidingWindow::new(rate),
        wait: None,
    };
    kube::Client::new(paced, namespace)
}

/// When the latest requests were made: as many as are allowed within [`WINDOW`].
#[derive(Debug)]
struct SlidingWindow {
    made: VecDeque<Instant>,
    rate: usize,
}

impl SlidingWindow {
    fn new(rate: NonZeroU32) -> Self {
        let rate = usize::try_from(rate.get()).unwrap_or(usize::MAX);
        Self {
            made: VecDeque::new(),
            rate,
        }
    }

    /// Counts a request now.
    ///
    /// # Errors
    /// When it must wait, and until when.
    fn try_take(&mut self, now: Instant) -> Result<(), Instant> {
        if self.made.len() < self.rate {
            self.made.push_back(now);
            return Ok(());
        }
        match self.made.front() {
            Some(oldest) if now < *oldest + WINDOW => Err(*oldest + WINDOW),
            _ => {
                self.made.pop_front();
                self.made.push_back(now);
                Ok(())
            }
        }
    }
}

struct Paced {
    inner: kube::Client,
    window: SlidingWindow,
    wait: Option<Pin<Box<Sleep>>>,
}

impl Service<Request<Body>> for Paced {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, kube::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        loop {
            if let Some(wait) = &mut self.wait {
                std::task::ready!(wait.as_mut().poll(cx));
                self.wait = None;
            }
            match self.window.try_take(Instant::now()) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(until) => self.wait = Some(Box::pin(tokio::time::sleep_until(until))),
            }
        }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        async move { inner.send(request).await }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn never_more_in_any_second(rate in 1_u32..20, gaps in prop::collection::vec(0_u64..400, 1..200)) {
            let mut window = SlidingWindow::new(NonZeroU32::new(rate).unwrap());
            let (mut now, mut made) = (Instant::now(), Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                if let Err(until) = window.try_take(now) {
                    prop_assert!(until > now && until <= now + WINDOW);
                    now = until;
                    prop_assert_eq!(window.try_take(now), Ok(()));
                }
                made.push(now);
            }
            for few in made.windows(rate as usize + 1) {
                prop_assert!(few[rate as usize] - few[0] >= WINDOW);
            }
        }
    }
}
