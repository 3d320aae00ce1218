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
    /// For the admin endpoint: HTTP/1.1, and the probes of the kubelet show no certificate.
    admin: Arc<ArcSwap<rustls::ServerConfig>>,
    /// Shows the same certificate to other services.
    client: ClientTls,
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When a file cannot be read or used; the message names it and never shows its content.
    pub fn load(paths: TlsPaths) -> anyhow::Result<Self> {
        let read = read(&paths)?;
        Ok(Self {
            paths,
            server: Arc::new(ArcSwap::from_pointee(read.server)),
            admin: Arc::new(ArcSwap::from_pointee(read.admin)),
            client: ClientTls::new(read.client),
        })
    }

    /// The newest good configuration for the gRPC server.
    #[must_use]
    pub fn server(&self) -> Arc<rustls::ServerConfig> {
        self.server.load_full()
    }

    /// The newest good configuration for the admin endpoint. A certificate that a caller shows is checked, and none is
    /// no error.
    #[must_use]
    pub fn admin(&self) -> Arc<rustls::ServerConfig> {
        self.admin.load_full()
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
                Ok(read) => {
                    self.server.store(Arc::new(read.server));
                    self.admin.store(Arc::new(read.admin));
                    self.client.replace(read.client);
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

/// The configurations that are made of the files.
struct TlsConfigs {
    server: rustls::ServerConfig,
    admin: rustls::ServerConfig,
    client: rustls::ClientConfig,
}

/// Both sides of mutual TLS, with HTTP/2 by ALPN, and the admin endpoint.
fn read(paths: &TlsPaths) -> anyhow::Result<TlsConfigs> {
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
    let verifier = || WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let server = |verifier, protocol: &[u8]| -> anyhow::Result<rustls::ServerConfig> {
        let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .with_context(pair)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    };
    let ca = || paths.ca.display().to_string();
    let required = verifier().build().with_context(ca)?;
    let optional = verifier().allow_unauthenticated().build().with_context(ca)?;
    Ok(TlsConfigs {
        server: server(required, b"h2")?,
        admin: server(optional, b"http/1.1")?,
        client: client_config(roots.clone(), chain.clone(), key.clone_key()).with_context(pair)?,
    })
}
