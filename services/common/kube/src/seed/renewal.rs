//! The credentials of requests: they are fetched again before they end, and after the seed has refused them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, StatusCode};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use secrecy::SecretString;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use watchdog_api::kubeconfig::{ClientCertificate, PluginCredentials, bearer, token_of_file};

use super::fields::{of_field, read_file};
use super::transport::{SeedEndpoint, header_of};

/// Credentials are fetched again this long before they end, or half of their life if that is shorter.
const MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// A token file is read again after this time, as client-go reads it.
const TOKEN_FILE_AGE: SignedDuration = SignedDuration::from_mins(1);

/// After a failure, while the old credentials are still good, they are fetched again after this time.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// Where credentials come from.
pub(super) struct CredentialSource {
    /// Blocks while a plugin runs or an issuer is asked.
    fetch: Box<dyn Fn() -> anyhow::Result<PluginCredentials> + Send + Sync>,
    /// They are fetched again after this time at the latest.
    longest_use: SignedDuration,
}

/// The parts from which a client is made again.
struct RenewedClient {
    endpoint: SeedEndpoint,
    /// Where the source gives none.
    certificate: Option<ClientCertificate>,
    source: CredentialSource,
}

/// The client in use, and what its requests carry.
#[derive(Clone)]
struct CurrentClient {
    client: kube::Client,
    /// True if its certificate was fetched.
    has_fetched_certificate: bool,
    authorization: Option<HeaderValue>,
    /// Counts the credentials, because refusals of older ones say nothing about these.
    number: u64,
    renew_at: Timestamp,
    ends: Option<Timestamp>,
    is_refused: bool,
}

/// A client for this endpoint with credentials of this source. The first ones are fetched before it returns.
pub(super) async fn client(
    endpoint: SeedEndpoint,
    certificate: Option<ClientCertificate>,
    source: CredentialSource,
) -> anyhow::Result<kube::Client> {
    let namespace = endpoint.config.default_namespace.clone();
    let renewal = Arc::new(RenewedClient {
        endpoint,
        certificate,
        source,
    });
    let first = renewal.fetch().await?;
    let first = renewal.taken_up(first, None)?;
    let current = Arc::new(Mutex::new(first));
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (renewal, current) = (renewal.clone(), current.clone());
        async move {
            let used = renewal.up_to_date(&current).await?;
            if let Some(authorization) = used.authorization {
                request.headers_mut().insert(AUTHORIZATION, authorization);
            }
            let response = used.client.send(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                let mut current = current.lock().await;
                current.is_refused |= current.number == used.number;
            }
            Ok::<_, kube::Error>(response)
        }
    });
    Ok(kube::Client::new(service, namespace))
}

// === impl CredentialSource ===

impl CredentialSource {
    /// Credentials that say themselves when they end, if they do.
    pub(super) fn until_they_end(
        fetch: impl Fn() -> anyhow::Result<PluginCredentials> + Send + Sync + 'static,
    ) -> Self {
        Self {
            fetch: Box::new(fetch),
            longest_use: SignedDuration::MAX,
        }
    }
}

/// Credentials that are written down and stay.
pub(super) fn fixed(authorization: Option<SecretString>) -> CredentialSource {
    CredentialSource::until_they_end(move || Ok(credentials(authorization.clone())))
}

/// The token in a file, and the one while the file cannot be read.
pub(super) fn token_file(path: PathBuf, instead: Option<SecretString>) -> CredentialSource {
    let name = format!("the token file {}", path.display());
    let read = move || {
        let content = read_file(&path).with_context(|| format!("{name} cannot be read"))?;
        token_of_file(&content, &name).map_err(of_field)
    };
    let fetch = move || {
        let token = read().or_else(|error| instead.clone().ok_or(error))?;
        Ok(credentials(Some(bearer(&token))))
    };
    CredentialSource {
        fetch: Box::new(fetch),
        longest_use: TOKEN_FILE_AGE,
    }
}

fn credentials(authorization: Option<SecretString>) -> PluginCredentials {
    PluginCredentials {
        authorization,
        ..PluginCredentials::default()
    }
}

// === impl RenewedClient ===

impl RenewedClient {
    /// The client to use now. While its credentials are good, requests go on with them, however long a renewal takes.
    /// Requests wait for new ones, as long as their deadlines allow, only if the old ones are of no use.
    async fn up_to_date(self: Arc<Self>, current: &Arc<Mutex<CurrentClient>>) -> kube::Result<CurrentClient> {
        let mut now = current.lock().await;
        if now.is_refused || now.has_ended() {
            let renewed = self.fetch().await;
            let renewed = renewed.and_then(|fetched| self.taken_up(fetched, Some(&now)));
            *now = renewed.map_err(|error| kube::Error::Service(error.into()))?;
        } else if now.renew_at <= Timestamp::now() {
            // Not a second one beside this one.
            now.renew_at = Timestamp::MAX;
            tokio::spawn(self.renew(Arc::clone(current)));
        }
        Ok(now.clone())
    }

    async fn renew(self: Arc<Self>, current: Arc<Mutex<CurrentClient>>) {
        let fetched = self.fetch().await;
        let mut current = current.lock().await;
        match fetched.and_then(|fetched| self.taken_up(fetched, Some(&current))) {
            Ok(renewed) => *current = renewed,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot renew the credentials for the seed yet"
                );
                let again = Timestamp::now().saturating_add(RETRY);
                current.renew_at = again.unwrap_or(Timestamp::MAX);
            }
        }
    }

    async fn fetch(self: &Arc<Self>) -> anyhow::Result<PluginCredentials> {
        let renewal = Arc::clone(self);
        spawn_blocking(move || (renewal.source.fetch)()).await?
    }

    /// A client with these credentials. It keeps the connections of the last one unless the certificate is another.
    fn taken_up(
        &self,
        fetched: PluginCredentials,
        last: Option<&CurrentClient>,
    ) -> anyhow::Result<CurrentClient> {
        let authorization = fetched.authorization.as_ref().map(header_of).transpose()?;
        let client = match (&fetched.client_certificate, last) {
            (None, Some(last)) if !last.has_fetched_certificate => last.client.clone(),
            (certificate, _) => {
                let certificate = certificate.as_ref().or(self.certificate.as_ref());
                self.endpoint.client(certificate)?
            }
        };
        Ok(CurrentClient {
            client,
            has_fetched_certificate: fetched.client_certificate.is_some(),
            authorization,
            number: last.map_or(0, |last| last.number + 1),
            renew_at: self.renew_at(fetched.ends),
            ends: fetched.ends,
            is_refused: false,
        })
    }

    /// When to fetch credentials again.
    fn renew_at(&self, ends: Option<Timestamp>) -> Timestamp {
        let now = Timestamp::now();
        let latest = now.saturating_add(self.source.longest_use);
        let latest = latest.unwrap_or(Timestamp::MAX);
        ends.map_or(latest, |ends| latest.min(before(ends, now)))
    }
}

// === impl CurrentClient ===

impl CurrentClient {
    fn has_ended(&self) -> bool {
        self.ends.is_some_and(|end| end <= Timestamp::now())
    }
}

/// The moment at which credentials that end then are fetched again.
fn before(ends: Timestamp, now: Timestamp) -> Timestamp {
    let half = ends.duration_since(now) / 2;
    ends.saturating_sub(half.min(MARGIN)).unwrap_or(ends)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use anyhow::anyhow;
    use kube::config::Config;

    use super::super::trust::host_authorities;
    use super::*;

    /// For waits that end with a condition.
    const BOUND: Duration = Duration::from_secs(30);

    /// A renewal may hang and fail: what is still good is used meanwhile, and the source is not asked at every request.
    #[tokio::test]
    async fn credentials_that_are_good_are_used_while_their_renewal_hangs_and_fails() {
        let (runs, (release, gate)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel::<()>());
        let (counted, gate) = (runs.clone(), std::sync::Mutex::new(gate));
        let fetch = move || {
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                return Ok(PluginCredentials::default());
            }
            gate.lock().unwrap().recv().unwrap();
            Err(anyhow!("the issuer is away"))
        };
        let renewal = Arc::new(RenewedClient {
            endpoint: SeedEndpoint {
                config: Config::new("https://seed.test".parse().unwrap()),
                trust: host_authorities().into(),
                proxy: None,
            },
            certificate: None,
            source: CredentialSource {
                fetch: Box::new(fetch),
                longest_use: SignedDuration::ZERO,
            },
        });
        let first = renewal.fetch().await.unwrap();
        let current = Arc::new(Mutex::new(renewal.taken_up(first, None).unwrap()));
        for _ in 0..3 {
            let used = tokio::time::timeout(BOUND, renewal.clone().up_to_date(&current)).await;
            assert_eq!(used.unwrap().unwrap().number, 0);
        }
        release.send(()).unwrap();
        let failed = async {
            while current.lock().await.renew_at == Timestamp::MAX {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(BOUND, failed).await.unwrap();
        assert!(
            current.lock().await.renew_at > Timestamp::now(),
            "it is tried again later"
        );
        renewal.clone().up_to_date(&current).await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 2);
        current.lock().await.is_refused = true;
        release.send(()).unwrap();
        let error = renewal.up_to_date(&current).await.map(drop).unwrap_err();
        assert!(format!("{error:?}").contains("the issuer is away"), "{error:?}");
    }

    #[test]
    fn credentials_are_fetched_again_before_they_end() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        for (life, expected) in [(900, 840), (120, 60), (60, 30), (2, 1), (0, 0)] {
            let at = before(now + SignedDuration::from_secs(life), now);
            assert_eq!(
                at.duration_since(now),
                SignedDuration::from_secs(expected),
                "{life}"
            );
        }
        let past = before(now - SignedDuration::from_secs(600), now);
        assert!(past <= now, "they have ended");
    }
}
