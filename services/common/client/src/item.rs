//! The items of the streams have keys.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;

use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::weeder::v1 as weeder;

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

/// An item with a key.
pub trait Keyed: Send + 'static {
    /// Unique among the items of a stream.
    type Key: Ord + Clone + Send + Sync + 'static;

    /// Its key, if it has one.
    fn key(&self) -> Option<Self::Key>;

    /// Leaves out texts and lists of any length. What programs act upon stays.
    fn leave_out_texts(&mut self);
}

impl Keyed for probe::Verdict {
    type Key = String;

    fn key(&self) -> Option<String> {
        (!self.shoot.is_empty()).then(|| self.shoot.clone())
    }

    fn leave_out_texts(&mut self) {
        self.message = TEXT_LEFT_OUT.to_owned();
        if let Some(evidence) = &mut self.evidence {
            evidence.zones.clear();
        }
    }
}

impl Keyed for scaling::ShootScaling {
    type Key = String;

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

impl Keyed for weeder::Weeder {
    type Key = NamePair;

    fn key(&self) -> Option<NamePair> {
        self.key.as_ref().map(NamePair::from)
    }

    fn leave_out_texts(&mut self) {
        self.message = TEXT_LEFT_OUT.to_owned();
        self.selectors.clear();
        self.deletions.clear();
        self.left_alone.clear();
    }
}

impl Keyed for weeder::EndpointReadiness {
    type Key = NamePair;

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
}
