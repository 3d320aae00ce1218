//! The items of the streams: they have a key, and their times age on the way.

use std::fmt::Display;
use std::hash::Hash;
use std::str::FromStr;
use std::time::Duration;

use tonic::Status;
use tonic::transport::Channel;
use watchdog_client::open::{ItemStream, open};
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::stream::v1::Scope;
use watchdog_proto::weeder::v1 as weeder;
use watchdog_runtime::rpc_metrics::Measured;

use crate::wire::{duration, forward, micros, signed};

pub use watchdog_client::item::{Keyed, NamePair};

/// A gRPC channel to another replica, whose calls are counted.
pub type ReplicaChannel = Measured<Channel>;

/// An item of a Watch stream, as it is on the wire. Page tokens carry its key as text.
pub trait StreamItem: Keyed<Key: Display + FromStr + Hash> + prost::Message + Clone + PartialEq {
    /// Name of the stream in logs, metrics and on /readyz.
    const STREAM: &'static str;

    /// The item `later` after it was as it is.
    fn age(&mut self, _later: Duration) {}

    /// True if the replica only says that it knows nothing yet. Such an item counts only if there is no other.
    fn is_provisional(&self) -> bool {
        false
    }

    /// True if this item says the same as `sent`, of a later moment: subscribers need it only for its validity.
    fn renews(&self, _sent: &Self) -> bool {
        false
    }

    /// The state of the data that the item rests on, as a number that grows; 0 if it does not say.
    fn revision(&self) -> u64 {
        0
    }

    /// True if this item, of another replica, says the same as `other`.
    fn agrees_with(&self, _other: &Self) -> bool {
        false
    }

    /// How long the item may be acted upon.
    fn valid_for(&self) -> Duration {
        Duration::ZERO
    }

    /// Opens the stream of a replica's own items.
    fn watch(channel: ReplicaChannel) -> impl Future<Output = Result<ItemStream<Self>, Status>> + Send;
}

/// All replicas are asked alike.
macro_rules! watch_replica {
    ($package:ident::$request:ident => $response:ident) => {
        async fn watch(channel: ReplicaChannel) -> Result<ItemStream<Self>, Status> {
            let request = $package::$request {
                scope: Scope::Replica.into(),
                ..Default::default()
            };
            open::<_, $package::$response>(channel, request).await
        }
    };
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
        node_monitor_grace_period,
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
        && *node_monitor_grace_period == sent.node_monitor_grace_period
        && *excluded == sent.excluded
        && *zones == sent.zones
}

impl StreamItem for probe::Verdict {
    const STREAM: &'static str = "lease-probe";

    fn age(&mut self, later: Duration) {
        let later = micros(Some(&duration(later)));
        self.age = Some(signed(micros(self.age.as_ref()).saturating_add(later)));
        self.valid_for = Some(signed(micros(self.valid_for.as_ref()).saturating_sub(later)));
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
            observe_time: _,
            expire_time: _,
            age: _,
            valid_for: _,
            observer,
            outcome_change_time,
            // Like the times, it grows with every list.
            list_revision: _,
        } = self;
        *outcome == sent.outcome
            && *skip_reason == sent.skip_reason
            && *outcome_change_time == sent.outcome_change_time
            && *shoot == sent.shoot
            && *observer == sent.observer
            && *message == sent.message
            && match (evidence, &sent.evidence) {
                (Some(evidence), Some(sent)) => is_same_evidence(evidence, sent),
                (None, None) => true,
                _ => false,
            }
    }

    fn revision(&self) -> u64 {
        self.list_revision
    }

    fn agrees_with(&self, other: &Self) -> bool {
        self.outcome == other.outcome && self.skip_reason == other.skip_reason
    }

    fn valid_for(&self) -> Duration {
        forward(self.valid_for.as_ref())
    }

    watch_replica!(probe::WatchVerdictsRequest => WatchVerdictsResponse);
}

impl StreamItem for scaling::ShootScaling {
    const STREAM: &'static str = "scaling";

    watch_replica!(scaling::WatchScalingRequest => WatchScalingResponse);
}

impl StreamItem for weeder::Weeder {
    const STREAM: &'static str = "weeders";

    fn age(&mut self, later: Duration) {
        let remaining = forward(self.remaining.as_ref()).saturating_sub(later);
        self.remaining = Some(duration(remaining));
    }

    watch_replica!(weeder::WatchWeedersRequest => WatchWeedersResponse);
}

impl StreamItem for weeder::EndpointReadiness {
    const STREAM: &'static str = "endpoint-readiness";

    watch_replica!(weeder::WatchEndpointReadinessRequest => WatchEndpointReadinessResponse);
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
        later.observe_time = Some(crate::wire::timestamp(7));
        later.expire_time = Some(crate::wire::timestamp(8));
        later.valid_for = Some(signed(9));
        later.age = Some(signed(0));
        later.evidence.as_mut().unwrap().largest_skew = Some(signed(3));
        assert!(later.renews(&sent));
        later.evidence.as_mut().unwrap().expired = 1;
        assert!(!later.renews(&sent));
        let other_observer = probe::Verdict {
            observer: "b".to_owned(),
            ..sent.clone()
        };
        assert!(!other_observer.renews(&sent));
    }
}
