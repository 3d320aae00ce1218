//! Restarts probers that a defect has ended.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

/// A defect that every probe meets must not cause a storm.
const PAUSE: Duration = Duration::from_secs(10);

/// Runs a prober until it ends or `stop` is cancelled. One that panics starts again after a pause, so that a defect
/// leaves no shoot unprotected until the next restart of the process.
pub(super) async fn supervise<F: Future<Output = ()>>(
    stop: &CancellationToken,
    mut begin: impl FnMut() -> F,
) {
    // Unwind safe: a prober that panicked is dropped. On the heap, where it takes its room once.
    while AssertUnwindSafe(Box::pin(begin())).catch_unwind().await.is_err() {
        tracing::error!("prober panicked; starting it again in 10 s: report this defect of lease-probe");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_panics_begins_anew_and_what_ends_does_not() {
        let (began, stop) = (Instant::now(), CancellationToken::new());
        let mut runs = 0;
        let begin = || {
            runs += 1;
            let run = runs;
            async move { assert!(run > 2, "a defect") }
        };
        supervise(&stop, begin).await;
        assert_eq!((runs, began.elapsed().as_secs()), (3, 20));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_stopped_does_not_begin_anew() {
        let (began, stop) = (Instant::now(), CancellationToken::new());
        let cancel = stop.clone();
        let begin = || {
            cancel.cancel();
            async { panic!("a defect") }
        };
        supervise(&stop, begin).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
