//! Metrics of a follower.

#![cfg(test)]

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use watchdog_runtime::readiness::Readiness;
use watchdog_watch_stream::client::{Update, follow};
use watchdog_watch_stream::message::{COMPLETE, Event, Message, Position};

type Sent = Result<Message<String, u32>, Status>;

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_aborted_is_not_connected_any_more() {
    let recorder = PrometheusBuilder::new().build_recorder();
    // The runtime of this test has one thread.
    let _recording = metrics::set_default_local_recorder(&recorder);
    let shown = |n: u32| {
        let text = recorder.handle().render();
        let line = format!("watchdog_stream_client_connected{{stream=\"test\"}} {n}");
        assert!(text.lines().any(|shown| shown == line), "{text}");
    };
    let (sender, stream) = mpsc::channel::<Sent>(16);
    let (received, mut updates) = mpsc::unbounded_channel();
    let follower = tokio::spawn(async move {
        let mut stream = Some(stream);
        let open = || std::future::ready(Ok(ReceiverStream::new(stream.take().expect("it is opened once"))));
        let on_update = |update| drop(received.send(update));
        let (readiness, stop) = (Readiness::default(), CancellationToken::new());
        follow("test", open, &readiness, &stop, on_update).await;
    });
    sender
        .send(Ok(Message {
            position: Position::default(),
            event: Event::SnapshotComplete {
                items: 0,
                completeness: COMPLETE,
            },
        }))
        .await
        .unwrap();
    assert!(matches!(updates.recv().await, Some(Update::Snapshot(..))));
    shown(1);
    follower.abort();
    assert!(follower.await.unwrap_err().is_cancelled());
    shown(0);
}
