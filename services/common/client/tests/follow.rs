//! The following client against servers that behave and servers that do not.

#![cfg(test)]

use std::convert::Infallible;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use watchdog_client::consumer::decoded;
use watchdog_client::follow::{Update, follow};
use watchdog_client::message::{COMPLETE, Event, Message, Position};
use watchdog_proto::probe::v1::WatchVerdictsRequest;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;

type Sent = Result<Message<String, u32>, Status>;

fn message(epoch: &str, event: Event<String, u32>) -> Sent {
    Ok(Message {
        position: Position {
            epoch: epoch.to_owned(),
            revision: 1,
            ..Default::default()
        },
        event,
    })
}

fn complete(items: u64) -> Event<String, u32> {
    Event::SnapshotComplete {
        items,
        completeness: COMPLETE,
    }
}

/// Follows one stream after the other.
fn start(streams: Vec<mpsc::Receiver<Sent>>) -> mpsc::UnboundedReceiver<Update<String, u32>> {
    let (sender, updates) = mpsc::unbounded_channel();
    let mut streams = streams.into_iter();
    let open = move || {
        let next = streams.next();
        async move {
            match next {
                Some(stream) => Ok(ReceiverStream::new(stream)),
                None => std::future::pending().await,
            }
        }
    };
    tokio::spawn(async move {
        let on_update = |update| drop(sender.send(update));
        follow(open, &CancellationToken::new(), on_update).await;
    });
    updates
}

#[tokio::test(start_paused = true)]
async fn the_state_is_swapped_at_the_end_of_the_snapshot_and_again_after_a_restart() {
    let (first, stream) = mpsc::channel(16);
    let (second, restarted) = mpsc::channel(16);
    let mut updates = start(vec![stream, restarted]);
    for (key, value) in [("a", 1), ("b", 2)] {
        first
            .send(message("one", Event::Upsert(key.into(), value)))
            .await
            .unwrap();
    }
    first.send(message("one", complete(2))).await.unwrap();
    let Some(Update::Snapshot(items, _)) = updates.recv().await else {
        panic!("no snapshot")
    };
    assert_eq!(items.len(), 2);
    drop(first);
    assert!(matches!(updates.recv().await, Some(Update::Lost(_))));
    second
        .send(message("two", Event::Upsert("b".into(), 3)))
        .await
        .unwrap();
    second.send(message("two", complete(1))).await.unwrap();
    let Some(Update::Snapshot(items, _)) = updates.recv().await else {
        panic!("no snapshot")
    };
    assert_eq!(items.keys().collect::<Vec<_>>(), ["b"]);
    second
        .send(message("two", Event::Removed("b".into())))
        .await
        .unwrap();
    assert_eq!(updates.recv().await, Some(Update::Removed("b".into())));
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_lost_and_so_is_one_with_an_incomplete_snapshot() {
    let (_held_open, silent) = mpsc::channel(16);
    let (short, incomplete) = mpsc::channel(16);
    let mut updates = start(vec![silent, incomplete]);
    short.send(message("one", complete(1))).await.unwrap();
    let Some(Update::Lost(reason)) = updates.recv().await else {
        panic!("silence not noticed")
    };
    assert!(reason.to_string().contains("no message for 15 s"), "{reason}");
    let Some(Update::Lost(reason)) = updates.recv().await else {
        panic!("missing item not noticed")
    };
    assert!(reason.to_string().contains("0 items instead of 1"), "{reason}");
}

/// A message of a stream of verdicts on the wire: a position, and an event that is the field of this number.
fn framed(event: u8) -> String {
    let message = [0x0a, 0, (event << 3) | 2, 0];
    let frame = [[0, 0, 0, 0].as_slice(), &[4], &message].concat();
    String::from_utf8(frame).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_event_that_only_a_newer_server_knows_ends_a_stream_and_the_next_one_is_followed() {
    const SNAPSHOT_COMPLETE: u8 = 4;
    const UNKNOWN: u8 = 15;
    let mut events = [UNKNOWN, SNAPSHOT_COMPLETE].into_iter();
    let open = move || {
        let event = events.next();
        async move {
            let Some(event) = event else {
                return std::future::pending().await;
            };
            let answer = move |_| std::future::ready(Ok::<_, Infallible>(http::Response::new(framed(event))));
            let mut api = LeaseProbeServiceClient::new(tower::service_fn(answer));
            let request = WatchVerdictsRequest::default();
            api.watch_verdicts(request).await.map(decoded)
        }
    };
    let (sender, mut updates) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let on_update = |update| drop(sender.send(update));
        follow(open, &CancellationToken::new(), on_update).await;
    });
    let Some(Update::Lost(failure)) = updates.recv().await else {
        panic!("the unknown event was not noticed")
    };
    assert_eq!(failure.code, Some(Code::DataLoss), "{failure}");
    assert!(matches!(updates.recv().await, Some(Update::Snapshot(items, _)) if items.is_empty()));
}
