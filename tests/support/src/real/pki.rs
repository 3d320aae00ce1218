//! The files of a control plane: a serving certificate for 127.0.0.1, and a key for service account tokens.

use std::path::PathBuf;

use rcgen::KeyPair;

use crate::certs::ServerCertificate;
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
        let serving = ServerCertificate::new("watchdog test authority", &["localhost", "127.0.0.1"])?;
        let tokens = KeyPair::generate()?;
        Ok(Self {
            ca_pem: serving.ca_pem,
            serving_cert: scratch.write("serving.crt", serving.certificate.pem())?,
            serving_key: scratch.write("serving.key", serving.key.serialize_pem())?,
            service_account_private: scratch.write("tokens.key", tokens.serialize_pem())?,
            service_account_public: scratch.write("tokens.pub", tokens.public_key_pem())?,
        })
    }
}
