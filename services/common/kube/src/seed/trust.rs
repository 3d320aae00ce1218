//! The authorities by which servers are judged.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::CertifiedKey;
use watchdog_api::kubeconfig::ClientCertificate;
use watchdog_certificates::{KeyPairError, ServerTrust, TrustStore, certified_key};

use super::fields::read_file;

/// The file of a Pod's authorities is read again after this time, as client-go reads it.
const FILE_AGE: Duration = Duration::from_secs(60);

/// The authorities that the host trusts, read once.
static HOST: LazyLock<Arc<TrustStore>> = LazyLock::new(|| {
    let loaded = rustls_native_certs::load_native_certs();
    for error in loaded.errors {
        tracing::warn!(%error, "cannot read an authority that the host trusts; leaving it out");
    }
    let (trusted, unreadable) = TrustStore::new(loaded.certs);
    if unreadable > 0 {
        tracing::warn!(
            unreadable,
            "the host trusts certificates that cannot be read; leaving them out"
        );
    }
    Arc::new(trusted)
});

/// The authorities that the host trusts.
#[must_use]
pub fn host_authorities() -> Arc<TrustStore> {
    HOST.clone()
}

/// The authorities among the certificates of a kubeconfig, if there is any. A bundle may hold blocks that are no
/// certificate, as with every client written in Go.
#[must_use]
pub fn readable_authorities(
    certificates: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Option<TrustStore> {
    let (trusted, unreadable) = TrustStore::new(certificates);
    if trusted.is_empty() {
        return None;
    }
    if unreadable > 0 {
        tracing::warn!(
            unreadable,
            "certificate-authority-data holds certificates that cannot be read; leaving them out"
        );
    }
    Some(trusted)
}

/// The certificate of a kubeconfig and its key.
///
/// # Errors
/// When one of them cannot be used; never shows what is in them.
pub fn certified(client: &ClientCertificate) -> Result<CertifiedKey, KeyPairError> {
    let names = ["client-certificate-data", "client-key-data"];
    certified_key(client.chain.clone(), client.key.clone_key(), names)
}

/// The authorities in a file, which is replaced from time to time. While it cannot be read, those that were read last
/// count.
pub(super) fn of_file(path: PathBuf) -> anyhow::Result<ServerTrust> {
    let first = read(&path).with_context(|| format!("cannot use {}", path.display()))?;
    let current = Mutex::new((Arc::new(first), Instant::now()));
    Ok(ServerTrust::Current(Arc::new(move || {
        let mut current = current.lock();
        if current.1.elapsed() >= FILE_AGE {
            match read(&path) {
                Ok(trusted) => current.0 = Arc::new(trusted),
                Err(error) => tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot read the authorities of the seed again; using those of the last read"
                ),
            }
            current.1 = Instant::now();
        }
        current.0.clone()
    })))
}

fn read(path: &Path) -> anyhow::Result<TrustStore> {
    of_pem(&read_file(path)?).context("it holds no certificate that can be read")
}

/// The authorities in PEM, if there is any.
pub(super) fn of_pem(pem: &[u8]) -> Option<TrustStore> {
    readable_authorities(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok))
}
