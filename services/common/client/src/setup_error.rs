//! Why a client cannot be set up.

use std::io;

use rustls::pki_types::{InvalidDnsNameError, pem};
use watchdog_certificates::{KeyPairError, tls_error_in_words};

/// Why certificates cannot be used or a channel cannot be made. No message shows what is in a file.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file cannot be read.
    #[error("{0}: cannot read")]
    Unreadable(String, #[source] io::Error),
    /// A file or a part of a Secret is not PEM.
    #[error("{0}: is not PEM")]
    NotPem(String, #[source] pem::Error),
    /// It has no certificate.
    #[error("{0}: holds no certificate in PEM")]
    NoCertificate(String),
    /// It has no private key.
    #[error("{0}: holds no private key in PEM")]
    NoKey(String, #[source] pem::Error),
    /// An authority in it cannot be used.
    #[error("{0}: holds an authority that cannot be used")]
    BadAuthority(String),
    /// A certificate and its private key cannot be used.
    #[error(transparent)]
    KeyPair(#[from] KeyPairError),
    /// TLS cannot be set up.
    #[error("{}", tls_error_in_words(.0))]
    Tls(rustls::Error),
    /// An address is not of the form host:port.
    #[error("{0:?} is not an address of the form host:port")]
    Address(String, #[source] tonic::transport::Error),
    /// A server name is not a DNS name.
    #[error("{0:?} is not a DNS name")]
    ServerName(String, #[source] InvalidDnsNameError),
}
