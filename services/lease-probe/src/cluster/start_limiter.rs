//! How many connections begin to open at the same time, and how many lists of nodes.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Permits for work that takes some computing and may hang, each held for a limited time. They bound how much *begins*
/// in that time, not how much is under way: that is bounded by the callers, one connection per shoot and endpoint, and
/// by the time limit of the work itself.
#[derive(Debug)]
pub struct StartLimiter {
    permits: Semaphore,
    held_for: Duration,
}

/// A permit, given back when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct StartPermit<'l> {
    _permit: Option<SemaphorePermit<'l>>,
    held_for: Duration,
}

impl StartLimiter {
    /// A limiter with this many permits. Each is held for at most `held_for`: work that takes longer waits for its
    /// server and costs nothing. It must not keep others from servers that answer.
    #[must_use]
    pub const fn new(permits: usize, held_for: Duration) -> Self {
        Self {
            permits: Semaphore::const_new(permits),
            held_for,
        }
    }

    /// Waits for a permit, first come, first served.
    pub async fn acquire(&self) -> StartPermit<'_> {
        StartPermit {
            // Never closed.
            _permit: self.permits.acquire().await.ok(),
            held_for: self.held_for,
        }
    }
}

impl StartPermit<'_> {
    /// Does the work; gives the permit back when it is done or has been held for long enough.
    pub async fn during<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let done = tokio::time::timeout(self.held_for, &mut work).await;
        drop(self);
        match done {
            Ok(done) => done,
            Err(_) => work.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::time::{Instant, sleep};

    use super::*;

    const PERMITS: usize = 4;
    const HELD_FOR: Duration = Duration::from_secs(1);

    /// The start times of `count` tasks that are spawned together and take `takes` each.
    async fn begins(limiter: &Arc<StartLimiter>, count: usize, takes: Duration) -> Vec<Duration> {
        let (came, begun) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let all: Vec<_> = (0..count)
            .map(|_| {
                let (limiter, begun) = (limiter.clone(), begun.clone());
                tokio::spawn(async move {
                    let permit = limiter.acquire().await;
                    begun.lock().push(came.elapsed());
                    permit.during(sleep(takes)).await;
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
        let begun = begun.lock();
        begun.clone()
    }

    /// Whole steps of `step`: timers are exact to a millisecond or two.
    fn steps(begun: &[Duration], step: Duration) -> Vec<u128> {
        let half = step.as_millis() / 2;
        begun
            .iter()
            .map(|at| (at.as_millis() + half) / step.as_millis())
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_ends_soon_gives_its_permit_to_the_next() {
        let limiter = Arc::new(StartLimiter::new(PERMITS, HELD_FOR));
        let takes = Duration::from_millis(100);
        let begun = begins(&limiter, 3 * PERMITS, takes).await;
        assert_eq!(steps(&begun, takes), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    }

    /// The limiter still bounds the starts, and a task that hangs does not block the others for as long as it hangs.
    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_gives_its_permit_back_and_goes_on() {
        let limiter = Arc::new(StartLimiter::new(PERMITS, HELD_FOR));
        let hangs = 10 * HELD_FOR;
        let came = Instant::now();
        let begun = begins(&limiter, 3 * PERMITS, hangs).await;
        assert_eq!(steps(&begun, HELD_FOR), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(
            steps(&[came.elapsed()], HELD_FOR),
            [12],
            "the last was not cut short"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn giving_up_gives_the_permit_back() {
        let limiter = StartLimiter::new(1, HELD_FOR);
        let hangs = limiter.acquire().await.during(std::future::pending::<()>());
        assert!(tokio::time::timeout(HELD_FOR / 2, hangs).await.is_err());
        let next = tokio::time::timeout(Duration::ZERO, limiter.acquire()).await;
        assert!(next.is_ok());
    }
}
