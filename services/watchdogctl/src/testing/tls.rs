//! An authority, and the files and servers that it signed.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use watchdog_certificates::Authorities;

/// An authority in a folder with ca.crt, ca.key, tls.crt and tls.key.
pub(crate) struct TestAuthority {
    authorities: Authorities,
    folder: TempDir,
}

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let authorities = Authorities::default().renewed(Timestamp::now());
        let this = Self {
            authorities: authorities.unwrap().unwrap(),
            folder: TempDir::new().unwrap(),
        };
        let own = this.authorities.issue(&["me.test".to_owned()], Timestamp::now());
        let ((ca, ca_key), (tls, tls_key)) = (this.authorities.to_pem(), own.unwrap().to_pem());
        let files = [
            ("ca.crt", ca),
            ("ca.key", ca_key),
            ("tls.crt", tls),
            ("tls.key", tls_key),
        ];
        for (name, content) in files {
            std::fs::write(this.path(name), content).unwrap();
        }
        this
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// The options with the certificate of a caller.
    pub(crate) fn options(&self) -> String {
        let [ca, cert, key] = ["ca.crt", "tls.crt", "tls.key"].map(|name| self.path(name));
        format!(
            "--tls-ca {} --tls-cert {} --tls-key {}",
            ca.display(),
            cert.display(),
            key.display()
        )
    }

    /// A server with these names that asks for certificates of the authority.
    pub(crate) fn server(&self, names: &[&str]) -> Arc<ServerConfig> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let issued = self.authorities.issue(&names, Timestamp::now()).unwrap();
        let mut roots = RootCertStore::empty();
        for authority in self.authorities.trusted(Timestamp::now()) {
            roots.add(authority.clone()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![issued.certificate], issued.key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}
