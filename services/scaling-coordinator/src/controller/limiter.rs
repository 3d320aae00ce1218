//! Bounds the requests to the seed: how many shoots make some at once, and how many begin in a second.

use parking_lot::Mutex;
use tokio::sync::{Mutex as FairMutex, Semaphore, SemaphorePermit};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use watchdog_runtime::metrics::GaugeGuard;
use watchdog_runtime::token_bucket::TokenBucket;

use crate::domain::Direction;
use crate::metrics::{UNDER_WAY, WAITING};

/// Shoots that make requests at once, each one or two as a rule. A healthy API server answers within 20 ms, so this
/// carries more than any sensible rate; on one that takes seconds it bounds the flood.
const MAX_SHOOTS: usize = 64;

/// Shoots on their way up that have or wait for a turn beside those on their way down. Scale-downs come first, because
/// a meltdown waits for nobody; a long row of losses does not keep a recovered shoot down, because the turns are given
/// in the order in which they were asked for.
const MAX_UP: usize = 32;

/// Gives turns to make requests. The queues are fair.
pub(crate) struct RequestLimiter {
    up: Semaphore,
    shoots: Semaphore,
    /// Held by the one who waits for the rate.
    next: FairMutex<()>,
    bucket: Mutex<TokenBucket>,
    /// Each shoot that waits for a turn has a token.
    pub(crate) waiting: TaskTracker,
}

/// A shoot's turn to make requests.
#[must_use = "the requests are only bounded while the turn exists"]
pub(crate) struct Turn<'a> {
    limiter: &'a RequestLimiter,
    _up: Option<SemaphorePermit<'a>>,
    _shoot: Option<SemaphorePermit<'a>>,
}

impl RequestLimiter {
    /// At most `rate` requests a second.
    pub(crate) fn new(rate: u32) -> Self {
        Self {
            up: Semaphore::new(MAX_UP),
            shoots: Semaphore::new(MAX_SHOOTS),
            next: FairMutex::new(()),
            // A tenth of a second's requests at once.
            bucket: Mutex::new(TokenBucket::new(rate, rate / 10)),
            waiting: TaskTracker::new(),
        }
    }

    /// Waits for a turn of a shoot that goes in this direction.
    pub(crate) async fn turn(&self, direction: Direction) -> Turn<'_> {
        let waiting = (self.waiting.token(), WAITING.track(()));
        let up = match direction {
            Direction::Down => None,
            // The semaphores are never closed.
            Direction::Up | Direction::Release => self.up.acquire().await.ok(),
        };
        let shoot = self.shoots.acquire().await.ok();
        let next = self.next.lock().await;
        loop {
            let wait = self.bucket.lock().wait_for(1);
            if wait.is_zero() {
                break;
            }
            sleep(wait).await;
        }
        drop((next, waiting));
        Turn {
            limiter: self,
            _up: up,
            _shoot: shoot,
        }
    }
}

impl Turn<'_> {
    /// Counts a request that begins now and is in flight until the returned guard is dropped. If that is more than the
    /// rate allows, the next turn waits for it.
    pub(crate) fn begin_request(&self) -> GaugeGuard {
        self.limiter.bucket.lock().take();
        UNDER_WAY.track(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_keep_the_rate_and_the_bound() {
        let limiter = RequestLimiter::new(100);
        let start = Instant::now();
        for _ in 0..200 {
            let turn = limiter.turn(Direction::Down).await;
            drop(turn.begin_request());
            drop(turn.begin_request());
        }
        let took = start.elapsed();
        assert!(
            took > Duration::from_millis(3_850) && took < Duration::from_millis(4_100),
            "{took:?}"
        );
        let limiter = RequestLimiter::new(10_000);
        let mut turns = Vec::new();
        for _ in 0..MAX_SHOOTS {
            turns.push(limiter.turn(Direction::Down).await);
        }
        assert!(limiter.turn(Direction::Down).now_or_never().is_none());
        turns.pop();
        assert!(limiter.turn(Direction::Down).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_waits_for_few_recoveries() {
        let limiter = Arc::new(RequestLimiter::new(2));
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        let mut ask = |direction, name: String| {
            let (limiter, order) = (limiter.clone(), order.clone());
            tasks.spawn(async move {
                let turn = limiter.turn(direction).await;
                drop(turn.begin_request());
                order.lock().push(name);
            });
        };
        (0..2 * MAX_UP).for_each(|i| ask(Direction::Up, format!("up {i}")));
        tokio::task::yield_now().await;
        (0..20).for_each(|i| ask(Direction::Down, format!("down {i}")));
        while tasks.join_next().await.is_some() {}
        let order = order.lock();
        let at = |name: &str| order.iter().position(|one| one == name).unwrap();
        // One of them went at once.
        assert!(at("down 0") <= MAX_UP + 1, "{order:?}");
        assert!(at("down 19") < at(&format!("up {}", MAX_UP + 1)), "{order:?}");
    }
}
