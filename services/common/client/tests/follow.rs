//! The following client against servers that behave and servers that do not.

#![cfg(test)]

use std::convert::Infallible;
use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use watchdog_client::follow::{Update, follow};
use watchdog_client::message::{COMPLETE, Event, Message, Position, Unreadable};
use watchdog_client::open::open;
use watchdog_proto::probe::v1::{
    Verdict, WatchVerdictsRequest, WatchVerdictsResponse, watch_verdicts_response,
};
use watchdog_proto::stream::v1::SnapshotComplete;

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

#[tokio::test(start_paused = true)]
async fn a_stream_that_only_beats_is_lost() {
    let began = Instant::now();
    let (sender, beats) = mpsc::channel(16);
    let mut updates = start(vec![beats]);
    tokio::spawn(async move {
        let mut seconds = tokio::time::interval(Duration::from_secs(5));
        loop {
            seconds.tick().await;
            let completeness = Some(COMPLETE);
            let beat = message("one", Event::Heartbeat { completeness });
            if sender.send(beat).await.is_err() {
                return;
            }
        }
    });
    let Some(Update::Lost(reason)) = updates.recv().await else {
        panic!("no snapshot was sent")
    };
    assert!(reason.to_string().contains("no complete snapshot"), "{reason}");
    assert_eq!(began.elapsed().as_secs(), 60);
}

/// A proxy between client and server may allow no answer that lasts.
#[tokio::test(start_paused = true)]
async fn streams_that_end_right_after_their_snapshots_are_opened_ever_more_slowly() {
    let opened = AtomicUsize::new(0);
    let open = || {
        opened.fetch_add(1, Ordering::Relaxed);
        ready(Ok(tokio_stream::iter([message("one", complete(0))])))
    };
    let stop = CancellationToken::new();
    let minute = Duration::from_secs(60);
    let _ = tokio::time::timeout(minute, follow(open, &stop, |_: Update<String, u32>| ())).await;
    let opened = opened.into_inner();
    assert!((15..=35).contains(&opened), "{opened} streams in a minute");
}

/// A message on the wire.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], length.as_slice(), message].concat()
}

fn response(event: watch_verdicts_response::Event) -> Vec<u8> {
    let response = WatchVerdictsResponse {
        position: Some(Position::default()),
        event: Some(event),
    };
    response.encode_to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_read_is_skipped_and_the_stream_goes_on() {
    use watch_verdicts_response::Event;
    let verdict = |shoot: &str, message: String| {
        response(Event::Upsert(Verdict {
            shoot: shoot.to_owned(),
            message,
            ..Default::default()
        }))
    };
    let complete = Event::SnapshotComplete(SnapshotComplete {
        items: 4,
        completeness: Some(COMPLETE),
    });
    let body = [
        // An event that only a newer server knows: field 15.
        framed(&[0x0a, 0, (15 << 3) | 2, 0]),
        // A length that is not there.
        framed(&[0x0a, 200, 1]),
        framed(&verdict("large", "x".repeat(300_000))),
        framed(&verdict("good", "as it should be".to_owned())),
        framed(&response(complete)),
        framed(&verdict("large", "x".repeat(300_000))),
        framed(&verdict("good", "still there".to_owned())),
    ]
    .concat();
    let mut streams = [body].into_iter();
    let open = move || {
        let body = streams.next();
        async move {
            let Some(body) = body else {
                return std::future::pending().await;
            };
            let answer = move |_| {
                let body = http_body_util::Full::new(bytes::Bytes::from(body.clone()));
                std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
            };
            let request = WatchVerdictsRequest::default();
            open::<_, WatchVerdictsResponse>(tower::service_fn(answer), request).await
        }
    };
    let (sender, mut updates) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let on_update = |update| drop(sender.send(update));
        follow(open, &CancellationToken::new(), on_update).await;
    });
    let mut skipped = Vec::new();
    let items = loop {
        match updates.recv().await.unwrap() {
            Update::Skipped(why) => skipped.push(why.to_string()),
            Update::Snapshot(items, _) => break items,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(items.keys().collect::<Vec<_>>(), ["good"]);
    assert_eq!(skipped.len(), 3, "{skipped:?}");
    assert!(skipped[0].contains("no event"), "{skipped:?}");
    assert!(skipped[1].contains("cannot be decoded"), "{skipped:?}");
    assert!(skipped[2].contains("the limit is 262144"), "{skipped:?}");
    assert!(matches!(
        updates.recv().await,
        Some(Update::Skipped(Unreadable::TooLarge(_)))
    ));
    let Some(Update::Upsert(shoot, received)) = updates.recv().await else {
        panic!("the stream did not go on")
    };
    assert_eq!(
        (shoot.as_str(), received.value.message.as_str()),
        ("good", "still there")
    );
}
