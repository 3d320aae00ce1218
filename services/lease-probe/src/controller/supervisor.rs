//! Restarts probers that a defect has ended.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;

/// A defect that every probe meets must not cause a storm.
const PAUSE: Duration = Duration::from_secs(10);

/// Runs a prober until it ends. One that panics starts again after a pause, so that a defect leaves no shoot
/// unprotected until the next restart of the process. Safe to cancel.
pub(super) async fn supervise<F: Future<Output = ()>>(mut begin: impl FnMut() -> F) {
    // Unwind safe: a prober that panicked is dropped. On the heap, where it takes its room once.
    while AssertUnwindSafe(Box::pin(begin())).catch_unwind().await.is_err() {
        tracing::error!("prober panicked; starting it again in 10 s: report this defect of lease-probe");
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_panics_begins_anew_and_what_ends_does_not() {
        let began = Instant::now();
        let mut runs = 0;
        let begin = || {
            runs += 1;
            let run = runs;
            async move { assert!(run > 2, "a defect") }
        };
        supervise(begin).await;
        assert_eq!((runs, began.elapsed().as_secs()), (3, 20));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_dropped_does_not_begin_anew() {
        let mut runs = 0;
        let begin = || {
            runs += 1;
            async { panic!("a defect") }
        };
        assert!(tokio::time::timeout(PAUSE / 2, supervise(begin)).await.is_err());
        assert_eq!(runs, 1);
    }
}
