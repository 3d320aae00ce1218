/// An error of the sandbox, as opposed to one that its API servers answer with.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("socket: {0}")]
    Io(#[from] std::io::Error),
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The store refused an object.
    #[error("object: {0}")]
    Object(#[from] crate::status::ApiError),
    /// The server is stopped or frozen.
    #[error("the API server is away")]
    Away,
    /// Something did not stop in time.
    #[error("timed out: {0}")]
    Timeout(&'static str),
}
