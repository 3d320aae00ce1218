//! One certificate authority per control plane, a serving certificate for 127.0.0.1, a key for service account tokens.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};

use crate::scratch::Scratch;

/// Files for the servers and the authority's certificate for their clients.
#[derive(Clone, Debug)]
pub(super) struct Pki {
    pub(super) ca_pem: String,
    pub(super) serving_cert: PathBuf,
    pub(super) serving_key: PathBuf,
    pub(super) service_account_private: PathBuf,
    pub(super) service_account_public: PathBuf,
}

impl Pki {
    pub(super) fn new(scratch: &Scratch) -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "watchdog test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_key = KeyPair::generate()?;
        let ca = params
            .self_signed(&ca_key)
            .context("make the authority's certificate")?;
        let issuer = Issuer::new(params, ca_key);

        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        params
            .subject_alt_names
            .push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let key = KeyPair::generate()?;
        let serving = params
            .signed_by(&key, &issuer)
            .context("make the serving certificate")?;

        let tokens = KeyPair::generate()?;
        Ok(Self {
            ca_pem: ca.pem(),
            serving_cert: scratch.write("serving.crt", serving.pem())?,
            serving_key: scratch.write("serving.key", key.serialize_pem())?,
            service_account_private: scratch.write("tokens.key", tokens.serialize_pem())?,
            service_account_public: scratch.write("tokens.pub", tokens.public_key_pem())?,
        })
    }
}
