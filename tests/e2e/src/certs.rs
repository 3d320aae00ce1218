//! Certificates for mutual TLS, made when a test or the demo starts.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

use crate::scratch::Scratch;

/// A certificate authority that lives as long as its test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    name: String,
    scratch: Arc<Scratch>,
}

/// Paths of one party's PEM files.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Certificate.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// The authority that signed it, and that it trusts.
    pub ca: PathBuf,
}

impl Authority {
    /// Makes an authority; its certificate is written into the folder.
    ///
    /// # Errors
    /// When a key cannot be made or a file not be written.
    pub fn new(scratch: &Arc<Scratch>, name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer =
            CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("make an authority")?;
        scratch.write(&format!("{name}-ca.crt"), issuer.pem())?;
        Ok(Self {
            issuer,
            name: name.to_owned(),
            scratch: scratch.clone(),
        })
    }

    /// Issues a certificate for both sides of a connection.
    ///
    /// # Errors
    /// When a name is no DNS name, or a file cannot be written.
    pub fn issue(&self, common_name: &str, dns_names: &[&str]) -> anyhow::Result<TlsFiles> {
        let names: Vec<String> = dns_names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let file = |ending: &str| format!("{}-{common_name}.{ending}", self.name);
        Ok(TlsFiles {
            cert: self.scratch.write(&file("crt"), certificate.pem())?,
            key: self.scratch.write(&file("key"), key.serialize_pem())?,
            ca: self.scratch.join(format!("{}-ca.crt", self.name)),
        })
    }
}
