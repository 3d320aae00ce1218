//! Clients for the seed, and deadlines on their requests.

use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use jiff::{SignedDuration, Timestamp};
use kube::config::{Config, KubeConfigOptions};
use kube::core::Status;
use tokio::sync::Mutex;
use watchdog_api::kubeconfig;
use watchdog_runtime::failure::{Failure, Reason, chain};

/// The longest time for one request to the seed. Above the 5 s in which a healthy API server answers anything that this
/// project asks for, below the steps that wait for it.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// API servers end a watch after this time, and it is opened again where it was. So a watch that is silent for
/// [`SILENCE_LIMIT`] has lost its connection.
pub const WATCH_SECONDS: u32 = 20;

/// A connection on which a request waits and nothing arrives for this time counts as dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// How long a server asks to wait: by its header, which API servers send, else by the Status that it answers. Zero, and
/// the notation as a date, which no API server uses, count as nothing.
#[must_use]
pub fn retry_after(headers: &HeaderMap, status: Option<&Status>) -> Option<Duration> {
    let header = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    let body = || Some(u64::from(status?.details.as_ref()?.retry_after_seconds));
    let seconds = header.or_else(body).filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs)
}

/// Why a request to a Kubernetes API did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It took too long. A write may have been applied all the same.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// The API server refused it.
    #[error("{} ({} {})", .0.message, .0.code, .0.reason)]
    Refused(Box<Status>),
    /// It did not arrive or its answer did not. A write may have been applied all the same.
    #[error("{}", shown(&**.0))]
    Failed(Box<kube::Error>),
}

impl RequestError {
    /// The HTTP status code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            _ => None,
        }
    }

    /// The object, or the kind, does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    fn names(&self, name: &str) -> bool {
        let Self::Refused(status) = self else {
            return false;
        };
        status
            .details
            .as_ref()
            .is_some_and(|details| details.name == name)
    }

    /// A precondition did not hold: somebody else wrote in between.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// A permission is missing.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// How long the server asks to wait before the next try; set on 429 and on some 503 and 500.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(status) => retry_after(&HeaderMap::new(), Some(status)),
            _ => None,
        }
    }

    /// Why it did not succeed.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let reason = match self {
            Self::Deadline(_) => Reason::Timeout,
            Self::Refused(status) => Reason::of_http_status(status.code),
            Self::Failed(error) => Reason::of_transport(&**error),
        };
        Failure::new(reason, self)
    }
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            error => Self::Failed(Box::new(error)),
        }
    }
}

/// Distinguishes an object that does not exist from a kind that is not served: only the first answer names it.
///
/// # Errors
/// The error, unless it is that the object of this name does not exist.
pub fn found<T>(name: &str, answer: Result<T, RequestError>) -> Result<Option<T>, RequestError> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() && error.names(name) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs a request with [`REQUEST_DEADLINE`].
///
/// # Errors
/// When it fails, is refused or takes too long.
pub async fn request<T>(future: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    request_within(REQUEST_DEADLINE, future).await
}

/// Runs a request with a deadline of its own.
///
/// # Errors
/// When it fails, is refused or takes too long.
pub async fn request_within<T>(
    deadline: Duration,
    future: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestError> {
    match tokio::time::timeout(deadline, future).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(RequestError::Deadline(deadline)),
    }
}

/// The text of an error of kube, which shows nothing of what an exec plugin has answered.
pub(crate) fn shown(error: &(dyn Error + 'static)) -> String {
    kubeconfig::failure_of_credentials(error).unwrap_or_else(|| chain(error))
}

/// A client for the seed: from `kubeconfig`, else the file named by KUBECONFIG, else the Pod's service account, else
/// the file in the home directory, as every program with controller-runtime has it. Requests are not retried behind the
/// caller's back: every part has its own schedule.
///
/// # Errors
/// When none of the three is there or the one that is cannot be used.
pub async fn seed(kubeconfig: Option<&Path>, user_agent: &str) -> anyhow::Result<kube::Client> {
    let is_set = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let is_named = kubeconfig.is_some() || is_set("KUBECONFIG");
    let mut config = if !is_named && is_set("KUBERNETES_SERVICE_HOST") {
        Config::incluster().context("cannot use the service account of the Pod")?
    } else {
        config_of(kubeconfig)
            .await
            .context("no usable kubeconfig: set --kubeconfig or KUBECONFIG")?
    };
    config.default_retry = false;
    // Counted from the last write, so that an idle connection of the pool does not spend it.
    config.read_timeout = Some(SILENCE_LIMIT);
    config.reset_reader_on_write = true;
    config
        .headers
        .push((http::header::USER_AGENT, http::HeaderValue::from_str(user_agent)?));
    // kube runs an exec plugin here, waits for it, and panics if its token is none for a header.
    let build = move || kube::Client::try_from(config.clone());
    let client = tokio::task::spawn_blocking({
        let build = build.clone();
        move || build()
    });
    let client = client
        .await
        .context("the token of the exec plugin cannot be used")?;
    let client = client.map_err(|error| anyhow!("cannot build a client for the seed: {}", shown(&error)))?;
    // kube itself runs a plugin again for a token.
    Ok(match client.valid_until() {
        Some(_) => renewed(client, build),
        None => client,
    })
}

/// A client that is replaced by a new one a minute before its credentials end, and after a 401. One replacement at a
/// time: a plugin that hangs is not started again, and requests wait for it as long as their deadlines allow.
fn renewed(
    first: kube::Client,
    build: impl Fn() -> kube::Result<kube::Client> + Clone + Send + 'static,
) -> kube::Client {
    const MARGIN: SignedDuration = SignedDuration::from_mins(1);
    let namespace = first.default_namespace().to_owned();
    // With whether it was refused.
    let current = Arc::new(Mutex::new((first, false)));
    let service = tower::service_fn(move |request| {
        let (current, build) = (current.clone(), build.clone());
        async move {
            let mut held = current.clone().lock_owned().await;
            let is_due = |end: &Timestamp| *end <= Timestamp::now() + MARGIN;
            if held.1 || held.0.valid_until().as_ref().is_some_and(is_due) {
                let replacing = tokio::task::spawn_blocking(move || {
                    held.1 = false;
                    held.0 = build()?;
                    Ok::<_, kube::Error>(held)
                });
                held = replacing
                    .await
                    .map_err(|error| kube::Error::Service(error.into()))??;
            }
            let client = held.0.clone();
            drop(held);
            let response = client.send(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                current.lock().await.1 = true;
            }
            Ok::<_, kube::Error>(response)
        }
    });
    kube::Client::new(service, namespace)
}

async fn config_of(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let variable = std::env::var_os;
    let files = match kubeconfig {
        Some(path) => vec![path.to_owned()],
        None => kubeconfig::default_files(variable("KUBECONFIG").as_deref(), variable("HOME").as_deref()),
    };
    let file = kubeconfig::of_seed(&files, None, &|path| std::fs::read(path))?;
    Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::Secret;
    use kube::Api;
    use kube::api::ListParams;
    use kube::core::response::StatusDetails;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use watchdog_runtime::args::LogFormat;
    use watchdog_runtime::telemetry;
    use watchdog_test_support::in_process::CapturedOutput;

    use super::*;

    fn client(port: u16) -> kube::Client {
        let url = format!("http://127.0.0.1:{port}").parse().unwrap();
        let mut config = Config::new(url);
        config.default_retry = false;
        kube::Client::try_from(config).unwrap()
    }

    #[test]
    fn only_an_answer_that_names_the_object_says_that_it_does_not_exist() {
        let refused = |code, named: Option<&str>| {
            let details = named.map(|name| StatusDetails {
                name: name.to_owned(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes: Vec::new(),
                retry_after_seconds: 0,
            });
            let status = Status {
                code,
                details,
                ..Status::default()
            };
            Err::<(), _>(RequestError::Refused(Box::new(status)))
        };
        assert!(matches!(found("kcm", Ok(())), Ok(Some(()))));
        assert!(matches!(found("kcm", refused(404, Some("kcm"))), Ok(None)));
        assert!(
            found("kcm", refused(404, None)).is_err(),
            "the kind is not served"
        );
        assert!(
            found("kcm", refused(404, Some("shoot--a"))).is_err(),
            "the namespace is gone"
        );
        assert!(found("kcm", refused(403, Some("kcm"))).is_err());
    }

    #[tokio::test]
    async fn an_unreachable_seed_says_why() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let secrets: Api<Secret> = Api::all(client(port));
        let error = request(secrets.list(&ListParams::default())).await.unwrap_err();
        assert!(error.to_string().contains("Connection refused"), "{error}");
        assert_eq!(error.failure().reason, Reason::ConnectionRefused);
    }

    /// kube logs such an answer whole; the place from which it does is known to [`telemetry`] by its name.
    #[tokio::test]
    async fn an_answer_that_cannot_be_decoded_is_not_in_the_log() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let body = r#"{"items": [{"data": {"token": "not base64: classified"}}]}"#;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let kept = CapturedOutput::default();
        let writer = kept.clone();
        let (subscriber, _) =
            telemetry::subscriber(LogFormat::Text, "trace", move || writer.clone()).unwrap();
        let _default = tracing::subscriber::set_default(subscriber);
        let secrets: Api<Secret> = Api::all(client(port));
        let error = request(secrets.list(&ListParams::default())).await.unwrap_err();
        serve.await.unwrap();
        let log = kept.text();
        assert!(log.contains("kube_client"), "{log}");
        assert!(!log.contains("classified"), "{log}");
        assert!(!error.to_string().contains("classified"), "{error}");
    }

    /// Each of these once ended the process, or showed a token.
    #[tokio::test]
    async fn a_kubeconfig_is_used_or_refused_and_never_shown() {
        let file = |user: &str, server: &str| {
            format!(
                "contexts: [{{name: a, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {user}}}]\n\
                 clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n"
            )
        };
        let plugin = |script: &str| {
            let exec =
                serde_json::json!({"command": "/bin/sh", "args": ["-c", script], "interactiveMode": "Never"});
            serde_json::json!({ "exec": exec }).to_string()
        };
        let answer = r#"printf %s '{"kind": "ExecCredential", "status": {"token": "classified\n"}}'"#;
        let https = "https://127.0.0.1:1";
        for (text, expected) in [
            (file("{token: \"classified\\n\"}", https), None),
            (
                file("{token: classified}", "127.0.0.1:1"),
                Some("with https:// before the host"),
            ),
            (
                file("{token: [classified", https),
                Some("is not valid YAML at line"),
            ),
            (
                file("{token: \"classified\\u00e9\"}", https),
                Some("token: has characters that no HTTP header"),
            ),
            (
                file(&plugin("echo classified; exit 1"), https),
                Some("the exec plugin failed: exit status: 1"),
            ),
            (
                file(&plugin("echo classified"), https),
                Some("did not answer with an ExecCredential"),
            ),
            (
                file(&plugin(answer), https),
                Some("the token of the exec plugin cannot be used"),
            ),
        ] {
            let path = std::env::temp_dir().join(format!("kubeconfig-{}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            let shown = seed(Some(&path), "test")
                .await
                .err()
                .map(|error| format!("{error:#} {error:?}"));
            std::fs::remove_file(&path).unwrap();
            let shown = shown.as_deref();
            assert_eq!(shown.is_some(), expected.is_some(), "{expected:?} {shown:?}");
            assert!(
                shown.is_none_or(|shown| shown.contains(expected.unwrap_or_default())),
                "{shown:?}"
            );
            assert!(!shown.unwrap_or_default().contains("classified"), "{shown:?}");
        }
    }

    /// A plugin may say that what it gave ends in 15 minutes, or a server that it has ended already.
    #[tokio::test]
    async fn credentials_that_end_or_are_refused_are_replaced() {
        let answering = |status: u16, minutes: i64| {
            let answer = move |_| async move {
                let response = http::Response::builder().status(status);
                Ok::<_, kube::Error>(response.body(kube::client::Body::empty()).unwrap())
            };
            let end = Timestamp::now() + SignedDuration::from_mins(minutes);
            kube::Client::new(tower::service_fn(answer), "garden").with_valid_until(Some(end))
        };
        let built = Arc::new(AtomicUsize::new(0));
        let build = {
            let built = built.clone();
            move || {
                // The first that is built is refused, the next one is not.
                let status = if built.fetch_add(1, Ordering::SeqCst) == 0 {
                    401
                } else {
                    200
                };
                Ok(answering(status, 15))
            }
        };
        let client = renewed(answering(200, 0), build);
        let get = || client.send(http::Request::new(kube::client::Body::empty()));
        assert_eq!(client.default_namespace(), "garden");
        assert_eq!(get().await.unwrap().status(), 401, "the first has ended");
        assert_eq!(built.load(Ordering::SeqCst), 1);
        for _ in 0..2 {
            assert_eq!(get().await.unwrap().status(), 200);
            assert_eq!(
                built.load(Ordering::SeqCst),
                2,
                "the second was refused, the third is kept"
            );
        }
    }

    #[test]
    fn retry_after_is_read_from_the_header_first() {
        let mut headers = HeaderMap::new();
        assert_eq!(retry_after(&headers, None), None);
        let status: Status = serde_json::from_str(r#"{"details": {"retryAfterSeconds": 3}}"#).unwrap();
        assert_eq!(retry_after(&headers, Some(&status)), Some(Duration::from_secs(3)));
        headers.insert(RETRY_AFTER, "7".parse().unwrap());
        assert_eq!(retry_after(&headers, Some(&status)), Some(Duration::from_secs(7)));
        headers.insert(RETRY_AFTER, "Wed, 21 Oct 2026 07:28:00 GMT".parse().unwrap());
        assert_eq!(retry_after(&headers, None), None);
        headers.insert(RETRY_AFTER, "0".parse().unwrap());
        assert_eq!(retry_after(&headers, Some(&status)), None);
    }
}
