//! The certificate authority that all programs of a seed share, in a Secret, and the certificate that this process
//! issues for itself from it. The rules are those of [`watchdog_certificates`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_certificates::{Authorities, ClientPem};
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::failure::{Failure, Reason};
use watchdog_runtime::readiness::{Blocker, Readiness};
use watchdog_runtime::tls::{CertificateSource, Tls, TlsCredentials};

use crate::client::{RequestError, found, request};

/// The Secret is read this often: one small request a minute and process, and nothing that can be half open.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The longest pause before another try while there is no certificate: the process waits for it with all that it does.
const LONGEST_FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Writes of one turn at most. Each is refused only because another replica was faster.
const MAX_WRITES: usize = 5;

/// Name of the blocker, and of the loop in the metric of failed tries.
const NAME: &str = "certificate";

/// Name of the certificate for people, in the metric of failed tries.
const OBSERVER: &str = "observer-certificate";

/// Why a turn failed.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    /// The Secret could not be read or written.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Nobody but the chart creates it.
    #[error("the Secret {0} does not exist; install the chart again, which creates it")]
    Missing(String),
    #[error(
        "the Secret was changed by others at each of {} tries to renew the authority",
        MAX_WRITES
    )]
    Overtaken,
    /// The authority in the Secret cannot be used, or no certificate can be issued from it.
    #[error("{0:#}")]
    Certificate(#[from] anyhow::Error),
}

impl TurnError {
    fn failure(&self) -> Failure {
        match self {
            Self::Request(error) => error.failure(),
            Self::Missing(_) => Failure::new(Reason::NotFound, &self.to_string()),
            Self::Overtaken | Self::Certificate(_) => Failure::new(Reason::Certificate, &self.to_string()),
        }
    }
}

/// The Secret with the certificate of people who look, beside that of the authority.
pub struct ObserverSecret {
    /// Its name.
    pub secret: String,
    /// DNS name in the certificate.
    pub name: String,
}

/// Keeps a certificate in use that the authority in a Secret has issued.
pub struct CertificateIssuer {
    client: kube::Client,
    namespace: String,
    secret: String,
    /// DNS names of the certificate.
    names: Vec<String>,
    /// Gets the certificates.
    tls: Tls,
    /// Blocked until the first certificate is issued.
    readiness: Readiness,
    /// Becomes true when the first certificate is issued.
    pub has_certificate: watch::Sender<bool>,
    /// Where to keep a certificate for people, if anywhere.
    pub observer: Option<ObserverSecret>,
    /// The time of day of this process.
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// The pause between two reads of the Secret.
    pub look_every: Duration,
}

/// The authorities that the process knows. They change only once a certificate was issued from the new ones.
#[derive(Default)]
struct KnownAuthorities {
    authorities: Authorities,
    /// When the certificate in use needs no replacement; none before the first one.
    certificate_in_use: Option<Range<Timestamp>>,
}

impl KnownAuthorities {
    fn need_certificate(&self, now: Timestamp) -> bool {
        let in_use = self.certificate_in_use.as_ref();
        in_use.is_none_or(|in_use| !in_use.contains(&now))
    }
}

impl CertificateIssuer {
    /// For the Secret `secret`, read at the pace of production.
    #[must_use]
    pub fn new(
        client: kube::Client,
        namespace: &str,
        secret: &str,
        names: Vec<String>,
        tls: Tls,
        readiness: Readiness,
    ) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            names,
            tls,
            readiness,
            has_certificate: watch::Sender::new(false),
            observer: None,
            clock: Box::new(Timestamp::now),
            look_every: LOOK_EVERY,
        }
    }

    /// Makes the authority if the Secret is empty, follows it, and replaces the certificate in time, until `stop` is
    /// cancelled. Once the authority is known, an API server that does not answer changes nothing. From this call on it
    /// blocks readiness until the first certificate is issued.
    ///
    /// # Errors
    /// Never; the type is that of a critical task.
    pub fn run(self, stop: CancellationToken) -> impl Future<Output = anyhow::Result<()>> {
        let why = format!(
            "no certificate has been issued yet, from the Secret {}/{}",
            self.namespace, self.secret
        );
        let blocker = self.readiness.block(NAME, why);
        self.keep_issuing(blocker, stop)
    }

    async fn keep_issuing(self, blocker: Blocker, stop: CancellationToken) -> anyhow::Result<()> {
        let mut blocker = Some(blocker);
        let mut known = KnownAuthorities::default();
        let mut backoff = Backoff::new(Duration::from_secs(1), self.look_every);
        loop {
            let turn = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                turn = self.turn(&mut known) => turn,
            };
            if known.certificate_in_use.is_some() {
                blocker = None;
                self.has_certificate.send_replace(true);
            }
            let pause = match turn {
                Ok(()) => {
                    self.readiness.recovered(NAME);
                    backoff.reset();
                    self.look_every
                }
                Err(error) => {
                    self.report(NAME, &self.secret, &error, blocker.is_some());
                    pause(&mut backoff, blocker.is_some())
                }
            };
            if let Some(observer) = &self.observer {
                let kept = tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    kept = self.keep_observer(observer, &known.authorities) => kept,
                };
                match kept {
                    Ok(()) => self.readiness.recovered(OBSERVER),
                    Err(error) => self.report(OBSERVER, &observer.secret, &error, false),
                }
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reads the Secret, renews the authority if it is due, and issues a certificate if it is due, even when the Secret
    /// cannot be read, written or used.
    async fn turn(&self, known: &mut KnownAuthorities) -> Result<(), TurnError> {
        let now = (self.clock)();
        let (read, outcome) = match self.read(now).await {
            Ok(read) => read,
            Err(error) => (Authorities::default(), Err(error)),
        };
        let mut used = Ok(());
        if !read.is_empty() && read != known.authorities {
            match self.issue(&read, now).with_context(|| self.unusable()) {
                Ok(in_use) => {
                    known.authorities = read;
                    known.certificate_in_use = Some(in_use);
                }
                Err(error) => used = Err(error.into()),
            }
        }
        if known.need_certificate(now) && !known.authorities.is_empty() {
            known.certificate_in_use = Some(self.issue(&known.authorities, now)?);
        }
        used.and(outcome)
    }

    /// Replaces the certificate for people if it is due. The replicas do that side by side, and the first one wins.
    async fn keep_observer(
        &self,
        observer: &ObserverSecret,
        authorities: &Authorities,
    ) -> Result<(), TurnError> {
        if authorities.is_empty() {
            return Ok(());
        }
        let now = (self.clock)();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = found(&observer.secret, request(secrets.get(&observer.secret)).await)?;
        let missing = || TurnError::Missing(format!("{}/{}", self.namespace, observer.secret));
        let mut secret = secret.ok_or_else(missing)?;
        let part = |name: &str| data_of(&secret, name);
        let client = ClientPem {
            ca: part("ca.crt"),
            certificate: part("tls.crt"),
            key: part("tls.key"),
        };
        if authorities.is_client_current(&client, &observer.name, now) {
            return Ok(());
        }
        let (certificate, key) = authorities.issue_for_client(&observer.name, now)?.to_pem();
        let data = [
            ("ca.crt", authorities.trusted_pem(now)),
            ("tls.crt", certificate),
            ("tls.key", key),
        ];
        let data = data.map(|(name, pem)| (name.to_owned(), ByteString(pem.into_bytes())));
        secret.data = Some(BTreeMap::from(data));
        let params = PostParams::default();
        match request(secrets.replace(&observer.secret, &params, &secret)).await {
            Err(error) if !error.is_conflict() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns the authorities in the Secret, renewed if that was due, and the error if they could not be renewed.
    async fn read(&self, now: Timestamp) -> Result<(Authorities, Result<(), TurnError>), TurnError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut authorities = Authorities::default();
        for _ in 0..MAX_WRITES {
            let secret = found(&self.secret, request(secrets.get(&self.secret)).await)?;
            let missing = || TurnError::Missing(format!("{}/{}", self.namespace, self.secret));
            let secret = secret.ok_or_else(missing)?;
            authorities = self.parse(&secret)?;
            let Some(renewed) = authorities.renewed(now)? else {
                return Ok((authorities, Ok(())));
            };
            match self.write(&secrets, secret, &renewed).await {
                Ok(()) => {
                    tracing::info!(
                        namespace = self.namespace,
                        secret = self.secret,
                        authorities = renewed.len(),
                        "certificate authority written"
                    );
                    return Ok((renewed, Ok(())));
                }
                Err(error) if error.is_conflict() => {}
                // The authorities that were read are good for months.
                Err(error) => return Ok((authorities, Err(error.into()))),
            }
        }
        Ok((authorities, Err(TurnError::Overtaken)))
    }

    fn parse(&self, secret: &Secret) -> anyhow::Result<Authorities> {
        Authorities::from_pem(data_of(secret, "ca.crt"), data_of(secret, "ca.key"))
            .with_context(|| self.unusable())
    }

    fn unusable(&self) -> String {
        format!(
            "the Secret {}/{} cannot be used; correct it, or remove its data to have a new authority made",
            self.namespace, self.secret
        )
    }

    /// Replaces exactly this version of the Secret.
    async fn write(
        &self,
        secrets: &Api<Secret>,
        mut secret: Secret,
        authorities: &Authorities,
    ) -> Result<(), RequestError> {
        let (certificates, keys) = authorities.to_pem();
        let data = [("ca.crt", certificates), ("ca.key", keys)];
        let data = data.map(|(name, pem)| (name.to_owned(), ByteString(pem.into_bytes())));
        secret.data.get_or_insert_default().extend(BTreeMap::from(data));
        request(secrets.replace(&self.secret, &PostParams::default(), &secret)).await?;
        Ok(())
    }

    /// Puts a new certificate into use and returns the time in which it needs no replacement.
    fn issue(&self, authorities: &Authorities, now: Timestamp) -> anyhow::Result<Range<Timestamp>> {
        let issued = authorities.issue(&self.names, now)?;
        self.tls.replace(TlsCredentials {
            chain: vec![issued.certificate],
            key: issued.key,
            authorities: authorities.trusted(now).cloned().collect(),
            source: CertificateSource::Issued,
        })?;
        tracing::info!(
            names = self.names.join(", "),
            until = %issued.validity.not_after,
            "certificate issued"
        );
        Ok(issued.in_use)
    }

    fn report(&self, name: &'static str, secret: &str, error: &TurnError, blocks: bool) {
        let failure = error.failure();
        let reason = failure.reason.as_str();
        tracing::warn!(
            namespace = self.namespace,
            secret,
            reason,
            blocks,
            %error,
            "cannot follow a Secret with certificates; trying again"
        );
        self.readiness.failing(name, failure);
    }
}

/// A part of a Secret; empty if it is absent.
fn data_of<'a>(secret: &'a Secret, name: &str) -> &'a [u8] {
    let data = secret.data.as_ref().and_then(|data| data.get(name));
    data.map_or(&[][..], |bytes| &bytes.0)
}

/// The pause after an error. `waits`: the process waits for its first certificate.
fn pause(backoff: &mut Backoff, waits: bool) -> Duration {
    let pause = backoff.next_delay();
    if waits {
        pause.min(LONGEST_FIRST_PAUSE)
    } else {
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_certificate_is_not_kept_waiting_after_an_outage() {
        for (waits, bound) in [(true, LONGEST_FIRST_PAUSE), (false, LOOK_EVERY)] {
            let mut backoff = Backoff::new(Duration::from_secs(1), LOOK_EVERY);
            let longest = (0..20).map(|_| pause(&mut backoff, waits)).max().unwrap();
            assert!(longest > bound / 2 && longest <= bound, "{longest:?}");
        }
    }
}
