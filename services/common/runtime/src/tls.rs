//! Mutual TLS whose certificates reload when their files change.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use rustls::server::WebPkiClientVerifier;
use tokio_util::sync::CancellationToken;
use watchdog_client::tls::{ClientTls, authorities, certificates, client_config, private_key};

use crate::file_watch::FileWatch;
use crate::metrics::Gauge;

/// Outcome of the last attempt to read the TLS files.
pub const TLS_VALID: Gauge = Gauge::new(
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

/// The TLS of the process: always the newest good files. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tls {
    paths: TlsPaths,
    /// Callers must show a certificate of the authorities.
    server: Arc<ArcSwap<rustls::ServerConfig>>,
    /// Shows the same certificate to other services.
    client: ClientTls,
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When a file cannot be read or used; the message names it and never shows its content.
    pub fn load(paths: TlsPaths) -> anyhow::Result<Self> {
        let (server, client) = read(&paths)?;
        Ok(Self {
            paths,
            server: Arc::new(ArcSwap::from_pointee(server)),
            client: ClientTls::new(client),
        })
    }

    /// The newest good configuration for the gRPC server.
    #[must_use]
    pub fn server(&self) -> Arc<rustls::ServerConfig> {
        self.server.load_full()
    }

    /// For channels to other services; follows the files as this does.
    #[must_use]
    pub fn client(&self) -> ClientTls {
        self.client.clone()
    }

    /// Takes up changed files until `stop` is cancelled. Streams that are open keep the certificates they were opened
    /// with; bad files are refused and reported, and the old ones stay in use.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub async fn follow(self, stop: CancellationToken) -> anyhow::Result<()> {
        let paths = [&self.paths.cert, &self.paths.key, &self.paths.ca];
        let mut files = FileWatch::new(paths.into_iter().cloned().collect());
        TLS_VALID.set((), 1.0);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = files.changed() => {}
            }
            match read(&self.paths) {
                Ok((server, client)) => {
                    self.server.store(Arc::new(server));
                    self.client.replace(client);
                    TLS_VALID.set((), 1.0);
                    tracing::info!(cert = %self.paths.cert.display(), "TLS files read again");
                }
                Err(error) => {
                    TLS_VALID.set((), 0.0);
                    let error = format!("{error:#}");
                    tracing::error!(error, "changed TLS files refused, the old ones stay in use");
                }
            }
        }
    }
}

/// Both sides of mutual TLS, with HTTP/2 by ALPN.
fn read(paths: &TlsPaths) -> anyhow::Result<(rustls::ServerConfig, rustls::ClientConfig)> {
    let shown = |path: &std::path::Path| path.display().to_string();
    let content = watchdog_client::tls::read;
    let chain = certificates(&shown(&paths.cert), &content(&paths.cert)?)?;
    let key = private_key(&shown(&paths.key), &content(&paths.key)?)?;
    let roots = Arc::new(authorities(&shown(&paths.ca), &content(&paths.ca)?)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pair = || {
        let (cert, key) = (paths.cert.display(), paths.key.display());
        format!("{cert} and {key} do not go together")
    };
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .with_context(|| paths.ca.display().to_string())?;
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .with_context(pair)?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    let client = client_config(roots, chain, key).with_context(pair)?;
    Ok((server, client))
}
