//! The items of the streams: they have a key, and their times age on the way.

use std::pin::Pin;
use std::time::Duration;

use tokio_stream::{Stream, StreamExt};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use watchdog_client::consumer;
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_proto::weeder::v1 as weeder;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_runtime::rpc_metrics::Measured;

use crate::message::Message;
use crate::wire::{WatchResponse, forward, micros, signed};

pub use watchdog_client::item::{Keyed, NamePair};

/// Largest message that is read from a replica. A weeder that was refused often fills 20 KiB.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// The key of an item, which page tokens carry.
pub trait FeedKey: Ord + Clone + std::hash::Hash + Send + Sync + 'static {
    /// As text.
    fn to_text(&self) -> String;
    /// From text; none if it is not the text of a key.
    fn from_text(text: &str) -> Option<Self>;
}

impl FeedKey for String {
    fn to_text(&self) -> String {
        self.clone()
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl FeedKey for NamePair {
    fn to_text(&self) -> String {
        format!("{}/{}", self.0, self.1)
    }

    fn from_text(text: &str) -> Option<Self> {
        let (first, second) = text.split_once('/')?;
        Some(Self(first.into(), second.into()))
    }
}

/// A gRPC channel to another replica, whose calls are counted.
pub type ReplicaChannel = Measured<Channel>;

/// An open stream of items.
pub type ItemStream<M> = Pin<Box<dyn Stream<Item = Result<Message<<M as Keyed>::Key, M>, Status>> + Send>>;

/// An item of a Watch stream, as it is on the wire.
pub trait FeedItem: Keyed<Key: FeedKey> + prost::Message + Clone + PartialEq + 'static {
    /// Name of the feed in logs, metrics and on /readyz.
    const FEED: &'static str;

    /// True if an item may go to another replica, which then reports it under the same key.
    const MOVES: bool = true;

    /// The item `later` after it was as it is.
    fn age(&mut self, later: Duration);

    /// True if the replica only says that it knows nothing yet. Such an item counts only if there is no other.
    fn is_provisional(&self) -> bool {
        false
    }

    /// True if this item says the same as `sent`, of a later moment: subscribers need it only for its validity.
    fn renews(&self, _sent: &Self) -> bool {
        false
    }

    /// How long the item may be acted upon.
    fn valid_for(&self) -> Duration {
        Duration::ZERO
    }

    /// Opens the stream of the items that a replica owns.
    fn watch(channel: ReplicaChannel) -> impl Future<Output = Result<ItemStream<Self>, Status>> + Send;
}

/// The messages of a stream that was opened.
fn decoded<R: WatchResponse>(response: Response<Streaming<R>>) -> ItemStream<R::Item> {
    Box::pin(response.into_inner().map(|response| consumer::decode(response?)))
}

/// The skew of the clocks does not count: each probe measures it anew.
fn is_same_evidence(evidence: &probe::Evidence, sent: &probe::Evidence) -> bool {
    let probe::Evidence {
        nodes,
        leases,
        candidates,
        expired,
        excluded,
        expired_fraction,
        threshold,
        zones,
        expiry_age,
        largest_skew: _,
        unconfirmed,
        newest_expired_renewal_age,
    } = evidence;
    *nodes == sent.nodes
        && *leases == sent.leases
        && *candidates == sent.candidates
        && *expired == sent.expired
        && *unconfirmed == sent.unconfirmed
        && *expired_fraction == sent.expired_fraction
        && *threshold == sent.threshold
        && *expiry_age == sent.expiry_age
        && *newest_expired_renewal_age == sent.newest_expired_renewal_age
        && *excluded == sent.excluded
        && *zones == sent.zones
}

fn longer(duration: Option<&prost_types::Duration>, later: Duration) -> Option<prost_types::Duration> {
    let later = i64::try_from(later.as_micros()).unwrap_or(i64::MAX);
    Some(signed(micros(duration).saturating_add(later)))
}

fn shorter(duration: Option<&prost_types::Duration>, later: Duration) -> Option<prost_types::Duration> {
    let later = i64::try_from(later.as_micros()).unwrap_or(i64::MAX);
    Some(signed(micros(duration).saturating_sub(later)))
}

impl FeedItem for probe::Verdict {
    const FEED: &'static str = "lease-probe";

    fn age(&mut self, later: Duration) {
        self.age = longer(self.age.as_ref(), later);
        self.valid_for = shorter(self.valid_for.as_ref(), later);
    }

    /// A replica that has just taken over a shoot has no result yet.
    fn is_provisional(&self) -> bool {
        self.outcome() == probe::Outcome::Pending
    }

    /// Compared field by field, without a copy, because each probe of a healthy shoot asks. A new field has to be named
    /// here.
    fn renews(&self, sent: &Self) -> bool {
        let Self {
            shoot,
            outcome,
            skip_reason,
            message,
            evidence,
            observed_at: _,
            valid_until: _,
            age: _,
            valid_for: _,
            observer,
            outcome_since,
            traceparent,
        } = self;
        *outcome == sent.outcome
            && *skip_reason == sent.skip_reason
            && *outcome_since == sent.outcome_since
            && *shoot == sent.shoot
            && *observer == sent.observer
            && *message == sent.message
            && *traceparent == sent.traceparent
            && match (evidence, &sent.evidence) {
                (Some(evidence), Some(sent)) => is_same_evidence(evidence, sent),
                (None, None) => true,
                _ => false,
            }
    }

    fn valid_for(&self) -> Duration {
        forward(self.valid_for.as_ref())
    }

    async fn watch(channel: ReplicaChannel) -> Result<ItemStream<Self>, Status> {
        let request = probe::WatchVerdictsRequest {
            scope: Scope::Local.into(),
            ..Default::default()
        };
        let mut client = LeaseProbeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(decoded(client.watch_verdicts(Request::new(request)).await?))
    }
}

impl FeedItem for scaling::ShootScaling {
    const FEED: &'static str = "scaling";

    fn age(&mut self, _: Duration) {}

    /// A replica that must not act on a shoot knows less than the one that does.
    fn is_provisional(&self) -> bool {
        self.hold_reason() == scaling::HoldReason::Ownership
    }

    async fn watch(channel: ReplicaChannel) -> Result<ItemStream<Self>, Status> {
        let request = scaling::WatchScalingRequest {
            scope: Scope::Local.into(),
            ..Default::default()
        };
        let mut client = ScalingServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(decoded(client.watch_scaling(Request::new(request)).await?))
    }
}

impl FeedItem for scaling::ShootEvent {
    const FEED: &'static str = "shoot-events";
    const MOVES: bool = false;

    fn age(&mut self, _: Duration) {}

    async fn watch(channel: ReplicaChannel) -> Result<ItemStream<Self>, Status> {
        let request = scaling::WatchShootEventsRequest {
            scope: Scope::Local.into(),
            ..Default::default()
        };
        let mut client = ScalingServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(decoded(client.watch_shoot_events(Request::new(request)).await?))
    }
}

impl FeedItem for weeder::Weeder {
    const FEED: &'static str = "weeders";
    /// A replica that loses a namespace cancels its weeders and shows them for another minute.
    const MOVES: bool = false;

    /// The new owner of its namespace may have started another one before.
    fn is_provisional(&self) -> bool {
        self.state() == weeder::WeederState::Cancelled
    }

    fn age(&mut self, later: Duration) {
        let remaining = forward(self.remaining.as_ref()).saturating_sub(later);
        self.remaining = Some(crate::wire::duration(remaining));
    }

    async fn watch(channel: ReplicaChannel) -> Result<ItemStream<Self>, Status> {
        let request = weeder::WatchWeedersRequest {
            scope: Scope::Local.into(),
            ..Default::default()
        };
        let mut client = WeederServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(decoded(client.watch_weeders(Request::new(request)).await?))
    }
}

impl FeedItem for weeder::EndpointReadiness {
    const FEED: &'static str = "endpoint-readiness";

    fn age(&mut self, _: Duration) {}

    async fn watch(channel: ReplicaChannel) -> Result<ItemStream<Self>, Status> {
        let request = weeder::WatchEndpointReadinessRequest {
            scope: Scope::Local.into(),
            ..Default::default()
        };
        let mut client = WeederServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(decoded(
            client.watch_endpoint_readiness(Request::new(request)).await?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_ages_on_its_way() {
        let mut verdict = probe::Verdict {
            age: Some(signed(1_000_000)),
            valid_for: Some(signed(1_500_000)),
            ..Default::default()
        };
        verdict.age(Duration::from_secs(2));
        assert_eq!(micros(verdict.age.as_ref()), 3_000_000);
        assert_eq!(micros(verdict.valid_for.as_ref()), -500_000);
        assert_eq!(verdict.valid_for(), Duration::ZERO);
    }

    #[test]
    fn a_verdict_renews_another_if_only_its_times_differ() {
        let sent = probe::Verdict {
            shoot: "one".to_owned(),
            evidence: Some(probe::Evidence::default()),
            age: Some(signed(1)),
            ..Default::default()
        };
        let mut later = sent.clone();
        later.observed_at = Some(crate::wire::timestamp(7));
        later.valid_until = Some(crate::wire::timestamp(8));
        later.valid_for = Some(signed(9));
        later.age = Some(signed(0));
        later.evidence.as_mut().unwrap().largest_skew = Some(signed(3));
        assert!(later.renews(&sent));
        later.evidence.as_mut().unwrap().expired = 1;
        assert!(!later.renews(&sent));
        let other_owner = probe::Verdict {
            observer: "b".to_owned(),
            ..sent.clone()
        };
        assert!(!other_owner.renews(&sent));
    }

    #[test]
    fn keys_are_ordered_by_their_first_name_and_read_back() {
        let pair = |a: &str, b: &str| NamePair(a.into(), b.into());
        assert!(pair("a", "z") < pair("a-b", "a"));
        assert_eq!(
            NamePair::from_text(&pair("a", "b").to_text()),
            Some(pair("a", "b"))
        );
        assert_eq!(NamePair::from_text("a"), None);
    }
}
