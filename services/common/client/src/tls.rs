//! The client's side of mutual TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use watchdog_certificates::{TrustStore, certified_key};

use crate::regular_file;
use crate::setup_error::SetupError;

/// Bytes of a PEM file at most: those of a Secret.
const MOST_PEM_BYTES: usize = 1 << 20;

/// Where the PEM files of a client are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFiles {
    /// Certificate authorities that the server must be signed by.
    pub ca: PathBuf,
    /// The client's certificate chain.
    pub cert: PathBuf,
    /// The client's private key.
    pub key: PathBuf,
}

/// The TLS configuration of a client. Clones share it, so a new one reaches every channel. The default has none yet:
/// connections wait for the first one.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    current: watch::Sender<Option<Arc<ClientConfig>>>,
}

impl ClientTls {
    /// Reads the files once. To take up changed files, read them again and call [`ClientTls::replace`].
    ///
    /// # Errors
    /// When a file cannot be read or used; the message names it and never shows its content.
    pub fn from_files(files: &PemFiles) -> Result<Self, SetupError> {
        let [ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|path| read(path));
        Self::from_pem(
            (&files.ca.display().to_string(), &ca?),
            (&files.cert.display().to_string(), &cert?),
            (&files.key.display().to_string(), &key?),
        )
    }

    /// From PEM in memory, for example from a Secret. Each part comes with the name by which errors call it.
    ///
    /// # Errors
    /// When a part cannot be used; the message names it and never shows its content.
    pub fn from_pem(ca: (&str, &[u8]), cert: (&str, &[u8]), key: (&str, &[u8])) -> Result<Self, SetupError> {
        let (trusted, unreadable) = TrustStore::new(certificates(ca.0, ca.1)?);
        let trusted = Arc::new(trusted);
        if unreadable > 0 {
            return Err(SetupError::BadAuthority(ca.0.to_owned()));
        }
        let chain = certificates(cert.0, cert.1)?;
        let own = certified_key(chain, private_key(key.0, key.1)?, [cert.0, key.0])?;
        let tls = Self::default();
        tls.replace(client_config(trusted, own).map_err(SetupError::Tls)?);
        Ok(tls)
    }

    /// Connections that are opened from now on use this configuration.
    pub fn replace(&self, config: ClientConfig) {
        self.current.send_replace(Some(Arc::new(config)));
    }

    /// The configuration of the next connection, once there is one.
    pub async fn current(&self) -> Arc<ClientConfig> {
        let mut current = self.current.subscribe();
        loop {
            if let Some(config) = &*current.borrow_and_update() {
                return config.clone();
            }
            // The sender lives as long as this does.
            let _ = current.changed().await;
        }
    }
}

/// A client's configuration for gRPC: HTTP/2 by ALPN, TLS 1.2 and 1.3.
///
/// # Errors
/// When no version of TLS can be spoken.
pub fn client_config(trusted: Arc<TrustStore>, own: CertifiedKey) -> Result<ClientConfig, rustls::Error> {
    let mut config = watchdog_certificates::client_config(trusted, Some(own))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Reads a PEM file.
///
/// # Errors
/// When it cannot be read; the message names it.
pub fn read(path: &Path) -> Result<Vec<u8>, SetupError> {
    let content = regular_file::read(path, MOST_PEM_BYTES);
    content.map_err(|error| SetupError::Unreadable(path.display().to_string(), error))
}

/// The certificates in a PEM text that errors call `name`.
///
/// # Errors
/// When there is none, or the text is not PEM.
pub fn certificates(name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| SetupError::NotPem(name.to_owned(), error))?;
    if found.is_empty() {
        return Err(SetupError::NoCertificate(name.to_owned()));
    }
    Ok(found)
}

/// The private key in a PEM text that errors call `name`.
///
/// # Errors
/// When there is none.
pub fn private_key(name: &str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, SetupError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| SetupError::NoKey(name.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_and_not_shown() {
        let missing = PemFiles {
            ca: "/no/such/ca.crt".into(),
            cert: "/no/such/tls.crt".into(),
            key: "/no/such/tls.key".into(),
        };
        let error = ClientTls::from_files(&missing).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/ca.crt: cannot read"), "{error}");
        let part = |name| (name, b"classified".as_slice());
        let error = ClientTls::from_pem(part("ca.crt"), part("tls.crt"), part("tls.key"))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "ca.crt: holds no certificate in PEM");
        let error = private_key("tls.key", b"classified").unwrap_err().to_string();
        assert!(
            error.starts_with("tls.key: ") && !error.contains("classified"),
            "{error}"
        );
    }
}
