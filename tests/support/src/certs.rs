//! Certificates, made when a test or the demo starts.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
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

fn authority(name: &str) -> anyhow::Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("make an authority")
}

impl Authority {
    /// Makes an authority; its certificate is written into the folder.
    ///
    /// # Errors
    /// When a key cannot be made or a file not be written.
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
    ///
    /// # Errors
    /// When a name is no DNS name, or a file cannot be written.
    pub fn issue(&self, common_name: &str, dns_names: &[&str]) -> anyhow::Result<TlsFiles> {
        self.issue_until(common_name, dns_names, 4096)
    }

    /// The same for one that ran out long ago.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_expired(&self, common_name: &str, dns_names: &[&str]) -> anyhow::Result<TlsFiles> {
        self.issue_until(common_name, dns_names, 2020)
    }

    fn issue_until(&self, common_name: &str, dns_names: &[&str], last_year: i32) -> anyhow::Result<TlsFiles> {
        let names: Vec<String> = dns_names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_after = date_time_ymd(last_year, 1, 1);
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

/// A server on loopback: its certificate, and the authority that signed it and nothing else.
pub(crate) struct LoopbackCertificate {
    pub(crate) ca_pem: String,
    pub(crate) certificate: Certificate,
    pub(crate) key: KeyPair,
}

impl LoopbackCertificate {
    pub(crate) fn new(authority_name: &str) -> anyhow::Result<Self> {
        let issuer = authority(authority_name)?;
        let mut params = CertificateParams::new(["localhost", "127.0.0.1"].map(str::to_owned))?;
        params.distinguished_name.push(DnType::CommonName, "loopback");
        let key = KeyPair::generate()?;
        Ok(Self {
            ca_pem: issuer.pem(),
            certificate: params.signed_by(&key, &issuer)?,
            key,
        })
    }
}
