//! TLS towards the shoots, from their kubeconfigs.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use watchdog_api::kubeconfig::ShootAccess;
use watchdog_certificates::client_config;
use watchdog_kube::seed::{host_authorities, readable_authorities};

use crate::domain::outcome::ProbeFailure;

/// The configuration, with HTTP/2 and HTTP/1.1 by ALPN, and the name that the server's certificate must carry:
/// `tls-server-name`, else the host of the server URL.
///
/// # Errors
/// [`ProbeFailure::Kubeconfig`] when the certificates or the key cannot be used; never shows what is in them.
pub(super) fn build(access: &ShootAccess) -> Result<(Arc<ClientConfig>, ServerName<'static>), ProbeFailure> {
    let server_name = match &access.tls_server_name {
        Some(name) => name.clone(),
        None => server_host(access)?,
    };
    let trusted = match &access.authorities {
        None => host_authorities(),
        Some(certificates) => match readable_authorities(certificates.iter().cloned()) {
            Some(trusted) => Arc::new(trusted),
            None => {
                return Err(unusable(
                    "certificate-authority-data holds no certificate that can be read",
                ));
            }
        },
    };
    let client = access.credentials.client_certificate.as_ref();
    let client = client.map(|client| (client.chain.clone(), client.key.clone_key()));
    let mut config = client_config(trusted, client).map_err(|error| unusable(&error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // One session per shoot is all there is to resume.
    config.resumption = rustls::client::Resumption::in_memory_sessions(2);
    Ok((Arc::new(config), server_name))
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
