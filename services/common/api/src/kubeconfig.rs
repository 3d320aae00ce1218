//! The kubeconfig of a shoot, as a Secret holds it: only what can be used without leaving the process.
//!
//! A Secret's content must not make the watchdog run a program, read a file of its host or connect to a proxy, so
//! everything of that kind is refused with a reason. No error and no `Debug` shows a credential, nor any other value of
//! the file.

mod read;

pub use read::parse;

use http::Uri;
use secrecy::SecretString;
use std::fmt;

/// How to reach and authenticate at a kube-apiserver.
#[derive(Clone, Debug)]
pub struct ShootAccess {
    /// `https` address; its path, if any, is the prefix of every request.
    pub server: Uri,
    /// PEM certificates that the server's must descend from; `None` means those that the host trusts.
    pub ca_pem: Option<Vec<u8>>,
    /// Name to expect in the server's certificate instead of the host in `server`.
    pub tls_server_name: Option<String>,
    /// How to authenticate.
    pub credentials: Credentials,
}

/// How to authenticate: with all that is there, as kubectl does, or not at all. Given both, the API server takes the
/// certificate if it is valid.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The bearer token.
    pub token: Option<SecretString>,
    /// The certificate of the TLS handshake.
    pub client_certificate: Option<ClientCertificate>,
}

/// A client certificate and its key.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate and its chain, PEM.
    pub cert_pem: Vec<u8>,
    /// The private key, PEM.
    pub key_pem: SecretString,
}

/// Why a kubeconfig cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kubeconfig cannot be used: {field}: {reason}")]
pub struct KubeconfigError {
    /// The field, such as `users[0].user.exec`; `kubeconfig` for the document as a whole.
    pub field: String,
    /// The error, and what to do.
    pub reason: String,
}

// === impl ClientCertificate ===

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate")
            .field("cert_pem_bytes", &self.cert_pem.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
