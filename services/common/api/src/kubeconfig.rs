//! Kubeconfigs: of shoots, as Secrets hold them, and of the seed, as operators have them.
//!
//! Both are read alike, and only the context in use has to be right. They differ in what is refused: a Secret's content
//! must not make the watchdog run a program, read a file of its host or connect to a proxy ([`parse`]); an operator may
//! do all of that ([`of_seed`]). No error and no `Debug` shows a credential, nor any other value of a file.

mod document;
mod exec_credential;
mod field;
mod proxy;
mod seed;
mod shoot;

pub use exec_credential::{PluginCredentials, credentials_of_plugin};
pub use field::{basic, bearer};
pub use proxy::{Proxy, Variable, proxy_of};
pub use seed::{MAX_BYTES, ReadFile, SeedAccess, SeedUser, contexts, of_seed, token_of_file};
pub use shoot::parse;

use http::Uri;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::SecretString;
use secrecy::zeroize::Zeroize as _;

/// How to reach a kube-apiserver, and how to authenticate there, if at all.
#[derive(Debug)]
pub struct ShootAccess {
    /// `https` address; its path, if any, is the prefix of every request.
    pub server: Uri,
    /// Certificates that the server's must descend from, at least one; `None` means those that the host trusts.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
    /// Name to expect in the server's certificate instead of the host in `server`.
    pub tls_server_name: Option<ServerName<'static>>,
    /// The bearer token. Beside a certificate both are sent, as kubectl does; the API server takes the certificate if
    /// it is valid.
    pub token: Option<SecretString>,
    /// The certificate of the TLS handshake.
    pub client_certificate: Option<ClientCertificate>,
}

/// A client certificate and its key.
#[derive(Debug)]
pub struct ClientCertificate {
    /// The certificate and its chain.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key, which its `Debug` does not show. It is wiped on drop.
    pub key: PrivateKeyDer<'static>,
}

impl Drop for ClientCertificate {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// Why a kubeconfig cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kubeconfig cannot be used: {field}: {reason}")]
pub struct KubeconfigError {
    /// The field, such as `users[0].user.exec`; `kubeconfig` for the document as a whole. Of the seed also the file.
    pub field: String,
    /// The error, and what to do.
    pub reason: String,
}

type Result<T, E = KubeconfigError> = std::result::Result<T, E>;

fn refuse<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T> {
    Err(KubeconfigError {
        field: field.into(),
        reason: reason.into(),
    })
}

#[cfg(test)]
mod tests;
