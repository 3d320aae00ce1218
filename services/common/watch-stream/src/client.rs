//! The client's side: follows a feed until it is dropped, over any number of streams.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::failure::Failure;
use watchdog_runtime::readiness::Readiness;

use crate::message::{Completeness, Event, Message};
use crate::metrics::{CONNECTED, RECONNECTS};
use crate::send_time::SendTimeEstimator;
use crate::server::HEARTBEAT_INTERVAL;

/// A stream that is silent for this time is dead: three heartbeats.
pub const SILENCE_LIMIT: Duration = HEARTBEAT_INTERVAL.saturating_mul(3);

/// Opening a stream takes at most this time.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Items of one snapshot at most: a server that sends more than any seed can have is broken.
const MAX_ITEMS: usize = 200_000;

/// A value and when it was sent, by the local monotonic clock, never later than true.
#[derive(Debug, Clone, PartialEq)]
pub struct Received<V> {
    /// The value.
    pub value: V,
    /// When it was sent.
    pub sent_at: Instant,
    /// When its owner set it.
    pub set_at: Instant,
}

/// The events that a follower receives, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Update<K, V> {
    /// All there is: replaces everything known from this feed.
    Snapshot(BTreeMap<K, Received<V>>, Completeness),
    /// A key is new, changed or renewed.
    Upsert(K, Received<V>),
    /// A key is gone.
    Removed(K),
    /// The stream is lost, for the reason given. What was known is not gone, but nobody renews it.
    Lost(String),
}

/// Where streams come from.
pub trait Source {
    /// Key of the items.
    type Key: Ord + Clone + Send;
    /// The items.
    type Value: Send;
    /// A stream of one connection.
    type Stream: Stream<Item = Result<Message<Self::Key, Self::Value>, Status>> + Send + Unpin;

    /// Opens a stream. Called again whenever the last one is lost.
    fn open(&mut self) -> impl Future<Output = Result<Self::Stream, Status>> + Send;
}

/// Follows a feed until `stop` is cancelled. `feed` names it in metrics, logs and `readiness`, whose instance is the
/// server. `hear` is called for every update
/// and must not block. Reconnects with jittered back-off, reset by a whole snapshot; codes that a retry cannot mend
/// (INVALID_ARGUMENT, UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED) are retried at the slowest pace only, because
/// a server may be replaced by one that answers better.
pub async fn follow<S: Source>(
    feed: &'static str,
    source: &mut S,
    readiness: &Readiness,
    stop: &CancellationToken,
    mut hear: impl FnMut(Update<S::Key, S::Value>),
) {
    const SLOWEST: Duration = Duration::from_secs(5);
    let mut backoff = Backoff::new(Duration::from_millis(50), SLOWEST);
    RECONNECTS.begin(&[("feed", feed.to_owned())]);
    loop {
        let mut connected = None;
        let lost = tokio::select! {
            () = stop.cancelled() => None,
            status = stream(source, |update| {
                if matches!(update, Update::Snapshot(..)) {
                    readiness.recovered(feed);
                    connected.get_or_insert_with(|| Connected::to(feed));
                }
                hear(update);
            }) => Some(status),
        };
        if connected.take().is_some() {
            backoff.reset();
        }
        let Some(status) = lost else {
            return;
        };
        RECONNECTS.inc(&[("feed", feed.to_owned())]);
        let hopeless = matches!(
            status.code(),
            Code::InvalidArgument | Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied
        );
        let failure = Failure::of_grpc_status(&status);
        let reason = failure.reason.as_str();
        tracing::warn!(feed, server = readiness.instance(), code = ?status.code(), reason, error = %failure, "stream lost, connecting again");
        hear(Update::Lost(failure.to_string()));
        readiness.failing(feed, failure);
        let delay = if hopeless { SLOWEST } else { backoff.next_delay() };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

/// Counts a synchronised stream for as long as it lives, also when its follower is aborted.
struct Connected {
    feed: &'static str,
}

impl Connected {
    fn to(feed: &'static str) -> Self {
        CONNECTED.shift(&[("feed", feed.to_owned())], 1.0);
        Self { feed }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        CONNECTED.shift(&[("feed", self.feed.to_owned())], -1.0);
    }
}

/// Runs one stream to its end and says why it ended.
async fn stream<S: Source>(source: &mut S, mut hear: impl FnMut(Update<S::Key, S::Value>)) -> Status {
    let opened = Instant::now();
    let mut messages = match tokio::time::timeout(OPEN_TIMEOUT, source.open()).await {
        Ok(Ok(messages)) => messages,
        Ok(Err(status)) => return status,
        Err(_) => return Status::deadline_exceeded("no answer within 10 s"),
    };
    let mut transit = SendTimeEstimator::new(opened);
    let mut snapshot = Some(BTreeMap::new());
    let mut epoch = None;
    loop {
        // A sleep of its own instead of a timeout around `next`: after the process was stopped for a while, the
        // silence is noticed before what is queued is believed.
        let message = tokio::select! {
            biased;
            () = tokio::time::sleep(SILENCE_LIMIT) => {
                return Status::deadline_exceeded("no message for 15 s");
            }
            message = messages.next() => message,
        };
        let Message { position, event } = match message {
            Some(Ok(message)) => message,
            Some(Err(status)) => return status,
            None => return Status::unavailable("the server ended the stream"),
        };
        if *epoch.get_or_insert_with(|| position.epoch.clone()) != position.epoch {
            return Status::data_loss("the server changed its epoch within a stream");
        }
        let sent_at = transit.sent_at(Instant::now(), position.uptime);
        let set_at = sent_at
            .checked_sub(position.item_age.unwrap_or_default())
            .unwrap_or(sent_at);
        let received = |value| Received {
            value,
            sent_at,
            set_at,
        };
        match (event, &mut snapshot) {
            (Event::Heartbeat, _) => {}
            (Event::Upsert(key, value), Some(items)) => {
                if items.len() >= MAX_ITEMS {
                    return Status::out_of_range("the snapshot has more than 200,000 items");
                }
                items.insert(key, received(value));
            }
            (Event::Upsert(key, value), None) => hear(Update::Upsert(key, received(value))),
            (Event::Removed(key), Some(items)) => {
                items.remove(&key);
            }
            (Event::Removed(key), None) => hear(Update::Removed(key)),
            (
                Event::SnapshotComplete {
                    items: count,
                    completeness,
                },
                pending,
            ) => {
                let Some(items) = pending.take() else {
                    return Status::data_loss("a second snapshot in one stream");
                };
                if items.len() as u64 != count {
                    return Status::data_loss(format!(
                        "the snapshot has {} items instead of {count}",
                        items.len()
                    ));
                }
                hear(Update::Snapshot(items, completeness));
            }
        }
    }
}
