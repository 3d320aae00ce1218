//! The certificate of a fault proxy, and what it trusts upstream.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::HANDSHAKE_BOUND;

/// Both sides' TLS.
pub(crate) struct ProxyTls {
    pub(crate) ca_pem: String,
    server: Arc<ServerConfig>,
    client: ClientConfig,
}

// === impl ProxyTls ===

impl ProxyTls {
    pub(crate) fn new(upstream_ca: &str) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (ca_pem, server) = server_config(provider.clone())?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(upstream_ca.as_bytes()) {
            roots.add(certificate.context("read the upstream's authority")?)?;
        }
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            ca_pem,
            server: Arc::new(server),
            client,
        })
    }

    /// The client's side; none when it gives up.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Option<server::TlsStream<TcpStream>> {
        let accepted = TlsAcceptor::from(self.server.clone()).accept(stream);
        timeout(HANDSHAKE_BOUND, accepted).await.ok()?.ok()
    }

    /// The upstream's side, speaking what the client chose; none when it is not there.
    pub(crate) async fn connect(
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

fn server_config(provider: Arc<CryptoProvider>) -> anyhow::Result<(String, ServerConfig)> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "proxy-ca");
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_key = KeyPair::generate()?;
    let ca_pem = params.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(params, ca_key);

    let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
    params
        .subject_alt_names
        .push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )?;
    // As a kube-apiserver offers them.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((ca_pem, config))
}
