//! The TLS of a client towards servers that other clients, written in Go, also reach.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, PeerMisbehaved, SignatureScheme,
};
use webpki::RawPublicKeyEntity;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::chain::{Refusal, TrustStore};
use crate::words::tls_error_in_words;

/// Why a client certificate and its key cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClientTlsError {
    /// It is of a kind that is not known, or malformed.
    #[error("client-key-data is not a usable private key: {}", tls_error_in_words(.0))]
    Key(Error),
    /// It is malformed.
    #[error("client-certificate-data does not begin with a certificate that can be read")]
    Certificate,
    /// Both are good by themselves.
    #[error("client-key-data is not the private key of client-certificate-data")]
    Mismatch,
    /// Nothing of both: the protocol versions.
    #[error("{}", tls_error_in_words(.0))]
    Other(Error),
}

/// The servers that a client trusts.
#[derive(Clone)]
pub enum ServerTrust {
    /// Those with a certificate of these authorities.
    Authorities(Arc<TrustStore>),
    /// As [`Authorities`](Self::Authorities), which are asked for in every handshake.
    Current(Arc<dyn Fn() -> Arc<TrustStore> + Send + Sync>),
    /// Every server.
    Everybody,
}

impl From<Arc<TrustStore>> for ServerTrust {
    fn from(trusted: Arc<TrustStore>) -> Self {
        Self::Authorities(trusted)
    }
}

impl fmt::Debug for ServerTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTrust")
    }
}

/// The configuration of a client that trusts these servers, by the rules of Go's crypto/x509.
///
/// # Errors
/// When the client's certificate or key cannot be used; never shows what is in them.
pub fn client_config(
    provider: Arc<CryptoProvider>,
    trusted: impl Into<ServerTrust>,
    client: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, ClientTlsError> {
    let verifier = ServerVerifier {
        trusted: trusted.into(),
        algorithms: provider.signature_verification_algorithms,
    };
    let client = client
        .map(|(chain, key)| certified_key(&provider, chain, key))
        .transpose()?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ClientTlsError::Other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Ok(match client {
        None => builder.with_no_client_auth(),
        Some(certified) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified))),
    })
}

/// Of any certificate that can be read: what a server accepts is not for its client to judge.
fn certified_key(
    provider: &CryptoProvider,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, ClientTlsError> {
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(ClientTlsError::Key)?;
    let first = chain.first().ok_or(ClientTlsError::Certificate)?;
    let (_, certificate) = X509Certificate::from_der(first).map_err(|_| ClientTlsError::Certificate)?;
    // The bits of the keys, because the name of their algorithm has several notations.
    if let Some(spki) = key.public_key()
        && let Ok((_, of_key)) = SubjectPublicKeyInfo::from_der(&spki)
        && of_key.subject_public_key.data != certificate.public_key().subject_public_key.data
    {
        return Err(ClientTlsError::Mismatch);
    }
    Ok(CertifiedKey::new(chain, key))
}

/// Judges servers by [`TrustStore`].
#[derive(Debug)]
struct ServerVerifier {
    trusted: ServerTrust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let refused = |refusal: Refusal| CertificateError::Other(OtherError(Arc::new(refusal)));
        let current;
        let trusted = match &self.trusted {
            ServerTrust::Authorities(trusted) => trusted,
            ServerTrust::Current(ask) => {
                current = ask();
                &current
            }
            ServerTrust::Everybody => return Ok(ServerCertVerified::assertion()),
        };
        trusted
            .judge(server, others, name, now, self.algorithms.all)
            .map_err(refused)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        server: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = spki(server)?;
        let key = RawPublicKeyEntity::try_from(&spki).map_err(|_| CertificateError::BadEncoding)?;
        let mut mapping = self.algorithms.mapping.iter();
        let (_, algorithms) = mapping
            .find(|(scheme, _)| *scheme == signed.scheme)
            .ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        // In TLS 1.2 the scheme does not say which curve the key is on.
        let is_valid = |algorithm: &&_| {
            key.verify_signature(*algorithm, message, signed.signature())
                .is_ok()
        };
        match algorithms.iter().any(is_valid) {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => Err(CertificateError::BadSignature.into()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        server: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(message, &spki(server)?, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn spki<'a>(certificate: &'a CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'a>, Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    Ok(SubjectPublicKeyInfoDer::from(
        parsed.tbs_certificate.subject_pki.raw,
    ))
}
