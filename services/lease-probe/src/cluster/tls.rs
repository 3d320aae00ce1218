//! TLS towards the shoots, from their kubeconfigs.

use std::sync::{Arc, LazyLock};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use watchdog_api::kubeconfig::ShootAccess;

use crate::domain::outcome::ProbeFailure;

/// One crypto provider for all shoots: it is the larger part of a configuration.
static PROVIDER: LazyLock<Arc<rustls::crypto::CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

/// The authorities that the host trusts, read once.
static HOST_ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    let loaded = rustls_native_certs::load_native_certs();
    for error in loaded.errors {
        tracing::warn!(%error, "cannot read an authority that the host trusts; leaving it out");
    }
    roots.add_parsable_certificates(loaded.certs);
    Arc::new(roots)
});

/// TLS for one shoot: the configuration and the name that the server's certificate must carry.
#[derive(Debug, Clone)]
pub(crate) struct ShootTls {
    /// With HTTP/2 and HTTP/1.1 by ALPN.
    pub(crate) config: Arc<ClientConfig>,
    /// `tls-server-name`, else the host of the server URL.
    pub(crate) server_name: ServerName<'static>,
}

/// Builds the TLS configuration.
///
/// # Errors
/// [`ProbeFailure::Kubeconfig`] when the certificates or the key cannot be used; never shows what is in them.
pub(crate) fn build(access: &ShootAccess) -> Result<ShootTls, ProbeFailure> {
    let server_name = match &access.tls_server_name {
        Some(name) => name.clone(),
        None => server_host(access)?,
    };
    let roots = match &access.authorities {
        None => HOST_ROOTS.clone(),
        Some(certificates) => Arc::new(roots(certificates)?),
    };
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| unusable(&e.to_string()))?
        .with_root_certificates(roots);
    let mut config = match &access.credentials.client_certificate {
        None => builder.with_no_client_auth(),
        Some(client) => builder
            .with_client_auth_cert(client.chain.clone(), client.key.clone_key())
            .map_err(|_| unusable("client-key-data is not the private key of client-certificate-data"))?,
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // One session per shoot is all there is to resume.
    config.resumption = rustls::client::Resumption::in_memory_sessions(2);
    Ok(ShootTls {
        config: Arc::new(config),
        server_name,
    })
}

fn unusable(why: &str) -> ProbeFailure {
    ProbeFailure::Kubeconfig(why.to_owned())
}

fn server_host(access: &ShootAccess) -> Result<ServerName<'static>, ProbeFailure> {
    let host = access.server.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned())
        .map_err(|_| unusable(&format!("{host:?} is neither a DNS name nor an IP address")))
}

fn roots(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, ProbeFailure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate.clone())
            .map_err(|_| unusable("certificate-authority-data holds a certificate that cannot be used"))?;
    }
    Ok(roots)
}
