//! The items of the streams have keys.

use std::sync::Arc;

use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::weeder::v1 as weeder;

/// Two names, in the order of the first and then of the second: namespace and service, or shoot and id. Its copies
/// share the text: a view of thousands of items keeps several.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePair(pub Arc<str>, pub Arc<str>);

/// An item with a key.
pub trait Keyed: Send + 'static {
    /// Unique among the items of a stream.
    type Key: Ord + Clone + Send + Sync + 'static;

    /// Its key, if it has one.
    fn key(&self) -> Option<Self::Key>;
}

impl Keyed for probe::Verdict {
    type Key = String;

    fn key(&self) -> Option<String> {
        (!self.shoot.is_empty()).then(|| self.shoot.clone())
    }
}

impl Keyed for scaling::ShootScaling {
    type Key = String;

    fn key(&self) -> Option<String> {
        (!self.shoot.is_empty()).then(|| self.shoot.clone())
    }
}

impl Keyed for scaling::ShootEvent {
    type Key = NamePair;

    fn key(&self) -> Option<NamePair> {
        let key = self.key.as_ref()?;
        Some(NamePair(key.shoot.as_str().into(), key.id.as_str().into()))
    }
}

fn service_key(key: Option<&weeder::ServiceKey>) -> Option<NamePair> {
    let key = key?;
    Some(NamePair(
        key.namespace.as_str().into(),
        key.service.as_str().into(),
    ))
}

impl Keyed for weeder::Weeder {
    type Key = NamePair;

    fn key(&self) -> Option<NamePair> {
        service_key(self.key.as_ref())
    }
}

impl Keyed for weeder::EndpointReadiness {
    type Key = NamePair;

    fn key(&self) -> Option<NamePair> {
        service_key(self.key.as_ref())
    }
}
