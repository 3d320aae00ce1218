//! The messages of Watch RPCs as they are on the wire.

use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::weeder::v1 as weeder;

use crate::message::{Event, Message};
use crate::wire;

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

/// Namespace and name of a service, or shoot and id of an event.
pub type NamePair = (String, String);

fn service(key: Option<&weeder::ServiceKey>) -> Result<NamePair, &'static str> {
    let key = key.ok_or("key")?;
    Ok((key.namespace.clone(), key.service.clone()))
}

fn shoot_event(key: Option<&scaling::ShootEventKey>) -> Result<NamePair, &'static str> {
    let key = key.ok_or("key")?;
    Ok((key.shoot.clone(), key.id.clone()))
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
    NamePair,
    |weeder| service(weeder.key.as_ref())?,
    |removed| service(Some(&removed))?
);
watch_message!(
    weeder::WatchEndpointReadinessResponse,
    weeder::watch_endpoint_readiness_response::Event,
    weeder::EndpointReadiness,
    NamePair,
    |readiness| service(readiness.key.as_ref())?,
    |removed| service(Some(&removed))?
);

watch_message!(
    scaling::WatchShootEventsResponse,
    scaling::watch_shoot_events_response::Event,
    scaling::ShootEvent,
    NamePair,
    |event| shoot_event(event.key.as_ref())?,
    |removed| shoot_event(Some(&removed))?
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
