//! Kubernetes Events, published on the side: nobody waits for them.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::client::request;
use crate::metrics::EVENTS;

/// Events that wait to be published. A seed-wide incident makes some for every shoot; what does not fit is counted
/// and dropped, because the log and the streams tell the same.
const QUEUE: usize = 4096;

/// What is to be said about an object.
#[derive(Debug, Clone)]
pub struct Notice {
    /// The object.
    pub about: ObjectReference,
    /// Whether somebody should look at it.
    pub warning: bool,
    /// Why, in Pascal case, for example `MeltdownProtection`.
    pub reason: &'static str,
    /// What was done, in Pascal case, for example `ScaledDown`.
    pub action: &'static str,
    /// A sentence for people; cut at 1 kB.
    pub note: String,
}

/// Takes notices. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventSink {
    sender: mpsc::Sender<Notice>,
}

impl EventSink {
    /// Hands a notice over; drops and counts it when too many are waiting.
    pub fn publish(&self, notice: Notice) {
        if self.sender.try_send(notice).is_err() {
            EVENTS.inc(&[("result", "dropped".to_owned())]);
        }
    }
}

/// A sink, and the task that publishes what it takes, under the name of the `controller` and the replica.
pub fn recorder(
    client: kube::Client,
    controller: &str,
    identity: &str,
    stop: CancellationToken,
) -> (
    EventSink,
    impl Future<Output = anyhow::Result<()>> + Send + 'static,
) {
    EVENTS.begin_by("result", &["published", "failed", "dropped"]);
    let (sender, mut receiver) = mpsc::channel::<Notice>(QUEUE);
    let reporter = Reporter {
        controller: controller.to_owned(),
        instance: Some(identity.to_owned()),
    };
    let recorder = Recorder::new(client, reporter);
    let task = async move {
        loop {
            let notice = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                notice = receiver.recv() => notice,
            };
            let Some(notice) = notice else { return Ok(()) };
            let event = Event {
                type_: if notice.warning {
                    EventType::Warning
                } else {
                    EventType::Normal
                },
                reason: notice.reason.to_owned(),
                note: Some(notice.note.chars().take(1000).collect()),
                action: notice.action.to_owned(),
                secondary: None,
            };
            let result = match request(recorder.publish(&event, &notice.about)).await {
                Ok(()) => "published",
                Err(error) => {
                    tracing::warn!(%error, reason = notice.reason, "cannot publish a Kubernetes Event");
                    "failed"
                }
            };
            EVENTS.inc(&[("result", result.to_owned())]);
        }
    };
    (EventSink { sender }, task)
}
