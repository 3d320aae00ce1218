//! The messages of a stream.

use std::time::Duration;

pub use watchdog_proto::feed::v1::{Completeness, Position};

/// A subscriber receives a message at least this often. Three silent intervals mean a dead stream.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

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
    /// The stream lives.
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
