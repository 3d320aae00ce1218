//! The items of the streams: they have a key, and their times age on the way.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::weeder::v1 as weeder;

use crate::wire::{duration, forward, micros, signed};

/// Two names, in the order of the first and then of the second: namespace and service, or shoot and id. Its copies
/// share the text: a view of thousands of items keeps several. The first has no slash, which separates them as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePair(pub Arc<str>, pub Arc<str>);

impl Display for NamePair {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

impl FromStr for NamePair {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, second) = text.split_once('/').ok_or("has no slash")?;
        Ok(Self(first.into(), second.into()))
    }
}

impl From<&weeder::ServiceKey> for NamePair {
    fn from(key: &weeder::ServiceKey) -> Self {
        Self(key.namespace.as_str().into(), key.service.as_str().into())
    }
}

impl From<NamePair> for weeder::ServiceKey {
    fn from(NamePair(namespace, service): NamePair) -> Self {
        Self {
            namespace: namespace.to_string(),
            service: service.to_string(),
        }
    }
}

/// Stands for the texts of an item that would be too large with them.
const TEXT_LEFT_OUT: &str = "The text is omitted because the item would be too large for its readers.";

/// An item of a Watch stream, as it is on the wire.
pub trait StreamItem: prost::Message + Clone + 'static {
    /// Unique among the items of a stream. Page tokens carry it as text.
    type Key: Ord + Clone + Display + FromStr + Send + Sync + 'static;

    /// Name of the stream in logs, metrics and on /readyz.
    const STREAM: &'static str;

    /// Its key, if it has one.
    fn key(&self) -> Option<Self::Key>;

    /// Makes it the item as it is after `later`.
    fn age(&mut self, _later: Duration) {}

    /// Leaves out texts and lists of any length. What programs act upon stays.
    fn leave_out_texts(&mut self);
}

impl StreamItem for probe::Verdict {
    type Key = String;
    const STREAM: &'static str = "lease-probe";

    fn key(&self) -> Option<String> {
        (!self.shoot.is_empty()).then(|| self.shoot.clone())
    }

    fn age(&mut self, later: Duration) {
        let later = micros(Some(&duration(later)));
        self.age = Some(signed(micros(self.age.as_ref()).saturating_add(later)));
        self.valid_for = Some(signed(micros(self.valid_for.as_ref()).saturating_sub(later)));
    }

    fn leave_out_texts(&mut self) {
        self.message = TEXT_LEFT_OUT.to_owned();
        if let Some(evidence) = &mut self.evidence {
            evidence.zones.clear();
        }
    }
}

impl StreamItem for scaling::ShootScaling {
    type Key = String;
    const STREAM: &'static str = "scaling";

    fn key(&self) -> Option<String> {
        (!self.shoot.is_empty()).then(|| self.shoot.clone())
    }

    fn leave_out_texts(&mut self) {
        self.reason = TEXT_LEFT_OUT.to_owned();
        for resource in &mut self.resources {
            resource.message.clear();
        }
        for incident in self.incident.iter_mut().chain(&mut self.last_incident) {
            incident.reason.clear();
            incident.last_error.clear();
            incident.zones.clear();
            incident.scale_times.clear();
        }
    }
}

impl StreamItem for weeder::Weeder {
    type Key = NamePair;
    const STREAM: &'static str = "weeders";

    fn key(&self) -> Option<NamePair> {
        self.key.as_ref().map(NamePair::from)
    }

    fn age(&mut self, later: Duration) {
        let remaining = forward(self.remaining.as_ref()).saturating_sub(later);
        self.remaining = Some(duration(remaining));
    }

    fn leave_out_texts(&mut self) {
        self.message = TEXT_LEFT_OUT.to_owned();
        self.selectors.clear();
        self.deletions.clear();
        self.left_alone.clear();
    }
}

impl StreamItem for weeder::EndpointReadiness {
    type Key = NamePair;
    const STREAM: &'static str = "endpoint-readiness";

    fn key(&self) -> Option<NamePair> {
        self.key.as_ref().map(NamePair::from)
    }

    fn leave_out_texts(&mut self) {
        self.observer.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_ordered_by_their_first_name_and_read_back() {
        let pair = |a: &str, b: &str| NamePair(a.into(), b.into());
        assert!(pair("a", "z") < pair("a-b", "a"));
        assert_eq!(pair("a", "b").to_string().parse(), Ok(pair("a", "b")));
        assert!("a".parse::<NamePair>().is_err());
    }

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
    }
}
