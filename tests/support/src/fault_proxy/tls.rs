//! The certificate of a fault proxy, and what it trusts upstream.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::HANDSHAKE_BOUND;
use crate::certs::ServerCertificate;

/// Both sides' TLS.
pub(super) struct ProxyTls {
    server: Arc<ServerConfig>,
    client: ClientConfig,
}

// === impl ProxyTls ===

impl ProxyTls {
    /// Returns the proxy's own authority too.
    pub(super) fn new(upstream_ca: &str) -> anyhow::Result<(Self, String)> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let own = ServerCertificate::new("proxy-ca", &["localhost", "127.0.0.1"])?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(upstream_ca.as_bytes()) {
            roots.add(certificate.context("read the upstream's authority")?)?;
        }
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = own.tls()?;
        Ok((Self { server, client }, own.ca_pem))
    }

    /// The client's side; none when it gives up.
    pub(super) async fn accept(&self, stream: TcpStream) -> Option<server::TlsStream<TcpStream>> {
        let accepted = TlsAcceptor::from(self.server.clone()).accept(stream);
        timeout(HANDSHAKE_BOUND, accepted).await.ok()?.ok()
    }

    /// The upstream's side, speaking what the client chose; none when it is not there.
    pub(super) async fn connect(
        &self,
        address: SocketAddr,
        protocol: Option<&[u8]>,
    ) -> Option<client::TlsStream<TcpStream>> {
        let mut config = self.client.clone();
        config.alpn_protocols = protocol.iter().map(|name| name.to_vec()).collect();
        let connector = TlsConnector::from(Arc::new(config));
        let connected = async {
            let stream = TcpStream::connect(address).await.ok()?;
            let _ = stream.set_nodelay(true);
            let name = ServerName::IpAddress(address.ip().into());
            connector.connect(name, stream).await.ok()
        };
        timeout(HANDSHAKE_BOUND, connected).await.ok()?
    }
}
