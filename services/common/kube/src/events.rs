//! Kubernetes Events, published on the side: nobody waits for them.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::OptionFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use watchdog_runtime::readiness::Readiness;

use crate::client::{RequestError, request};
use crate::metrics::{EVENTS, EventResult};

/// Events that wait to be published. A seed-wide incident makes some for every shoot; what does not fit is counted
/// and dropped, because the log and the streams tell the same.
const QUEUE: usize = 4096;

/// Warnings that wait to be published. They have a place of their own and go first: somebody should look at them, and
/// thousands of ordinary Events of an incident must neither push them out nor delay them.
const WARNINGS: usize = 1024;

/// How long waiting Events are published after the process is asked to stop. Far below the grace of the drain, because
/// a server that does not answer must not hold it up.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// Events that are published at one time after the process is asked to stop. So an API server that takes 20 ms for each
/// gets all that can be waiting in [`LAST_EVENTS`]; before that, one at a time is enough.
const LAST_AT_ONCE: usize = 32;

/// Name of the publisher in /readyz and in metrics.
const LOOP: &str = "events";

/// The same note after this time begins another Event, as in kube's recorder.
const SERIES_LIMIT: Duration = Duration::from_secs(6 * 60);

/// Notes that are remembered at most. There are a few for each resource and reason, whatever the number of shoots, and
/// some for each error text; to forget all of them makes new Events of what would have been series.
const MAX_NOTES: usize = 512;

/// A note about an object.
#[derive(Debug, Clone)]
pub struct Notice {
    /// The object.
    pub about: ObjectReference,
    /// True if somebody should look at it.
    pub warning: bool,
    /// Why, in Pascal case, for example `MeltdownProtection`.
    pub reason: &'static str,
    /// The action, in Pascal case, for example `ScaledDown`.
    pub action: &'static str,
    /// A sentence for people; cut at 1 kB.
    pub note: String,
}

/// Takes notices. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventSink {
    is_open: bool,
    warnings: mpsc::Sender<Notice>,
    ordinary: mpsc::Sender<Notice>,
}

/// The notices that wait.
struct Waiting {
    warnings: mpsc::Receiver<Notice>,
    ordinary: mpsc::Receiver<Notice>,
    urgent: TaskTracker,
}

impl EventSink {
    /// Hands a notice over; drops and counts it when too many are waiting.
    pub fn publish(&self, notice: Notice) {
        if !self.is_open {
            return;
        }
        let queue = if notice.warning {
            &self.warnings
        } else {
            &self.ordinary
        };
        if queue.try_send(notice).is_err() {
            EVENTS.inc(EventResult::Dropped);
        }
    }

    /// Ignores all notices from now on unless `open`: for a program that only observes.
    #[must_use]
    pub fn open_if(self, open: bool) -> Self {
        Self {
            is_open: open,
            ..self
        }
    }
}

impl Waiting {
    /// The next notice, warnings first; none when all sinks are gone. Safe to cancel.
    async fn next(&mut self) -> Option<Notice> {
        let Self {
            warnings,
            ordinary,
            urgent,
        } = self;
        let ordinary = async {
            urgent.wait().await;
            ordinary.recv().await
        };
        tokio::select! {
            biased;
            Some(warning) = warnings.recv() => Some(warning),
            Some(ordinary) = ordinary => Some(ordinary),
            else => None,
        }
    }

    /// Takes no more, and gives the number of those that wait.
    fn close(&mut self) -> u64 {
        self.warnings.close();
        self.ordinary.close();
        (self.warnings.len() + self.ordinary.len()) as u64
    }
}

/// A sink, and the task that publishes what it takes, under the name of the `controller` and the replica. While
/// something `urgent` needs the API server, only warnings are published. When `stop` is cancelled the task goes on
/// until all sinks are gone, for at most 5 s; what is left then is counted and dropped.
pub fn recorder(
    client: kube::Client,
    controller: &str,
    identity: &str,
    urgent: TaskTracker,
    readiness: Readiness,
    stop: CancellationToken,
) -> (
    EventSink,
    impl Future<Output = anyhow::Result<()>> + Send + 'static,
) {
    // `wait` ends on a closed tracker only; this one just counts.
    urgent.close();
    let (warnings, waiting_warnings) = mpsc::channel(WARNINGS);
    let (ordinary, waiting_ordinary) = mpsc::channel(QUEUE);
    let mut waiting = Waiting {
        warnings: waiting_warnings,
        ordinary: waiting_ordinary,
        urgent,
    };
    let reporter = Reporter {
        controller: controller.to_owned(),
        instance: Some(identity.to_owned()),
    };
    let publisher = Publisher {
        client,
        reporter,
        readiness,
        recorders: Mutex::default(),
    };
    let task = async move {
        let mut end = None;
        let mut publishing = FuturesUnordered::new();
        let mut is_open = true;
        while is_open || !publishing.is_empty() {
            let at_once = if end.is_some() { LAST_AT_ONCE } else { 1 };
            tokio::select! {
                // First, so that nothing begins with the patience of one that has time.
                biased;
                () = stop.cancelled(), if end.is_none() => end = Some(Instant::now() + LAST_EVENTS),
                Some(()) = OptionFuture::from(end.map(sleep_until)) => break,
                Some(()) = publishing.next() => {}
                notice = waiting.next(), if is_open && publishing.len() < at_once => match notice {
                    Some(notice) => publishing.push(publisher.publish(notice)),
                    None => is_open = false,
                },
            }
        }
        let dropped = waiting.close() + publishing.len() as u64;
        if dropped > 0 {
            EVENTS.handle(EventResult::Dropped).increment(dropped);
            tracing::warn!(
                dropped,
                "Kubernetes Events were not published before the process stopped"
            );
        }
        Ok(())
    };
    let sink = EventSink {
        is_open: true,
        warnings,
        ordinary,
    };
    (sink, task)
}

/// Publishes notices. A notice that repeats one of the last minutes makes a series of its Event.
struct Publisher {
    client: kube::Client,
    reporter: Reporter,
    readiness: Readiness,
    /// By note, with the time of the last use: kube's recorder takes two Events for the same whatever their notes say,
    /// and goes on showing the first one.
    recorders: Mutex<HashMap<String, (Recorder, Instant)>>,
}

impl Publisher {
    async fn publish(&self, notice: Notice) {
        let note: String = notice.note.chars().take(1000).collect();
        let event = Event {
            type_: if notice.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: notice.reason.to_owned(),
            note: Some(note.clone()),
            action: notice.action.to_owned(),
            secondary: None,
        };
        let recorder = self.recorder(&note);
        let mut published = request(recorder.publish(&event, &notice.about)).await;
        if published.as_ref().is_err_and(RequestError::is_not_found) {
            // The Event that this would repeat is gone: deleted, or lost with an etcd that was restored from a backup.
            self.recorders.lock().remove(&note);
            let recorder = self.recorder(&note);
            published = request(recorder.publish(&event, &notice.about)).await;
        }
        let result = match published {
            Ok(()) => {
                self.readiness.recovered(LOOP);
                EventResult::Published
            }
            Err(error) => {
                let failure = error.failure();
                let (event, reason) = (notice.reason, failure.reason.as_str());
                tracing::warn!(event, reason, %error, "cannot publish a Kubernetes Event");
                self.readiness.failing(LOOP, failure);
                EventResult::Failed
            }
        };
        EVENTS.inc(result);
    }

    /// The recorder of a note.
    fn recorder(&self, note: &str) -> Recorder {
        let now = Instant::now();
        let mut recorders = self.recorders.lock();
        recorders.retain(|_, (_, used)| now < *used + SERIES_LIMIT);
        if recorders.len() >= MAX_NOTES {
            recorders.clear();
        }
        let fresh = || (Recorder::new(self.client.clone(), self.reporter.clone()), now);
        let (recorder, used) = recorders.entry(note.to_owned()).or_insert_with(fresh);
        *used = now;
        recorder.clone()
    }
}
