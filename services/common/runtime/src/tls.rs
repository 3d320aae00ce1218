//! Mutual TLS whose certificates are replaced while the process runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_certificates::{TrustStore, ValidityPeriod};
use watchdog_client::authorities::client_verifier;
pub use watchdog_client::tls::PemFiles;
use watchdog_client::tls::{ClientTls, certificates, client_config, private_key};

use crate::file_watch::FileWatch;
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
    /// The own certificate, and those between it and the authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key of the own certificate.
    pub key: PrivateKeyDer<'static>,
    /// The authorities that the other side must be signed by.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The maker of the own certificate.
    pub source: CertificateSource,
}

/// The TLS of the process: always the newest credentials. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Callers must show a certificate of the authorities.
    server: Arc<ArcSwap<rustls::ServerConfig>>,
    /// For the admin endpoint: HTTP/1.1, and the probes of the kubelet show no certificate.
    admin: Arc<ArcSwap<rustls::ServerConfig>>,
    /// Shows the same certificate to other services.
    client: ClientTls,
    /// The authorities that callers must be signed by.
    authorities: watch::Sender<Vec<CertificateDer<'static>>>,
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When a file cannot be read or used; the message names it and never shows its content.
    pub fn load(paths: &PemFiles) -> anyhow::Result<Self> {
        let tls = Self::without_certificate()?;
        tls.read(paths)?;
        Ok(tls)
    }

    /// For a process that gets its certificate later: until then every handshake fails, as a server and as a client.
    ///
    /// # Errors
    /// When the cryptography cannot be set up.
    pub fn without_certificate() -> anyhow::Result<Self> {
        let server = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificate));
        let client = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        Ok(Self {
            server: Arc::new(ArcSwap::from_pointee(server.clone())),
            admin: Arc::new(ArcSwap::from_pointee(server)),
            client: ClientTls::new(client),
            authorities: watch::Sender::new(Vec::new()),
        })
    }

    /// Handshakes from now on use these credentials. Streams that are open keep those they were opened with.
    ///
    /// # Errors
    /// When they do not go together; the old ones remain in use.
    pub fn replace(&self, credentials: TlsCredentials) -> anyhow::Result<()> {
        let TlsCredentials {
            chain,
            key,
            authorities,
            source,
        } = credentials;
        let end = |certificate: &CertificateDer<'_>| {
            ValidityPeriod::of(certificate).map(|validity| validity.not_after)
        };
        let ends = [
            (CertificateUse::Own, chain.first().and_then(end)),
            (
                CertificateUse::Authority,
                authorities.iter().filter_map(end).max(),
            ),
        ];
        let unpaired = "the private key does not belong to the certificate";
        let server = |verifier, protocol: &[u8]| -> anyhow::Result<rustls::ServerConfig> {
            let mut config = rustls::ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()?
                .with_client_cert_verifier(verifier)
                .with_single_cert(chain.clone(), key.clone_key())
                .context(unpaired)?;
            config.alpn_protocols = vec![protocol.to_vec()];
            // A client that resumes a session shows no certificate, so an expired one would still count.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            Ok(config)
        };
        let (now, unusable) = (UnixTime::now(), "an authority cannot be used");
        let required = client_verifier(&authorities, now, true).context(unusable)?;
        let optional = client_verifier(&authorities, now, false).context(unusable)?;
        let (grpc, admin) = (server(required, b"h2")?, server(optional, b"http/1.1")?);
        // Those that cannot be read were refused above.
        let (trusted, _) = TrustStore::new(authorities.iter().cloned());
        let client = client_config(trusted, chain.clone(), key.clone_key()).context(unpaired)?;
        self.server.store(Arc::new(grpc));
        self.admin.store(Arc::new(admin));
        self.client.replace(client);
        self.authorities.send_replace(authorities);
        for (certificate, end) in ends {
            // A certificate whose end cannot be read has none: the metric would page people for it.
            let seconds = end.map_or(f64::INFINITY, |end| end.as_duration().as_secs_f64());
            CERTIFICATE_EXPIRY.set((certificate, source), seconds);
        }
        Ok(())
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

    /// Waits until the certificate of a caller, the first one that it showed, would not be accepted any more:
    /// it ends, or the authority of it does or is not trusted any more.
    pub(crate) async fn distrusted(&self, shown: &[CertificateDer<'static>]) {
        let mut authorities = self.authorities.subscribe();
        loop {
            let Some(left) = trusted_for(shown, &authorities.borrow_and_update(), UnixTime::now()) else {
                return;
            };
            tokio::select! {
                changed = authorities.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(left.min(LONGEST_TRUST)) => {}
            }
        }
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
        let mut files = FileWatch::new(vec![paths.cert.clone(), paths.key.clone(), paths.ca.clone()]);
        TLS_VALID.set((), 1.0);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = files.changed() => {}
            }
            match self.read(&paths) {
                Ok(()) => {
                    TLS_VALID.set((), 1.0);
                    tracing::info!(cert = %paths.cert.display(), "changed TLS files read");
                }
                Err(error) => {
                    TLS_VALID.set((), 0.0);
                    let error = format!("{error:#}");
                    tracing::error!(error, "changed TLS files refused; the old ones remain in use");
                }
            }
        }
    }

    fn read(&self, paths: &PemFiles) -> anyhow::Result<()> {
        let shown = |path: &std::path::Path| path.display().to_string();
        let content = watchdog_client::tls::read;
        let credentials = TlsCredentials {
            chain: certificates(&shown(&paths.cert), &content(&paths.cert)?)?,
            key: private_key(&shown(&paths.key), &content(&paths.key)?)?,
            authorities: certificates(&shown(&paths.ca), &content(&paths.ca)?)?,
            source: CertificateSource::Files,
        };
        let files = || {
            let [cert, key, ca] = [&paths.cert, &paths.key, &paths.ca].map(|path| path.display());
            format!("{cert}, {key} and {ca}")
        };
        self.replace(credentials).with_context(files)
    }
}

/// How long the certificates that a caller showed are accepted, by the authority that ends last; none if they are not.
fn trusted_for(
    shown: &[CertificateDer<'static>],
    authorities: &[CertificateDer<'static>],
    now: UnixTime,
) -> Option<Duration> {
    let (own, between) = shown.split_first()?;
    let seconds_left = |certificate: &CertificateDer<'_>| {
        let end = ValidityPeriod::of(certificate).map_or(i64::MAX, |validity| validity.not_after.as_second());
        u64::try_from(end)
            .unwrap_or_default()
            .saturating_sub(now.as_secs())
    };
    let accepts = |authority: &CertificateDer<'static>| {
        let verifier = client_verifier(std::slice::from_ref(authority), now, true);
        verifier.is_ok_and(|verifier| verifier.verify_client_cert(own, between, now).is_ok())
    };
    let authority = authorities
        .iter()
        .filter(|authority| accepts(authority))
        .map(seconds_left)
        .max()?;
    let left = shown.iter().map(seconds_left).fold(authority, u64::min);
    // The last second counts.
    Some(Duration::from_secs(left.saturating_add(1)))
}

/// Shows no certificate to anybody.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};

    use super::*;

    /// The start of these years in seconds since 1970.
    const Y2030: u64 = 1_893_456_000;
    const Y2040: u64 = 2_208_988_800;

    fn authority(last_year: i32) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = date_time_ymd(last_year, 1, 1);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn a_caller_is_trusted_until_its_certificate_or_its_authority_ends() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        for (authority_year, own_year, end) in [(2040, 2030, Y2030), (2030, 2040, Y2030), (2040, 2040, Y2040)]
        {
            let (ours, other) = (authority(authority_year), authority(2050));
            let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
            params.not_after = date_time_ymd(own_year, 1, 1);
            let own = params.signed_by(&KeyPair::generate().unwrap(), &ours).unwrap();
            let shown = [own.der().clone()];
            let (ours, other) = (ours.der().clone(), other.der().clone());
            let both = [ours, other.clone()];
            let left = |now| trusted_for(&shown, &both, at(now));
            assert_eq!(
                left(end - 10),
                Some(Duration::from_secs(11)),
                "{authority_year} {own_year}"
            );
            assert_eq!(left(end + 1), None, "{authority_year} {own_year}");
            assert_eq!(
                trusted_for(&shown, &[other], at(end - 10)),
                None,
                "it was replaced"
            );
            assert_eq!(trusted_for(&[], &both, at(end - 10)), None);
        }
    }
}
