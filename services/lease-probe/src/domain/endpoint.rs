//! The two endpoints of a shoot's API server.

/// An endpoint of a shoot's API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// The one of `kubeConfigSecretName`.
    Internal,
    /// The one of `externalKubeConfigSecretName`.
    External,
}

impl Endpoint {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::External => "external",
        }
    }
}
