//! Requests to a Kubernetes API: their deadlines, and why they fail.

use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use kube::core::Status;
use kube::runtime::watcher;
use tokio::sync::watch;
use watchdog_runtime::failure::{Failure, Reason, chain};

/// The longest time for one request to the seed. Above the 5 s in which a healthy API server answers anything that this
/// project asks for, below the steps that wait for it.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// API servers end a watch after this time, and it is opened again where it was. So a watch that is silent for 30 s has
/// lost its connection.
pub const WATCH_SECONDS: u32 = 20;

/// Counts the requests of this process that its seed has refused for a missing permission.
pub(crate) static REFUSALS: LazyLock<watch::Sender<u64>> = LazyLock::new(watch::Sender::default);

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
    #[error("{}", chain(&**.0))]
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
            kube::Error::Api(status) => {
                if status.code == 403 {
                    REFUSALS.send_modify(|count| *count += 1);
                }
                Self::Refused(status)
            }
            error => Self::Failed(Box::new(error)),
        }
    }
}

impl From<watcher::Error> for RequestError {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => kube::Error::Api(status).into(),
            error @ watcher::Error::NoResourceVersion => kube::Error::Service(error.into()).into(),
        }
    }
}

/// Distinguishes an object that does not exist from a kind that is not served: only the first answer names it.
///
/// # Errors
/// The error, unless it is that the object of this name does not exist.
pub fn found<T>(name: &str, answer: Result<T, RequestError>) -> Result<Option<T>, RequestError> {
    let names = |status: &Status| {
        status
            .details
            .as_ref()
            .is_some_and(|details| details.name == name)
    };
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(RequestError::Refused(status)) if status.code == 404 && names(&status) => Ok(None),
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use kube::Api;
    use kube::api::ListParams;
    use kube::config::Config;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use watchdog_runtime::args::LogFormat;
    use watchdog_runtime::telemetry;
    use watchdog_test_support::in_process::CapturedOutput;

    use super::*;

    #[test]
    fn only_an_answer_that_names_the_object_says_that_it_does_not_exist() {
        let refused = |code, named: Option<&str>| {
            let details = named.map(|name| serde_json::json!({ "name": name }));
            let status = serde_json::json!({"code": code, "details": details});
            Err::<(), _>(RequestError::Refused(serde_json::from_value(status).unwrap()))
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
        let mut config = Config::new(format!("http://127.0.0.1:{port}").parse().unwrap());
        config.default_retry = false;
        let secrets: Api<Secret> = Api::all(kube::Client::try_from(config).unwrap());
        let error = request(secrets.list(&ListParams::default())).await.unwrap_err();
        serve.await.unwrap();
        let log = kept.text();
        assert!(log.contains("kube_client"), "{log}");
        assert!(!log.contains("classified"), "{log}");
        assert!(!error.to_string().contains("classified"), "{error}");
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
