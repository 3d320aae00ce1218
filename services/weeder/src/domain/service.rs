//! Names of services.

use std::sync::Arc;

/// A service in a namespace. Ordered by namespace, so that those of one namespace stand together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub service: Arc<str>,
}

impl ServiceKey {
    /// The key of a service.
    pub fn new(namespace: impl Into<Arc<str>>, service: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            service: service.into(),
        }
    }

    /// Sorts before every service of the namespace, and after all of those before it.
    pub fn before_all_of(namespace: &str) -> Self {
        Self::new(namespace, "")
    }
}

impl std::fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)
    }
}
