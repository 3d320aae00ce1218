//! Both sides of TLS judge each other by [`TrustStore`].

use std::fmt;
use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerMisbehaved, SignatureScheme,
};
use webpki::RawPublicKeyEntity;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::chain::{Purpose, Refusal, TrustStore};

/// The only crypto provider (ADR 0037). All configurations share one, because it is the larger part of each.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    PROVIDER.clone()
}

/// The private keys with which handshakes can be signed, for people.
const ACCEPTED_KEYS: &str = "use RSA of 2048 to 8192 bits, ECDSA on P-256, P-384 or P-521, or Ed25519";

/// Why a certificate and its private key cannot be used. They have the names that their reader gave them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyPairError {
    /// The key is of a kind that is not known, or malformed.
    #[error("{0}: holds a private key of a kind that is not accepted: {ACCEPTED_KEYS}")]
    Key(String),
    /// The certificate is malformed.
    #[error("{0}: does not begin with a certificate that can be read")]
    Certificate(String),
    /// Both are good by themselves.
    #[error("{key} is not the private key of {chain}")]
    Mismatch {
        /// Name of the certificate.
        chain: String,
        /// Name of the private key.
        key: String,
    },
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

/// The configuration of a client that trusts these servers.
///
/// # Errors
/// When no version of TLS can be spoken.
pub fn client_config(
    trusted: impl Into<ServerTrust>,
    client: Option<CertifiedKey>,
) -> Result<ClientConfig, Error> {
    let verifier = ServerVerifier(trusted.into());
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Ok(match client {
        None => builder.with_no_client_auth(),
        Some(certified) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified))),
    })
}

/// A certificate and its private key, and how errors name both. Any certificate that can be read is taken: what the
/// other side accepts is not for its owner to judge.
///
/// # Errors
/// When one of them cannot be used; never shows what is in them.
pub fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    [chain_name, key_name]: [&str; 2],
) -> Result<CertifiedKey, KeyPairError> {
    let key = provider()
        .key_provider
        .load_private_key(key)
        .map_err(|_| KeyPairError::Key(key_name.to_owned()))?;
    let unreadable = || KeyPairError::Certificate(chain_name.to_owned());
    let first = chain.first().ok_or_else(unreadable)?;
    let (_, certificate) = X509Certificate::from_der(first).map_err(|_| unreadable())?;
    // The bits of the keys, because the name of their algorithm has several notations.
    if let Some(spki) = key.public_key()
        && let Ok((_, of_key)) = SubjectPublicKeyInfo::from_der(&spki)
        && of_key.subject_public_key.data != certificate.public_key().subject_public_key.data
    {
        return Err(KeyPairError::Mismatch {
            chain: chain_name.to_owned(),
            key: key_name.to_owned(),
        });
    }
    Ok(CertifiedKey::new(chain, key))
}

/// Judges servers.
#[derive(Debug)]
struct ServerVerifier(ServerTrust);

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
        let trusted = match &self.0 {
            ServerTrust::Authorities(trusted) => trusted,
            ServerTrust::Current(ask) => {
                current = ask();
                &current
            }
            ServerTrust::Everybody => return Ok(ServerCertVerified::assertion()),
        };
        trusted
            .judge(server, others, Purpose::Server(name), now)
            .map_err(refused)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        server: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12_signature(message, server, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        server: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13_signature(message, server, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Judges callers by these authorities. One that shows no certificate is accepted only if `is_mandatory` is false.
#[derive(Debug)]
pub struct CallerVerifier {
    /// The authorities that callers must be signed by.
    pub trusted: Arc<TrustStore>,
    /// Callers must show a certificate.
    pub is_mandatory: bool,
}

impl ClientCertVerifier for CallerVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    // Clients of ours have one certificate and need no hint.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Its kind is what the caller learns; an error with a text of its own would tell it nothing.
        let judged = self.trusted.judge(own, others, Purpose::Client, now);
        judged.map_err(|refusal| refusal.kind)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn tls12_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let spki = spki(certificate)?;
    let key = RawPublicKeyEntity::try_from(&spki).map_err(|_| CertificateError::BadEncoding)?;
    let mut mapping = provider().signature_verification_algorithms.mapping.iter();
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

fn tls13_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let algorithms = provider().signature_verification_algorithms;
    verify_tls13_signature_with_raw_key(message, &spki(certificate)?, signed, &algorithms)
}

fn spki<'a>(certificate: &'a CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'a>, Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    Ok(SubjectPublicKeyInfoDer::from(
        parsed.tbs_certificate.subject_pki.raw,
    ))
}
