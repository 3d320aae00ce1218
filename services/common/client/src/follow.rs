//! Follows a stream of items until it is stopped, over any number of streams.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::message::{COMPLETE, Completeness, Event, HEARTBEAT_INTERVAL, Incoming, Message, Unreadable};
use crate::send_time::SendTimeEstimator;
use crate::wire::forward;

/// A stream that is silent for this time is dead: three heartbeats.
const SILENCE_LIMIT: Duration = HEARTBEAT_INTERVAL.saturating_mul(3);

/// Opening a stream takes at most this time.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream that has sent no whole snapshot for this time, and has nothing to send for it, is broken. A server waits
/// 10 s for what other replicas have to say.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(60);

/// The longest delay before a stream is opened again. After a stream that lasted for this time, the delay is short.
const SLOWEST: Duration = Duration::from_secs(5);

/// Items of one snapshot at most: a server that sends more than any seed can have is broken.
const MAX_ITEMS: usize = 200_000;

/// A value and when it was sent, by the local monotonic clock, never later than true.
#[derive(Debug, Clone, PartialEq)]
pub struct Received<V> {
    /// As it was last received.
    pub value: V,
    /// When it was sent.
    pub sent_at: Instant,
    /// When its replica set it.
    pub set_at: Instant,
}

/// The events that a follower receives, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Update<K, V> {
    /// All there is: replaces everything known from this stream. While a replica is missing, keep what is known of
    /// items that did not come.
    Snapshot(BTreeMap<K, Received<V>>, Completeness),
    /// A key is new, changed or renewed.
    Upsert(K, Received<V>),
    /// A key is gone.
    Removed(K),
    /// Other replicas are missing than before. What is known of their items is as old as it says.
    Completeness(Completeness),
    /// A message could not be read and was skipped; the stream continues. What is known of its item is as old as it
    /// says.
    Skipped(Unreadable),
    /// The stream is lost, for the reason given. What was known is not gone, but is no longer renewed.
    Lost(Failure),
}

/// Follows a stream of items until `stop` is cancelled. `open` opens a stream, again whenever the last one is lost.
/// `on_update` is called for every update and must not block.
///
/// Reconnects with jittered back-off, reset by a stream with a whole snapshot that lasted 5 s; codes that a retry
/// cannot mend (INVALID_ARGUMENT, UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED) are retried at the slowest pace
/// only, because a server may be replaced by one that answers better.
pub async fn follow<K, V, O, S, I>(
    mut open: impl FnMut() -> O,
    stop: &CancellationToken,
    mut on_update: impl FnMut(Update<K, V>),
) where
    K: Ord,
    O: Future<Output = Result<S, Status>>,
    S: Stream<Item = Result<I, Status>> + Unpin,
    I: Into<Incoming<K, V>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(50), SLOWEST);
    loop {
        let (opened, mut synced) = (Instant::now(), false);
        let status = tokio::select! {
            () = stop.cancelled() => return,
            status = stream(&mut open, |update| {
                synced |= matches!(update, Update::Snapshot(..));
                on_update(update);
            }) => status,
        };
        // A stream that ends right after its snapshot is no success: each costs all items.
        if synced && opened.elapsed() >= SLOWEST {
            backoff.reset();
        }
        on_update(Update::Lost(Failure::of_grpc_status(&status)));
        let delay = if is_hopeless(status.code()) {
            SLOWEST
        } else {
            backoff.next_delay()
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

/// True for codes that a retry cannot mend.
const fn is_hopeless(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied
    )
}

/// The next message of a stream, or why there is none.
async fn next<M>(messages: &mut (impl Stream<Item = Result<M, Status>> + Unpin)) -> Result<M, Status> {
    // A sleep of its own instead of a timeout around `next`: after the process was stopped for a while, the silence is
    // noticed before what is queued is believed.
    tokio::select! {
        biased;
        () = tokio::time::sleep(SILENCE_LIMIT) => Err(Status::deadline_exceeded("no message for 15 s")),
        message = messages.next() => {
            message.unwrap_or_else(|| Err(Status::unavailable("the server ended the stream")))
        }
    }
}

/// Runs one stream to its end and says why it ended.
async fn stream<K, V, O, S, I>(
    open: &mut impl FnMut() -> O,
    mut on_update: impl FnMut(Update<K, V>),
) -> Status
where
    K: Ord,
    O: Future<Output = Result<S, Status>>,
    S: Stream<Item = Result<I, Status>> + Unpin,
    I: Into<Incoming<K, V>>,
{
    let opened = Instant::now();
    let mut messages = match tokio::time::timeout(OPEN_TIMEOUT, open()).await {
        Ok(Ok(messages)) => messages,
        Ok(Err(status)) => return status,
        Err(_) => return Status::deadline_exceeded("no answer within 10 s"),
    };
    let mut received = ReceivedStream::new(opened);
    loop {
        let update = match next(&mut messages).await.map(Into::into) {
            Ok(Incoming::Message(message)) => received.apply(message, Instant::now()),
            Ok(Incoming::Unreadable(why)) => Ok(Some(received.skip(why))),
            Err(status) => return status,
        };
        match update {
            Ok(Some(update)) => on_update(update),
            Ok(None) => {}
            Err(status) => return status,
        }
    }
}

/// The messages of one stream so far.
struct ReceivedStream<K, V> {
    opened: Instant,
    send_time: SendTimeEstimator,
    epoch: Option<String>,
    // None once it is complete.
    snapshot: Option<BTreeMap<K, Received<V>>>,
    completeness: Completeness,
    // Messages of the snapshot that were skipped.
    skipped: u64,
}

impl<K: Ord, V> ReceivedStream<K, V> {
    const fn new(opened: Instant) -> Self {
        Self {
            opened,
            send_time: SendTimeEstimator::new(opened),
            epoch: None,
            snapshot: Some(BTreeMap::new()),
            completeness: COMPLETE,
            skipped: 0,
        }
    }

    /// Skips a message. In a snapshot it counts as an item: whatever else it was, a follower does not need.
    fn skip(&mut self, why: Unreadable) -> Update<K, V> {
        if self.snapshot.is_some() {
            self.skipped += 1;
        }
        Update::Skipped(why)
    }

    /// Takes the next message. Fails if the server broke the rules of a stream.
    fn apply(&mut self, message: Message<K, V>, now: Instant) -> Result<Option<Update<K, V>>, Status> {
        let Message { position, event } = message;
        if *self.epoch.get_or_insert_with(|| position.epoch.clone()) != position.epoch {
            return Err(Status::data_loss("the server changed its epoch during a stream"));
        }
        let sent_at = self.send_time.sent_at(now, forward(position.uptime.as_ref()));
        let set_at = sent_at
            .checked_sub(forward(position.item_age.as_ref()))
            .unwrap_or(sent_at);
        let received = |value| Received {
            value,
            sent_at,
            set_at,
        };
        Ok(match (event, &mut self.snapshot) {
            (Event::Heartbeat { completeness }, None) => {
                let changed = completeness.filter(|now| *now != self.completeness);
                changed.map(|now| {
                    self.completeness = now.clone();
                    Update::Completeness(now)
                })
            }
            (Event::Heartbeat { .. }, Some(_)) if now.duration_since(self.opened) >= SNAPSHOT_LIMIT => {
                return Err(Status::deadline_exceeded("no complete snapshot within 60 s"));
            }
            (Event::Heartbeat { .. }, Some(_)) => None,
            (Event::Upsert(key, value), None) => Some(Update::Upsert(key, received(value))),
            (Event::Upsert(key, value), Some(items)) => {
                if items.len() >= MAX_ITEMS {
                    return Err(Status::out_of_range("the snapshot has more than 200,000 items"));
                }
                items.insert(key, received(value));
                None
            }
            (Event::Removed(key), None) => Some(Update::Removed(key)),
            (Event::Removed(key), Some(items)) => {
                items.remove(&key);
                None
            }
            (Event::SnapshotComplete { items, completeness }, _) => {
                Some(self.snapshot_complete(items, completeness)?)
            }
        })
    }

    fn snapshot_complete(&mut self, count: u64, completeness: Completeness) -> Result<Update<K, V>, Status> {
        let Some(items) = self.snapshot.take() else {
            return Err(Status::data_loss("a second snapshot in one stream"));
        };
        let found = items.len() as u64;
        // A message that was skipped was an item, or one of the few others that a snapshot has.
        if count < found || found + self.skipped < count {
            let (skipped, why) = (self.skipped, "the snapshot has");
            return Err(Status::data_loss(format!(
                "{why} {found} items instead of {count}, {skipped} skipped"
            )));
        }
        self.completeness = completeness.clone();
        Ok(Update::Snapshot(items, completeness))
    }
}
