//! Bounds the requests a second of everything that shares a pace.

use std::sync::Arc;

use http::Request;
use kube::client::Body;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use watchdog_kube::client::REQUEST_DEADLINE;
use watchdog_runtime::token_bucket::TokenBucket;

/// Requests that need not wait after a pause: those for a hundred services of two pods that recover together.
const BURST: u32 = 200;

/// As many of them are kept for deletions and watches: Events never delay those by more than the rest.
const KEPT_FROM_EVENTS: u32 = 180;

/// A burst of [`BURST`] requests, then this many a second, in the order in which they come. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pace {
    bucket: Arc<Mutex<TokenBucket>>,
    /// Requests that must be free before this one.
    needs: u32,
}

impl Pace {
    /// `rate` is in requests a second.
    pub(crate) fn new(rate: u16) -> Self {
        Self {
            bucket: Arc::new(TokenBucket::new(rate.into(), BURST).into()),
            needs: 1,
        }
    }

    /// The same pace for Events, which come after all other requests.
    pub(crate) fn for_events(&self) -> Self {
        Self {
            needs: KEPT_FROM_EVENTS + 1,
            ..self.clone()
        }
    }

    /// Waits for the turn of a request. Safe to cancel; fair, because the lock is.
    pub(crate) async fn turn(&self) {
        let mut bucket = self.bucket.lock().await;
        loop {
            let wait = bucket.wait_for(self.needs);
            if wait.is_zero() {
                break;
            }
            if self.needs == 1 {
                sleep(wait).await;
            } else {
                drop(bucket);
                sleep(wait).await;
                bucket = self.bucket.lock().await;
            }
        }
        bucket.take();
    }

    /// A client whose requests each wait for their turn. The deadline of a request begins with its turn: to wait for
    /// that says nothing about the API server.
    pub(crate) fn client(&self, client: kube::Client) -> kube::Client {
        let (pace, namespace) = (self.clone(), client.default_namespace().to_owned());
        let paced = tower::service_fn(move |request: Request<Body>| {
            let (pace, client) = (pace.clone(), client.clone());
            async move {
                pace.turn().await;
                timeout(REQUEST_DEADLINE, client.send(request))
                    .await
                    .unwrap_or_else(|_| {
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
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::runtime;
    use tokio::time::Instant;

    use super::*;

    /// When each of the requests is sent that come after these pauses.
    async fn play(rate: u16, pauses: Vec<u64>) -> Vec<Instant> {
        let pace = Pace::new(rate);
        let mut tasks = Vec::new();
        for pause in pauses {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let pace = pace.clone();
            tasks.push(tokio::spawn(async move {
                pace.turn().await;
                Instant::now()
            }));
        }
        let mut sent = Vec::new();
        for task in tasks {
            sent.push(task.await.unwrap());
        }
        sent
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let (begun, sent) = run(async { (Instant::now(), play(100, vec![0; 300]).await) });
        let after = |request: usize| (sent[request] - begun).as_millis();
        assert!(after(199) <= 2, "{}", after(199));
        assert!((990..=1_010).contains(&after(299)), "{}", after(299));
    }

    #[test]
    fn events_delay_no_deletion() {
        let waited = run(async {
            let pace = Pace::new(100);
            let begun = Instant::now();
            let events = (0..400).map(|_| {
                let pace = pace.for_events();
                tokio::spawn(async move { pace.turn().await })
            });
            let events: Vec<_> = events.collect();
            tokio::time::sleep(Duration::from_millis(1)).await;
            for _ in 0..BURST {
                pace.turn().await;
            }
            let waited = begun.elapsed();
            for event in events {
                event.await.unwrap();
            }
            waited
        });
        assert!(waited <= Duration::from_millis(250), "{waited:?}");
    }

    proptest! {
        #[test]
        fn never_more_than_a_burst_and_the_rate(
            rate in 1_u16..200,
            pauses in prop::collection::vec(prop_oneof![4 => Just(0_u64), 1 => 0_u64..3_000], 1..500),
        ) {
            let sent = run(play(rate, pauses));
            prop_assert!(sent.is_sorted(), "in the order in which they came");
            for (i, first) in sent.iter().enumerate() {
                for (count, last) in sent[i..].iter().enumerate() {
                    let allowed = f64::from(BURST) + (*last - *first).as_secs_f64() * f64::from(rate) + 1.5;
                    prop_assert!(count as f64 <= allowed, "{count} in {:?}", *last - *first);
                }
            }
        }
    }
}
