//! Certificates of one API server: its own CA, a server certificate for loopback, client certificates.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};

use crate::error::SandboxError;

/// A CA and the TLS configuration of the server that it vouches for.
pub(crate) struct ServerPki {
    pub(crate) ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    /// The server side of TLS: client certificates are welcome but not demanded.
    pub(crate) server: Arc<ServerConfig>,
}

/// A client certificate with its key.
pub(crate) struct ClientIdentity {
    pub(crate) certificate_pem: String,
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
        let mut params = named(&[], &format!("{name}-ca"))?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate()?;
        let ca = params.self_signed(&ca_key)?;
        let issuer = Issuer::new(params, ca_key);

        let key = KeyPair::generate()?;
        let certificate = named(&["localhost", "kubernetes", "127.0.0.1"], "kube-apiserver")?;
        let certificate = certificate.signed_by(&key, &issuer)?;

        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone())?;
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone(), ca.der().clone()], key)?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            ca_pem: ca.pem(),
            issuer,
            server: Arc::new(server),
        })
    }

    /// Issues a client certificate for a user.
    pub(crate) fn client(&self, user: &str) -> Result<ClientIdentity, SandboxError> {
        let key = KeyPair::generate()?;
        let certificate = named(&[], user)?.signed_by(&key, &self.issuer)?;
        Ok(ClientIdentity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            der: certificate.der().to_vec(),
        })
    }
}

fn named(hosts: &[&str], common_name: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    params.use_authority_key_identifier_extension = true;
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}
