//! The messages of a stream.

use std::sync::Arc;
use std::time::Duration;

use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::weeder::v1 as weeder;

use crate::wire;

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

/// A message of a Watch RPC as it is on the wire.
pub trait WatchMessage: Sized {
    /// Key of the items.
    type Key: Ord + Clone + Send + 'static;
    /// The items.
    type Value: Send + 'static;

    /// The message.
    ///
    /// # Errors
    /// When a part is absent that the contract demands; the text names it.
    fn decode(self) -> Result<Message<Self::Key, Self::Value>, &'static str>;
}

macro_rules! watch_message {
    ($response:ty, $event:path, $value:ty, $key:ty, |$item:ident| $key_of:expr, |$removed:ident| $removed_key:expr) => {
        impl WatchMessage for $response {
            type Key = $key;
            type Value = $value;

            fn decode(self) -> Result<Message<$key, $value>, &'static str> {
                use $event as Sent;
                let position = self.position.ok_or("position")?;
                let event = match self.event.ok_or("event")? {
                    Sent::Upsert($item) => Event::Upsert($key_of, $item),
                    Sent::Removed($removed) => Event::Removed($removed_key),
                    Sent::SnapshotComplete(complete) => Event::SnapshotComplete(complete.items),
                    Sent::Heartbeat(_) => Event::Heartbeat,
                };
                Ok(Message {
                    position: wire::received_position(position),
                    event,
                })
            }
        }
    };
}

/// A key that is not empty.
fn shoot(name: &str) -> Result<String, &'static str> {
    match name {
        "" => Err("shoot"),
        name => Ok(name.to_owned()),
    }
}

/// Namespace and name of a service.
pub type ServiceName = (String, String);

fn service(key: Option<&weeder::ServiceKey>) -> Result<ServiceName, &'static str> {
    let key = key.ok_or("key")?;
    Ok((key.namespace.clone(), key.service.clone()))
}

watch_message!(
    probe::WatchVerdictsResponse,
    probe::watch_verdicts_response::Event,
    probe::Verdict,
    String,
    |verdict| shoot(&verdict.shoot)?,
    |removed| removed
);
watch_message!(
    scaling::WatchScalingResponse,
    scaling::watch_scaling_response::Event,
    scaling::ShootScaling,
    String,
    |scaling| shoot(&scaling.shoot)?,
    |removed| removed
);
watch_message!(
    weeder::WatchWeedersResponse,
    weeder::watch_weeders_response::Event,
    weeder::Weeder,
    ServiceName,
    |weeder| service(weeder.key.as_ref())?,
    |removed| service(Some(&removed))?
);
watch_message!(
    weeder::WatchEndpointReadinessResponse,
    weeder::watch_endpoint_readiness_response::Event,
    weeder::EndpointReadiness,
    ServiceName,
    |readiness| service(readiness.key.as_ref())?,
    |removed| service(Some(&removed))?
);

#[cfg(test)]
mod tests {
    use watchdog_proto::feed::v1 as feed;

    use super::*;

    #[test]
    fn messages_without_their_parts_are_refused() {
        let empty = probe::WatchVerdictsResponse::default();
        assert_eq!(empty.decode(), Err("position"));
        let position = Some(feed::Position::default());
        let eventless = probe::WatchVerdictsResponse {
            position: position.clone(),
            event: None,
        };
        assert_eq!(eventless.decode(), Err("event"));
        let nameless = probe::WatchVerdictsResponse {
            position: position.clone(),
            event: Some(probe::watch_verdicts_response::Event::Upsert(Default::default())),
        };
        assert_eq!(nameless.decode(), Err("shoot"));
        let keyless = weeder::WatchWeedersResponse {
            position,
            event: Some(weeder::watch_weeders_response::Event::Upsert(Default::default())),
        };
        assert_eq!(keyless.decode().unwrap_err(), "key");
    }
}
