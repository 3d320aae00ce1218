//! An authority, and the files and servers that it signed.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use watchdog_client::tls::PemFiles;
use watchdog_runtime::tls::Tls;
use watchdog_test_support::certs::Authority;
use watchdog_test_support::scratch::Scratch;

/// An authority, and the certificate of a caller.
pub(crate) struct TestAuthority {
    authority: Authority,
    own: PemFiles,
}

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new("watchdogctl").unwrap();
        let authority = Authority::new(&scratch, "test").unwrap();
        let own = authority.issue("me", &["me.test"]).unwrap();
        Self { authority, own }
    }

    /// The file with a part of the certificate of a caller.
    pub(crate) fn path(&self, part: &str) -> &PathBuf {
        match part {
            "ca.crt" => &self.own.ca,
            "tls.crt" => &self.own.cert,
            _ => &self.own.key,
        }
    }

    /// The options with the certificate of a caller.
    pub(crate) fn options(&self) -> String {
        let [ca, cert, key] = ["ca.crt", "tls.crt", "tls.key"].map(|part| self.path(part).display());
        format!("--tls-ca {ca} --tls-cert {cert} --tls-key {key}")
    }

    /// A server with these names that asks for certificates of the authority.
    pub(crate) fn server(&self, names: &[&str]) -> Arc<ServerConfig> {
        let files = self.authority.issue("server", names).unwrap();
        Tls::load(&files).unwrap().server().unwrap()
    }
}
