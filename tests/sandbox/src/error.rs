//! Errors of setting up or controlling the sandbox itself.

/// An error of the sandbox, as opposed to one that its API servers answer with.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A socket could not be bound or used.
    #[error("socket: {0}")]
    Io(#[from] std::io::Error),
    /// A certificate could not be made.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS refused the configuration.
    #[error("TLS: {0}")]
    Tls(String),
    /// The store refused an object that the sandbox itself makes.
    #[error("object: {0}")]
    Object(#[from] crate::status::ApiError),
    /// There is no such shoot.
    #[error("no shoot {0}")]
    NoSuchShoot(String),
    /// There is already a shoot of this name.
    #[error("shoot {0} exists already")]
    ShootExists(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Something did not stop or start in time.
    #[error("timed out: {0}")]
    Timeout(&'static str),
}

impl From<rustls::Error> for SandboxError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error.to_string())
    }
}
