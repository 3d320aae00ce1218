//! Mutual TLS whose certificates reload when their files change.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_util::sync::CancellationToken;

use crate::file_watch::FileWatch;
use crate::metrics::Metric;

/// Outcome of the last attempt to read the TLS files.
pub const TLS_VALID: Metric = Metric::gauge(
    "watchdog_tls_files_valid",
    "1 when the TLS files are good as they stand, 0 when changed ones were refused and the old ones are used.",
);

/// Where the TLS files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPaths {
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// Certificate authorities that the other side must be signed by, PEM.
    pub ca: PathBuf,
}

/// The TLS configuration from the files: both sides of mutual TLS, with HTTP/2 by ALPN.
#[derive(Debug)]
pub struct TlsConfigs {
    /// For the gRPC server: callers must show a certificate of the authorities.
    pub server: Arc<rustls::ServerConfig>,
    /// For channels to other services: shows the same certificate.
    pub client: Arc<rustls::ClientConfig>,
}

/// The TLS of the process: always the newest good files. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tls {
    paths: TlsPaths,
    current: Arc<ArcSwap<TlsConfigs>>,
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When a file cannot be read or used; the message names it and never shows what is in it.
    pub fn load(paths: TlsPaths) -> anyhow::Result<Self> {
        let configs = read(&paths)?;
        Ok(Self {
            paths,
            current: Arc::new(ArcSwap::from_pointee(configs)),
        })
    }

    /// The newest good configurations.
    #[must_use]
    pub fn current(&self) -> Arc<TlsConfigs> {
        self.current.load_full()
    }

    /// Takes up changed files until `stop` is cancelled. Streams that are open keep the certificates they were opened
    /// with; bad files are refused and reported, and the old ones stay in use.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub async fn follow(self, stop: CancellationToken) -> anyhow::Result<()> {
        let paths = [&self.paths.cert, &self.paths.key, &self.paths.ca];
        let mut files = FileWatch::new(paths.into_iter().cloned().collect());
        TLS_VALID.set(&[], 1.0);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = files.changed() => {}
            }
            match read(&self.paths) {
                Ok(configs) => {
                    self.current.store(Arc::new(configs));
                    TLS_VALID.set(&[], 1.0);
                    tracing::info!(cert = %self.paths.cert.display(), "TLS files read again");
                }
                Err(error) => {
                    TLS_VALID.set(&[], 0.0);
                    let error = format!("{error:#}");
                    tracing::error!(error, "changed TLS files refused, the old ones stay in use");
                }
            }
        }
    }
}

fn read(paths: &TlsPaths) -> anyhow::Result<TlsConfigs> {
    let chain = certificates(&paths.cert)?;
    let key = PrivateKeyDer::from_pem_file(&paths.key)
        .with_context(|| format!("{}: no private key in PEM", paths.key.display()))?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(&paths.ca)? {
        roots
            .add(authority)
            .with_context(|| format!("{}: bad authority", paths.ca.display()))?;
    }
    let roots = Arc::new(roots);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pair = || {
        let (cert, key) = (paths.cert.display(), paths.key.display());
        format!("{cert} and {key} do not go together")
    };
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .with_context(|| paths.ca.display().to_string())?;
    let mut server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .with_context(pair)?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .with_context(pair)?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConfigs {
        server: Arc::new(server),
        client: Arc::new(client),
    })
}

fn certificates(path: &std::path::Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .with_context(|| format!("{shown}: cannot read"))?
        .collect();
    let found = found.with_context(|| format!("{shown}: not PEM"))?;
    ensure!(!found.is_empty(), "{shown}: holds no certificate in PEM");
    Ok(found)
}
