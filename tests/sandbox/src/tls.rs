//! Certificates of one API server: its own CA, a server certificate for loopback, client certificates.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};

use crate::error::SandboxError;

/// A CA and the TLS configuration of the server that it vouches for.
pub(crate) struct ServerPki {
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    server: Arc<ServerConfig>,
}

/// A client certificate with its key.
pub(crate) struct ClientIdentity {
    pub(crate) certificate_pem: String,
    /// PEM of the private key.
    pub(crate) key_pem: String,
    /// DER of the certificate, by which the server recognises it.
    pub(crate) der: Vec<u8>,
}

impl std::fmt::Debug for ServerPki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The keys stay out of logs.
        f.debug_struct("ServerPki").finish_non_exhaustive()
    }
}

impl ServerPki {
    /// Makes a CA called `name` and a server certificate for 127.0.0.1 and localhost.
    pub(crate) fn new(name: &str) -> Result<Self, SandboxError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("{name}-ca"));
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        let ca_key = KeyPair::generate()?;
        let ca = params.self_signed(&ca_key)?;
        let issuer = Issuer::new(params, ca_key);

        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "kubernetes".to_owned()])?;
        params
            .subject_alt_names
            .push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;

        let server = server_config(ca.der(), certificate.der().clone(), &key)?;
        Ok(Self {
            ca_pem: ca.pem(),
            issuer,
            server,
        })
    }

    /// PEM of the CA certificate.
    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The server side of TLS: client certificates are welcome but not demanded.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// Issues a client certificate for a user.
    pub(crate) fn client(&self, user: &str) -> Result<ClientIdentity, SandboxError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, user);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(ClientIdentity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            der: certificate.der().to_vec(),
        })
    }
}

fn server_config(
    ca: &CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    key: &KeyPair,
) -> Result<Arc<ServerConfig>, SandboxError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone())?;
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| SandboxError::Tls(error.to_string()))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate, ca.clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
