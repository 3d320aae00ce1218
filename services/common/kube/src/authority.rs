//! The certificate authority that all programs of a seed share, in a Secret, and the certificate that this process
//! issues for itself from it. The rules are those of [`watchdog_certificates`].

use std::ops::Range;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_certificates::{Authorities, ClientPem, certified_key};
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::failure::{Failure, Reason, chain};
use watchdog_runtime::readiness::{Blocker, Readiness};
use watchdog_runtime::tls::{CertificateSource, Tls, TlsCredentials};

use crate::client::{found, request};

/// The Secret is read this often: one small request a minute and process, and nothing that can be half open.
pub const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The longest pause before another try while there is no certificate: the process waits for it with all that it does.
const LONGEST_FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Writes of one turn at most. Each is refused only because another replica was faster.
const MAX_WRITES: usize = 5;

/// Name of the blocker, and of the loop in the metric of failed tries.
const NAME: &str = "certificate";

/// Name of the certificate for people, in the metric of failed tries.
const OBSERVER: &str = "observer-certificate";

/// The Secret with the certificate of people who look, beside that of the authority.
pub struct ObserverSecret {
    /// Its name.
    pub secret: String,
    /// DNS name in the certificate.
    pub name: String,
}

/// Keeps a certificate in use that the authority in a Secret has issued.
pub struct CertificateIssuer {
    /// For the seed.
    pub client: kube::Client,
    /// Where the Secrets are.
    pub namespace: String,
    /// The Secret of the authority.
    pub secret: String,
    /// DNS names of the certificate.
    pub names: Vec<String>,
    /// Gets the certificates.
    pub tls: Tls,
    /// Blocked until the first certificate is issued.
    pub readiness: Readiness,
    /// Becomes true when the first certificate is issued.
    pub has_certificate: watch::Sender<bool>,
    /// Where to keep a certificate for people, if anywhere.
    pub observer: Option<ObserverSecret>,
    /// The time of day of this process.
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// The pause between two reads of the Secret, [`LOOK_EVERY`] but in tests.
    pub look_every: Duration,
}

/// The authorities that the process knows. They change only once a certificate was issued from the new ones.
#[derive(Default)]
struct KnownAuthorities {
    authorities: Authorities,
    /// When the certificate in use needs no replacement; none before the first one.
    certificate_in_use: Option<Range<Timestamp>>,
}

impl CertificateIssuer {
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
        async move {
            stop.run_until_cancelled(self.keep_issuing(blocker)).await;
            Ok(())
        }
    }

    /// Never ends.
    async fn keep_issuing(&self, blocker: Blocker) {
        let mut blocker = Some(blocker);
        let mut known = KnownAuthorities::default();
        let mut backoff = Backoff::new(Duration::from_secs(1), self.look_every);
        loop {
            let turn = self.turn(&mut known).await;
            if known.certificate_in_use.is_some() {
                blocker = None;
                self.has_certificate.send_replace(true);
            }
            let waits = blocker.is_some();
            let pause = if turn.is_ok() {
                backoff.reset();
                self.look_every
            } else {
                pause(&mut backoff, waits)
            };
            self.report(NAME, &self.secret, turn, waits);
            if let Some(observer) = &self.observer {
                let kept = self.keep_observer(observer, &known.authorities).await;
                self.report(OBSERVER, &observer.secret, kept, false);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Reads the Secret, renews the authority if it is due, and issues a certificate if it is due, even when the Secret
    /// cannot be read, written or used.
    async fn turn(&self, known: &mut KnownAuthorities) -> Result<(), Failure> {
        let now = (self.clock)();
        let read = self.read(now).await;
        let (read, outcome) = read.unwrap_or_else(|failure| (Authorities::default(), Err(failure)));
        let mut used = Ok(());
        if !read.is_empty() && read != known.authorities {
            match self.issue(&read, now) {
                Ok(in_use) => {
                    known.authorities = read;
                    known.certificate_in_use = Some(in_use);
                }
                Err(error) => used = Err(self.unusable(error)),
            }
        }
        let in_use = known.certificate_in_use.as_ref();
        if !in_use.is_some_and(|in_use| in_use.contains(&now)) && !known.authorities.is_empty() {
            let in_use = self.issue(&known.authorities, now);
            known.certificate_in_use = Some(in_use.map_err(|error| refused(&error))?);
        }
        used.and(outcome)
    }

    /// Replaces the certificate for people if it is due. The replicas do that side by side, and the first one wins.
    async fn keep_observer(
        &self,
        observer: &ObserverSecret,
        authorities: &Authorities,
    ) -> Result<(), Failure> {
        if authorities.is_empty() {
            return Ok(());
        }
        let now = (self.clock)();
        let secret = self.get(&observer.secret).await?;
        let client = ClientPem {
            ca: data_of(&secret, "ca.crt"),
            certificate: data_of(&secret, "tls.crt"),
            key: data_of(&secret, "tls.key"),
        };
        if authorities.is_client_current(&client, &observer.name, now) {
            return Ok(());
        }
        let issued = authorities.issue_for_client(&observer.name, now);
        let (certificate, key) = issued.map_err(|error| refused(&error))?.to_pem();
        let data = [
            ("ca.crt", authorities.trusted_pem(now)),
            ("tls.crt", certificate),
            ("tls.key", key),
        ];
        self.replace(&observer.secret, secret, data).await.map(drop)
    }

    /// Returns the authorities in the Secret, renewed if that was due, and the error if they could not be renewed.
    async fn read(&self, now: Timestamp) -> Result<(Authorities, Result<(), Failure>), Failure> {
        let mut authorities = Authorities::default();
        for _ in 0..MAX_WRITES {
            let secret = self.get(&self.secret).await?;
            authorities = Authorities::from_pem(data_of(&secret, "ca.crt"), data_of(&secret, "ca.key"))
                .map_err(|error| self.unusable(error))?;
            let renewed = authorities.renewed(now);
            let Some(renewed) = renewed.map_err(|error| refused(&error))? else {
                return Ok((authorities, Ok(())));
            };
            let (certificates, keys) = renewed.to_pem();
            let data = [("ca.crt", certificates), ("ca.key", keys)];
            match self.replace(&self.secret, secret, data).await {
                Ok(true) => {
                    tracing::info!(
                        namespace = self.namespace,
                        secret = self.secret,
                        authorities = renewed.len(),
                        "certificate authority written"
                    );
                    return Ok((renewed, Ok(())));
                }
                Ok(false) => {}
                // The authorities that were read are good for months.
                Err(failure) => return Ok((authorities, Err(failure))),
            }
        }
        let overtaken =
            format!("the Secret was changed by others at each of {MAX_WRITES} tries to renew the authority");
        Ok((authorities, Err(Failure::new(Reason::Certificate, &overtaken))))
    }

    async fn get(&self, name: &str) -> Result<Secret, Failure> {
        let secret = found(name, request(self.secrets().get(name)).await);
        let secret = secret.map_err(|error| error.failure())?;
        // Nobody but the chart creates it.
        secret.ok_or_else(|| {
            let text = format!(
                "the Secret {}/{name} does not exist; install the chart again, which creates it",
                self.namespace
            );
            Failure::new(Reason::NotFound, &text)
        })
    }

    /// Replaces exactly this version of a Secret by one with these parts. Returns false if there is another version.
    async fn replace<const PARTS: usize>(
        &self,
        name: &str,
        mut secret: Secret,
        parts: [(&str, String); PARTS],
    ) -> Result<bool, Failure> {
        let parts = parts.map(|(part, pem)| (part.to_owned(), ByteString(pem.into_bytes())));
        secret.data.get_or_insert_default().extend(parts);
        match request(self.secrets().replace(name, &PostParams::default(), &secret)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error.failure()),
        }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn unusable(&self, error: anyhow::Error) -> Failure {
        refused(&error.context(format!(
            "the Secret {}/{} cannot be used; correct it, or remove its data to have a new authority made",
            self.namespace, self.secret
        )))
    }

    /// Puts a new certificate into use and returns the time in which it needs no replacement.
    fn issue(&self, authorities: &Authorities, now: Timestamp) -> anyhow::Result<Range<Timestamp>> {
        let issued = authorities.issue(&self.names, now)?;
        self.tls.replace(TlsCredentials {
            own: certified_key(
                vec![issued.certificate],
                issued.key,
                ["the new certificate", "its key"],
            )?,
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

    fn report(&self, name: &'static str, secret: &str, outcome: Result<(), Failure>, blocks: bool) {
        let Err(failure) = outcome else {
            self.readiness.recovered(name);
            return;
        };
        if self.readiness.failing(name, failure.clone()) {
            tracing::warn!(
                namespace = self.namespace,
                secret,
                reason = failure.reason.as_str(),
                blocks,
                error = %failure,
                "cannot follow a Secret with certificates; trying again"
            );
        }
    }
}

/// No certificate can be issued.
fn refused(error: &anyhow::Error) -> Failure {
    Failure::new(Reason::Certificate, &chain(error.as_ref()))
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
