//! The items of the streams have keys.

use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::weeder::v1 as weeder;

/// Two names, in the order of the first and then of the second: namespace and service, or shoot and id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePair(pub String, pub String);

/// An item with a key.
pub trait Keyed: Send + 'static {
    /// Its key.
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
        Some(NamePair(key.shoot.clone(), key.id.clone()))
    }
}

fn service_key(key: Option<&weeder::ServiceKey>) -> Option<NamePair> {
    let key = key?;
    Some(NamePair(key.namespace.clone(), key.service.clone()))
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
