//! Certificates, made when a test or the demo starts.

use std::sync::Arc;

use anyhow::Context;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
pub use watchdog_client::tls::PemFiles;

use crate::scratch::Scratch;

/// Certificates are valid until then, unless a test wants others.
const LAST_YEAR: i32 = 4096;

/// A certificate authority that lives as long as its test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    name: String,
    scratch: Arc<Scratch>,
}

fn authority(name: &str) -> anyhow::Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("make an authority")
}

/// A certificate for both sides of a connection, with its key.
fn sign(
    issuer: &CertifiedIssuer<'static, KeyPair>,
    common_name: &str,
    names: &[&str],
    last_year: i32,
) -> anyhow::Result<(Certificate, KeyPair)> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_after = date_time_ymd(last_year, 1, 1);
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?, key))
}

impl Authority {
    /// Makes an authority; its certificate is written into the folder.
    pub fn new(scratch: &Arc<Scratch>, name: &str) -> anyhow::Result<Self> {
        let issuer = authority(name)?;
        scratch.write(&format!("{name}-ca.crt"), issuer.pem())?;
        Ok(Self {
            issuer,
            name: name.to_owned(),
            scratch: scratch.clone(),
        })
    }

    /// Issues a certificate for both sides of a connection.
    pub fn issue(&self, common_name: &str, dns_names: &[&str]) -> anyhow::Result<PemFiles> {
        self.issue_until(common_name, dns_names, LAST_YEAR)
    }

    /// The same for one that ran out long ago.
    pub fn issue_expired(&self, common_name: &str, dns_names: &[&str]) -> anyhow::Result<PemFiles> {
        self.issue_until(common_name, dns_names, 2020)
    }

    fn issue_until(&self, common_name: &str, dns_names: &[&str], last_year: i32) -> anyhow::Result<PemFiles> {
        let (certificate, key) = sign(&self.issuer, common_name, dns_names, last_year)?;
        let file = |ending: &str| format!("{}-{common_name}.{ending}", self.name);
        Ok(PemFiles {
            cert: self.scratch.write(&file("crt"), certificate.pem())?,
            key: self.scratch.write(&file("key"), key.serialize_pem())?,
            ca: self.scratch.join(format!("{}-ca.crt", self.name)),
        })
    }
}

/// A server of a test: its certificate, and the authority that signed it and nothing else.
pub struct ServerCertificate {
    /// The authority to trust.
    pub ca_pem: String,
    pub(crate) certificate: Certificate,
    pub(crate) key: KeyPair,
}

impl ServerCertificate {
    /// Makes one for these DNS names and addresses.
    pub fn new(authority_name: &str, names: &[&str]) -> anyhow::Result<Self> {
        let issuer = authority(authority_name)?;
        let (certificate, key) = sign(&issuer, "server", names, LAST_YEAR)?;
        Ok(Self {
            ca_pem: issuer.pem(),
            certificate,
            key,
        })
    }

    /// TLS with the protocols that a kube-apiserver offers.
    pub fn tls(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.der().clone()], key.into())?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(tls))
    }
}
