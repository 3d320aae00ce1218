//! The kubeconfigs of shoots, as their Secrets hold them and as connections use them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use http::header::{HeaderValue, InvalidHeaderValue};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use watchdog_api::kubeconfig::{ShootAccess, bearer};
use watchdog_certificates::client_config;
use watchdog_kube::seed::{certified, host_authorities, readable_authorities};

use super::resolver::HostLookup;
use crate::domain::outcome::ProbeFailure;

/// A kubeconfig, or why it cannot be used.
pub type Access = Result<Arc<Kubeconfig>, ProbeFailure>;

/// The server address, TLS configuration and credentials of one kubeconfig.
#[derive(Debug)]
pub struct Kubeconfig {
    /// Hash of its content.
    digest: u64,
    pub(super) host: HostLookup,
    /// Host and, if it has one, port of the server URL.
    pub(super) authority: String,
    /// Path of the server URL, without a slash at its end.
    pub(super) prefix: String,
    pub(super) tls: Arc<ClientConfig>,
    /// The name that the server's certificate must carry: `tls-server-name`, else the host of the server URL.
    pub(super) server_name: ServerName<'static>,
    /// The `Authorization` header of every request.
    pub(super) authorization: Option<HeaderValue>,
}

impl PartialEq for Kubeconfig {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// The kubeconfig in `data`, which is what a Secret has under its key, if it has that key, or why it cannot be read.
///
/// # Errors
/// Why it cannot be used; never shows what is in it.
pub fn access(data: Result<Option<&[u8]>, &str>) -> Access {
    let unusable = |why: &str| ProbeFailure::Kubeconfig(format!("the Secret {why}"));
    let data = data.map_err(|why| unusable(&format!("has malformed data: {why}")))?;
    let data = data.ok_or_else(|| unusable("has no data key kubeconfig"))?;
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    let access = watchdog_api::kubeconfig::parse(data)
        .map_err(|e| ProbeFailure::Kubeconfig(format!("{}: {}", e.field, e.reason)))?;
    let kubeconfig = Kubeconfig::new(hasher.finish(), &access).map_err(ProbeFailure::Kubeconfig)?;
    Ok(Arc::new(kubeconfig))
}

impl Kubeconfig {
    /// The error says what is wrong, and shows no credential.
    fn new(digest: u64, access: &ShootAccess) -> Result<Self, String> {
        let authority = access
            .server
            .authority()
            .ok_or_else(|| "the server URL has no host".to_owned())?;
        let host = authority.host().trim_matches(['[', ']']);
        let server_name = match &access.tls_server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned())
                .map_err(|_| format!("{host:?} is neither a DNS name nor an IP address"))?,
        };
        let token = access.token.as_ref();
        Ok(Self {
            digest,
            host: HostLookup::new(host, authority.port_u16().unwrap_or(443)),
            // As Go sends it: a port only where the URL has one. Some proxies choose the server by it.
            authority: authority.as_str().trim_end_matches(':').to_owned(),
            prefix: access.server.path().trim_end_matches('/').to_owned(),
            tls: tls(access)?,
            server_name,
            authorization: token
                .map(authorization)
                .transpose()
                .map_err(|_| "the token has characters that no HTTP header can carry".to_owned())?,
        })
    }
}

fn authorization(token: &SecretString) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(bearer(token).expose_secret())?;
    value.set_sensitive(true);
    Ok(value)
}

/// The configuration, with HTTP/2 and HTTP/1.1 by ALPN. The error says why the certificates or the key cannot be used,
/// and never shows what is in them.
fn tls(access: &ShootAccess) -> Result<Arc<ClientConfig>, String> {
    let trusted = match &access.authorities {
        None => host_authorities(),
        Some(certificates) => readable_authorities(certificates.iter().cloned())
            .map(Arc::new)
            .ok_or("certificate-authority-data holds no certificate that can be read")?,
    };
    let client = access.client_certificate.as_ref().map(certified).transpose();
    let client = client.map_err(|error| error.to_string())?;
    let mut config = client_config(trusted, client).map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // One session per shoot is all there is to resume.
    config.resumption = Resumption::in_memory_sessions(2);
    Ok(Arc::new(config))
}
