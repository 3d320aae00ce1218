//! The log messages about this host's clock.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use lease_probe::domain::assessment::Evidence;
use lease_probe::domain::moment::Moment;
use lease_probe::domain::outcome::Outcome;
use lease_probe::domain::verdict::Verdict;
use lease_probe::host_clock;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::instrument::WithSubscriber;
use watchdog_watch_stream::server::StateStore;

/// The log of one task.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The lines so far, and none of them the next time.
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

fn verdict(skew_seconds: i64) -> Verdict {
    Verdict {
        outcome: Outcome::Healthy,
        failure: "",
        message: String::new(),
        evidence: Some(Arc::new(Evidence {
            candidates: 3,
            typical_skew: skew_seconds * 1_000_000,
            ..Evidence::default()
        })),
        observed_at: Moment(0),
        valid_until: Moment(0),
        outcome_since: Moment(0),
        observer: "lease-probe-0".into(),
        traceparent: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_off_is_told_once_and_when_it_is_right_again() {
    let (verdicts, stop, log) = (StateStore::new(), CancellationToken::new(), Log::default());
    let sink = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_writer(move || sink.clone())
        .finish();
    let watch = host_clock::watch(verdicts.clone(), "lease-probe-0".into(), stop.clone());
    let watch = tokio::spawn(watch.with_subscriber(subscriber));
    let shoots_seem_off_by = async |seconds: i64| {
        for shoot in ["a", "b", "c"] {
            verdicts.upsert(shoot.to_owned(), verdict(seconds));
        }
        // Two looks, on a clock that stands still otherwise.
        tokio::time::sleep(Duration::from_secs(21)).await;
        log.take()
    };
    let told = |lines: &[String], what: &str| lines.len() == 1 && lines[0].contains(what);
    assert_eq!(shoots_seem_off_by(0).await, Vec::<String>::new());
    let lines = shoots_seem_off_by(-60).await;
    assert!(told(&lines, "WARN") && told(&lines, "seconds=60"), "{lines:?}");
    // The same, except for the accuracy of the estimates.
    assert_eq!(shoots_seem_off_by(-64).await, Vec::<String>::new());
    let lines = shoots_seem_off_by(-300).await;
    assert!(told(&lines, "seconds=300"), "{lines:?}");
    let lines = shoots_seem_off_by(0).await;
    assert!(told(&lines, "is right again"), "{lines:?}");
    stop.cancel();
    watch.await.unwrap();
}
