//! The messages of a stream.

use std::sync::Arc;
use std::time::Duration;

/// A subscriber receives a message at least this often. Three silent intervals mean a dead stream.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The change that a message of a stream reports, or its sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The stream lives.
    Heartbeat {
        /// Names the replicas whose items may be absent or out of date now; none before the snapshot.
        completeness: Option<Completeness>,
    },
}

/// Says if an answer has the items of every replica that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completeness {
    /// True if nothing is missing.
    pub complete: bool,
    /// The replicas whose items may be absent or out of date.
    pub missing: Vec<Arc<str>>,
}

impl Completeness {
    /// Nothing is missing.
    pub const COMPLETE: Self = Self {
        complete: true,
        missing: Vec::new(),
    };
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

/// Where a message stands, and when it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Incarnation of the server.
    pub epoch: Arc<str>,
    /// Grows with every change within an epoch.
    pub revision: u64,
    /// Time since the start of the epoch when the message was sent, by the server's monotonic clock.
    pub uptime: Duration,
    /// Time since the owner set the item, when the message was sent; in upserts only.
    pub item_age: Option<Duration>,
}

/// One message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<K, V> {
    /// Where it stands.
    pub position: Position,
    /// The change, or a sign of life.
    pub event: Event<K, V>,
}
