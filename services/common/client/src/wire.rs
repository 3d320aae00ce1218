//! The parts that all streams share, on the wire, and the times that go with them.

use std::time::Duration;

use prost_types::Timestamp;
use watchdog_proto::stream::v1 as pb;
use watchdog_proto::{probe::v1 as probe, scaling::v1 as scaling, weeder::v1 as weeder};

use crate::item::StreamItem;
use crate::message::{Event, Message};

/// Items in a page at most; a request for more gets this many. A verdict with its evidence stays below 2 KiB, so a page
/// stays below 2 MiB.
pub const MAX_PAGE_SIZE: i32 = 1_000;

/// Shoots that one request may name.
pub const MAX_SHOOTS: usize = 1_000;

/// The message of a Watch stream.
pub trait WatchResponse: Sized + Send + 'static {
    /// The items of the stream.
    type Item: StreamItem;
    /// The request that opens it.
    type Request: prost::Message + Clone + 'static;
    /// The path of the RPC.
    const PATH: &'static str;

    /// For the wire.
    fn encode(message: Message<<Self::Item as StreamItem>::Key, Self::Item>) -> Self;

    /// From the wire.
    ///
    /// # Errors
    /// When a part that must be there is missing; the text names it.
    fn decode(self) -> Result<Message<<Self::Item as StreamItem>::Key, Self::Item>, &'static str>;
}

/// All Watch streams have the same events; only the types of their items and keys differ.
macro_rules! watch_response {
    ($package:literal / $rpc:literal: $request:ty => $response:ty, $event:path, $item:ty) => {
        impl WatchResponse for $response {
            type Item = $item;
            type Request = $request;
            const PATH: &'static str = concat!("/gardener.watchdog.", $package, "/", $rpc);

            fn encode(message: Message<<$item as StreamItem>::Key, $item>) -> Self {
                use $event as PbEvent;
                let event = match message.event {
                    Event::Upsert(_, item) => PbEvent::Upsert(item),
                    Event::Removed(key) => PbEvent::Removed(key.into()),
                    Event::SnapshotComplete {
                        items,
                        completeness,
                    } => {
                        let completeness = Some(completeness);
                        PbEvent::SnapshotComplete(pb::SnapshotComplete {
                            items,
                            completeness,
                        })
                    }
                    Event::Heartbeat { completeness } => PbEvent::Heartbeat(pb::Heartbeat { completeness }),
                };
                Self {
                    position: Some(message.position),
                    event: Some(event),
                }
            }

            fn decode(self) -> Result<Message<<$item as StreamItem>::Key, $item>, &'static str> {
                use $event as PbEvent;
                let position = self.position.ok_or("position")?;
                let event = match self.event.ok_or("event")? {
                    PbEvent::Upsert(item) => Event::Upsert(item.key().ok_or("key")?, item),
                    PbEvent::Removed(key) => Event::Removed((&key).into()),
                    PbEvent::SnapshotComplete(complete) => Event::SnapshotComplete {
                        items: complete.items,
                        // Without a word, an answer is not known to be complete.
                        completeness: complete.completeness.unwrap_or_default(),
                    },
                    PbEvent::Heartbeat(heartbeat) => Event::Heartbeat {
                        completeness: heartbeat.completeness,
                    },
                };
                Ok(Message { position, event })
            }
        }
    };
}

watch_response!(
    "probe.v1.LeaseProbeService" / "WatchVerdicts":
    probe::WatchVerdictsRequest => probe::WatchVerdictsResponse,
    probe::watch_verdicts_response::Event,
    probe::Verdict
);
watch_response!(
    "scaling.v1.ScalingService" / "WatchScaling":
    scaling::WatchScalingRequest => scaling::WatchScalingResponse,
    scaling::watch_scaling_response::Event,
    scaling::ShootScaling
);
watch_response!(
    "weeder.v1.WeederService" / "WatchWeeders":
    weeder::WatchWeedersRequest => weeder::WatchWeedersResponse,
    weeder::watch_weeders_response::Event,
    weeder::Weeder
);
watch_response!(
    "weeder.v1.WeederService" / "WatchEndpointReadiness":
    weeder::WatchEndpointReadinessRequest => weeder::WatchEndpointReadinessResponse,
    weeder::watch_endpoint_readiness_response::Event,
    weeder::EndpointReadiness
);

/// A part of the items of all replicas, in the order of their keys.
#[derive(Debug)]
pub struct ItemPage<M> {
    /// The items in the order of their keys.
    pub items: Vec<M>,
    /// Token of the next page; empty on the last one.
    pub next_page_token: String,
    /// Number of items over all pages.
    pub total_size: i32,
    /// When the answer was sent.
    pub position: Option<pb::Position>,
    /// Lists what the answer lacks.
    pub completeness: Option<pb::Completeness>,
}

/// All answers of List RPCs are alike; only the items and their name differ.
macro_rules! list_response {
    ($response:ty, $items:ident: $item:ty) => {
        impl From<ItemPage<$item>> for $response {
            fn from(page: ItemPage<$item>) -> Self {
                Self {
                    $items: page.items,
                    next_page_token: page.next_page_token,
                    total_size: page.total_size,
                    position: page.position,
                    completeness: page.completeness,
                }
            }
        }

        impl From<$response> for ItemPage<$item> {
            fn from(response: $response) -> Self {
                Self {
                    items: response.$items,
                    next_page_token: response.next_page_token,
                    total_size: response.total_size,
                    position: response.position,
                    completeness: response.completeness,
                }
            }
        }
    };
}

list_response!(probe::ListVerdictsResponse, verdicts: probe::Verdict);
list_response!(probe::ListReplicasResponse, replicas: probe::Replica);
list_response!(scaling::ListScalingResponse, scalings: scaling::ShootScaling);
list_response!(weeder::ListWeedersResponse, weeders: weeder::Weeder);
list_response!(weeder::ListEndpointReadinessResponse, services: weeder::EndpointReadiness);

/// A moment in microseconds since the Unix epoch.
#[must_use]
pub const fn timestamp(unix_micros: i64) -> Timestamp {
    Timestamp {
        seconds: unix_micros.div_euclid(1_000_000),
        // Below 10^9.
        nanos: (unix_micros.rem_euclid(1_000_000) * 1_000) as i32,
    }
}

/// Encodes a duration; seconds that do not fit become the most that do.
#[must_use]
pub fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        // Below 10^9.
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

/// A signed number of microseconds; both parts carry the sign, as protobuf wants it.
#[must_use]
pub const fn signed(micros: i64) -> prost_types::Duration {
    prost_types::Duration {
        seconds: micros / 1_000_000,
        nanos: ((micros % 1_000_000) * 1_000) as i32,
    }
}

/// The microseconds of a duration that was received; 0 when unset.
#[must_use]
pub fn micros(duration: Option<&prost_types::Duration>) -> i64 {
    duration.map_or(0, |d| {
        d.seconds
            .saturating_mul(1_000_000)
            .saturating_add(i64::from(d.nanos) / 1_000)
    })
}

/// A duration that was received; zero when unset or negative.
#[must_use]
pub fn forward(duration: Option<&prost_types::Duration>) -> Duration {
    Duration::from_micros(micros(duration).max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::NamePair;

    #[test]
    fn messages_without_their_parts_are_refused() {
        let refused = |response: probe::WatchVerdictsResponse| response.decode().unwrap_err();
        assert_eq!(refused(probe::WatchVerdictsResponse::default()), "position");
        let position = Some(pb::Position::default());
        let event = None;
        assert_eq!(
            refused(probe::WatchVerdictsResponse {
                position: position.clone(),
                event
            }),
            "event"
        );
        let nameless = probe::watch_verdicts_response::Event::Upsert(probe::Verdict::default());
        let event = Some(nameless);
        assert_eq!(refused(probe::WatchVerdictsResponse { position, event }), "key");
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let position = pb::Position {
            epoch: "e".to_owned(),
            revision: 7,
            uptime: Some(duration(Duration::from_millis(1_500))),
            item_age: Some(duration(Duration::from_millis(20))),
        };
        let key = NamePair("shoot--a".into(), "etcd".into());
        let item = weeder::Weeder {
            key: Some(key.clone().into()),
            ..Default::default()
        };
        let missing = pb::Completeness {
            complete: false,
            missing_replicas: vec!["weeder-1".to_owned()],
        };
        for event in [
            Event::Upsert(key.clone(), item),
            Event::Removed(key),
            Event::SnapshotComplete {
                items: 3,
                completeness: missing.clone(),
            },
            Event::Heartbeat { completeness: None },
            Event::Heartbeat {
                completeness: Some(missing),
            },
        ] {
            let message = Message {
                position: position.clone(),
                event,
            };
            let decoded = weeder::WatchWeedersResponse::encode(message.clone()).decode();
            assert_eq!(decoded, Ok(message));
        }
    }

    #[test]
    fn durations_keep_their_sign() {
        for value in [-61_500_000, -1, 0, 1, 2_000_001] {
            assert_eq!(micros(Some(&signed(value))), value);
        }
        assert_eq!(forward(Some(&signed(-1))), Duration::ZERO);
        assert_eq!(
            timestamp(-1),
            Timestamp {
                seconds: -1,
                nanos: 999_999_000
            }
        );
    }

    #[test]
    fn durations_that_do_not_fit_saturate() {
        for (seconds, nanos, expected) in [(i64::MAX, i32::MAX, i64::MAX), (i64::MIN, i32::MIN, i64::MIN)] {
            let received = prost_types::Duration { seconds, nanos };
            assert_eq!(micros(Some(&received)), expected);
        }
    }
}
