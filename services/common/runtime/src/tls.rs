//! Mutual TLS whose certificates are replaced while the process runs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use watchdog_certificates::{CallerVerifier, TrustStore, ValidityPeriod, certified_key, provider};
pub use watchdog_client::tls::PemFiles;
use watchdog_client::tls::{ClientTls, certificates, client_config, private_key, read};

use crate::allowed_clients::AllowedClients;
use crate::caller_quota::Caller;
use crate::file_watch;
use crate::label;
use crate::metrics::Gauge;

label!(pub(crate) enum CertificateUse: "certificate" { Own = "own", Authority = "authority" });

label! {
    /// The maker of the own certificate.
    pub enum CertificateSource: "source" {
        /// Somebody else, who renews it too.
        Files = "files",
        /// This process.
        Issued = "issued",
    }
}

/// A caller has this time for the TLS handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why an open connection ends when [`CallerCertificates::distrusted`] says so.
pub(crate) const DISTRUSTED: &str =
    "its certificate or certificate authority has expired or is no longer trusted";

/// An open connection is judged again after this time at the latest: the clock of the host may be set.
const LONGEST_TRUST: Duration = Duration::from_secs(10 * 60);

/// Outcome of the last attempt to read the TLS files.
pub const TLS_VALID: Gauge = Gauge::new(
    "watchdog_tls_files_valid",
    "1 if the current TLS files are valid, 0 if changed files were rejected and the previous ones are in use.",
);

/// When the certificates in use end.
pub(crate) const CERTIFICATE_EXPIRY: Gauge<(CertificateUse, CertificateSource)> = Gauge::new(
    "watchdog_certificate_expiry_timestamp_seconds",
    "When the certificate in use ends, in seconds since 1970, by certificate (own; authority: the one that ends last) \
     and source (files; issued: by this process, which replaces it every 8 h).",
);

/// The certificate that one side of mutual TLS shows, and the authorities that it trusts.
pub struct TlsCredentials {
    /// The own certificate, those between it and the authority, and its private key.
    pub own: CertifiedKey,
    /// The authorities that the other side must be signed by.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The maker of the own certificate.
    pub source: CertificateSource,
}

/// The TLS of the process: always the newest credentials. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// None until there is a certificate.
    server: watch::Sender<Option<ServerTls>>,
    /// Shows the same certificate to other services.
    client: ClientTls,
    allowed: AllowedClients,
}

/// The certificates that a caller showed in its handshake, its own one first, and what goes on judging them.
#[derive(Debug)]
pub(crate) struct CallerCertificates {
    shown: Vec<CertificateDer<'static>>,
    server: watch::Receiver<Option<ServerTls>>,
}

/// The server's side.
#[derive(Debug)]
struct ServerTls {
    /// Callers must show a certificate.
    grpc: Arc<rustls::ServerConfig>,
    /// HTTP/1.1, and the probes of the kubelet show no certificate.
    admin: Arc<rustls::ServerConfig>,
    /// The authorities that callers must be signed by.
    trusted: Arc<TrustStore>,
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When a file cannot be read or used; the message names it and never shows its content.
    pub fn load(paths: &PemFiles) -> anyhow::Result<Self> {
        let tls = Self::default();
        tls.read(paths)?;
        Ok(tls)
    }

    /// For a process that gets its certificate later: until then it refuses every caller, and its calls wait.
    #[must_use]
    pub fn without_certificate() -> Self {
        Self::default()
    }

    /// The same with these callers; at first, none is allowed.
    #[must_use]
    pub fn allowing(self, allowed: AllowedClients) -> Self {
        Self { allowed, ..self }
    }

    /// Handshakes from now on use these credentials. Streams that are open keep those they were opened with.
    ///
    /// # Errors
    /// When an authority cannot be used; the old ones remain in use.
    pub fn replace(&self, credentials: TlsCredentials) -> anyhow::Result<()> {
        let (own, authorities) = (credentials.own, credentials.authorities);
        let resolver = Arc::new(SingleCertAndKey::from(own.clone()));
        let (trusted, unreadable) = TrustStore::new(authorities.iter().cloned());
        ensure!(
            unreadable == 0,
            "an authority cannot be used: it cannot be read, or has malformed or repeated parts"
        );
        let now = i64::try_from(UnixTime::now().as_secs())?;
        let end = |certificate: &CertificateDer<'_>| {
            ValidityPeriod::of(certificate).map(|validity| validity.not_after)
        };
        let last_end = authorities.iter().filter_map(end).max();
        ensure!(
            last_end.is_some_and(|end| now <= end.as_second()),
            "all authorities have expired"
        );
        let trusted = Arc::new(trusted);
        let server = |is_mandatory, protocol: &[u8]| -> anyhow::Result<_> {
            let verifier = CallerVerifier {
                trusted: trusted.clone(),
                is_mandatory,
            };
            let mut config = rustls::ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()?
                .with_client_cert_verifier(Arc::new(verifier))
                .with_cert_resolver(resolver.clone());
            config.alpn_protocols = vec![protocol.to_vec()];
            // A client that resumes a session shows no certificate, so an expired one would still count.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            Ok(Arc::new(config))
        };
        let (grpc, admin) = (server(true, b"h2")?, server(false, b"http/1.1")?);
        let own_end = own.cert.first().and_then(end);
        self.client.replace(client_config(trusted.clone(), own)?);
        self.server.send_replace(Some(ServerTls { grpc, admin, trusted }));
        for (certificate, end) in [
            (CertificateUse::Own, own_end),
            (CertificateUse::Authority, last_end),
        ] {
            // A certificate whose end cannot be read has none: the metric would page people for it.
            let seconds = end.map_or(f64::INFINITY, |end| end.as_duration().as_secs_f64());
            CERTIFICATE_EXPIRY.set((certificate, credentials.source), seconds);
        }
        Ok(())
    }

    /// The newest good configuration for the gRPC server; none while there is no certificate.
    #[must_use]
    pub fn server(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.server.borrow().as_ref().map(|server| server.grpc.clone())
    }

    /// The newest good configuration for the admin endpoint; none while there is no certificate. A certificate that a
    /// caller shows is checked, and none is no error.
    #[must_use]
    pub fn admin(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.server.borrow().as_ref().map(|server| server.admin.clone())
    }

    /// Shakes hands with a caller, as a server with this configuration: [`Tls::server`] or [`Tls::admin`]. Also returns
    /// the identity of the caller, or why it must not call.
    ///
    /// # Errors
    /// When there is no configuration yet, the handshake fails, or it has not ended by the deadline.
    pub(crate) async fn accept(
        &self,
        config: Option<Arc<rustls::ServerConfig>>,
        tcp: TcpStream,
        deadline: Instant,
    ) -> io::Result<(TlsStream<TcpStream>, Result<Caller, String>, CallerCertificates)> {
        let config = config.ok_or_else(|| io::Error::other("this program has no certificate yet"))?;
        let accepted = timeout_at(deadline, TlsAcceptor::from(config).accept(tcp)).await;
        let stream = accepted.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took longer than 3 s")
        })??;
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificates = CallerCertificates {
            shown: shown.iter().map(|shown| shown.clone().into_owned()).collect(),
            server: self.server.subscribe(),
        };
        let caller = self.allowed.check(certificates.shown.first());
        Ok((stream, caller, certificates))
    }

    /// For channels to other services; has the newest credentials as this does.
    #[must_use]
    pub fn client(&self) -> ClientTls {
        self.client.clone()
    }

    /// Takes up changed files until `stop` is cancelled; bad files are refused and reported.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub async fn follow_files(self, paths: PemFiles, stop: CancellationToken) -> anyhow::Result<()> {
        let files = [paths.cert.clone(), paths.key.clone(), paths.ca.clone()];
        let take_up = || {
            self.read(&paths)?;
            tracing::info!(cert = %paths.cert.display(), "TLS files read");
            Ok(())
        };
        file_watch::follow(&files, &TLS_VALID, &stop, take_up).await;
        Ok(())
    }

    fn read(&self, paths: &PemFiles) -> anyhow::Result<()> {
        let [cert, key, ca] = [&paths.cert, &paths.key, &paths.ca].map(|path| path.display().to_string());
        let chain = certificates(&cert, &read(&paths.cert)?)?;
        let private = private_key(&key, &read(&paths.key)?)?;
        let credentials = TlsCredentials {
            own: certified_key(chain, private, [&cert, &key])?,
            authorities: certificates(&ca, &read(&paths.ca)?)?,
            source: CertificateSource::Files,
        };
        self.replace(credentials).context(ca)
    }
}

// === impl CallerCertificates ===

impl CallerCertificates {
    /// Waits until they would not be accepted any more: one of them ends, or the authority of the last one does or is
    /// not trusted any more. Of a caller that showed none, nothing was trusted.
    pub(crate) async fn distrusted(mut self) {
        if self.shown.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let left = self
                .server
                .borrow_and_update()
                .as_ref()
                .and_then(|server| server.trusted.judge_caller(&self.shown, UnixTime::now()).ok());
            let Some(left) = left else { return };
            tokio::select! {
                changed = self.server.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(left.min(LONGEST_TRUST)) => {}
            }
        }
    }
}
