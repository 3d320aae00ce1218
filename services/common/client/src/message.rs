//! The messages of a stream.

use std::sync::Arc;
use std::time::Duration;

/// A subscriber receives a message at least this often. Three silent intervals mean a dead stream.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<K, V> {
    /// A key is new, changed or renewed.
    Upsert(K, V),
    /// A key is gone. Only this means so: the end of a stream never does.
    Removed(K),
    /// The snapshot is whole; it had this many items.
    SnapshotComplete(u64),
    /// Nothing has changed; the stream lives.
    Heartbeat,
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
}

/// One message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<K, V> {
    /// Where it stands.
    pub position: Position,
    /// The event.
    pub event: Event<K, V>,
}
