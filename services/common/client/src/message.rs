//! The messages of a stream.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

pub use watchdog_proto::stream::v1::{Completeness, Position};

/// A subscriber receives a message at least this often. Three silent intervals mean a dead stream.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Largest message that is read: the default of gRPC. The services keep their answers below it.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Largest message of a stream that is read; a longer one is skipped. Servers keep theirs below a quarter of it
/// ([`MAX_ITEM_BYTES`]).
pub const MAX_STREAM_MESSAGE_BYTES: usize = 256 * 1024;

/// Largest item that is sent: a quarter of what a follower reads. A larger one goes without its texts.
pub const MAX_ITEM_BYTES: usize = MAX_STREAM_MESSAGE_BYTES / 4;

/// The completeness of an answer that lacks nothing.
pub const COMPLETE: Completeness = Completeness {
    complete: true,
    missing_replicas: Vec::new(),
};

/// The change that a message of a stream reports, or its sign of life.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<K, V> {
    /// A key is new, changed or renewed.
    Upsert(K, V),
    /// A key is gone. Only this means so: the end of a stream never does.
    Removed(K),
    /// The snapshot is whole.
    SnapshotComplete {
        /// Its number of items.
        items: u64,
        /// Names the replicas whose items it lacks.
        completeness: Completeness,
    },
    /// Keep-alive.
    Heartbeat {
        /// Names the replicas whose items may be absent or out of date now; none before the snapshot.
        completeness: Option<Completeness>,
    },
}

impl<K, V> Event<K, V> {
    /// The same event with another value.
    pub fn map<W>(self, value: impl FnOnce(V) -> W) -> Event<K, W> {
        match self {
            Self::Upsert(key, old) => Event::Upsert(key, value(old)),
            Self::Removed(key) => Event::Removed(key),
            Self::SnapshotComplete { items, completeness } => Event::SnapshotComplete { items, completeness },
            Self::Heartbeat { completeness } => Event::Heartbeat { completeness },
        }
    }
}

/// One message of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Message<K, V> {
    /// Where it stands in the history of the server, and when it was sent.
    pub position: Position,
    /// The change, or a sign of life.
    pub event: Event<K, V>,
}

/// The next message of a stream, or why it cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming<K, V> {
    /// A message.
    Message(Message<K, V>),
    /// A message that is skipped.
    Unreadable(Unreadable),
}

/// Why a message of a stream was skipped. Quotes nothing of the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// It has this many bytes, more than [`MAX_STREAM_MESSAGE_BYTES`].
    TooLarge(usize),
    /// It is not what the contract says.
    Malformed(String),
}

impl Display for Unreadable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(bytes) => {
                write!(
                    f,
                    "the message has {bytes} bytes; the limit is {MAX_STREAM_MESSAGE_BYTES}"
                )
            }
            Self::Malformed(why) => write!(f, "the message cannot be decoded: {why}"),
        }
    }
}

impl<K, V> From<Message<K, V>> for Incoming<K, V> {
    fn from(message: Message<K, V>) -> Self {
        Self::Message(message)
    }
}
