//! Deletes pods and reads those behind endpoints. The requests are sent as they are, because kube's client drops the
//! Retry-After header.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::client::Body;
use kube::core::{PartialObjectMeta, Status};
use watchdog_api::list::{Item, ItemList};
use watchdog_kube::client::{REQUEST_DEADLINE, retry_after};
use watchdog_kube::permissions::Permission;
use watchdog_runtime::failure::chain;

use super::objects::PodObject;
use crate::domain::evidence::OutageEvidence;
use crate::domain::failure::RequestFailure;
use crate::domain::pods::Pod;
use watchdog_api::unix_time::UnixTime;

/// A service with more endpoints counts as ready since an unknown time: Gardener's have at most a handful.
const MAX_ENDPOINT_PODS: usize = 16;

/// The longest time for all endpoint pods of a service. It includes the time in which the requests wait for their turn.
/// After it the read has failed, and is tried again later.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// Largest answer: one pod, which etcd limits to 1.5 MiB.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// An answer has its time when it is written, and a successor may exist by then. Only pods that are gone at once,
/// without a grace period, take their time from it.
const DATE_DELAY_MICROS: i64 = 1_000_000;

/// Characters of an API server's message that are kept for streams and logs.
const MAX_MESSAGE: usize = 300;

/// Reads the pods behind the endpoints of a service, by name. A pod that is gone leaves the evidence empty.
///
/// # Errors
/// Why not; never [`RequestFailure::Gone`] or [`RequestFailure::Changed`].
pub(crate) async fn read_endpoint_pods(
    client: &kube::Client,
    namespace: &str,
    names: &BTreeSet<Arc<str>>,
) -> Result<OutageEvidence, RequestFailure> {
    if names.len() > MAX_ENDPOINT_PODS {
        return Ok(OutageEvidence::default());
    }
    let read = read_each(client, namespace, names);
    tokio::time::timeout(READ_DEADLINE, read)
        .await
        .unwrap_or_else(|_| {
            let why = format!(
                "{} endpoint pods were not read within {READ_DEADLINE:?}",
                names.len()
            );
            Err(RequestFailure::Failed(why))
        })
}

async fn read_each(
    client: &kube::Client,
    namespace: &str,
    names: &BTreeSet<Arc<str>>,
) -> Result<OutageEvidence, RequestFailure> {
    let mut pods = Vec::new();
    for name in names {
        // A list, because nothing else needs the permission to get a pod. The API server reads one key for it.
        let request = kube::core::Request::new(PodObject::url_path(&(), Some(namespace)));
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        let permission = || Permission::new("list", "", "pods").in_namespace(namespace);
        let answer = send(client, request.list(&params), permission).await;
        let (_, body) = answer.map_err(|failure| match failure {
            RequestFailure::Gone | RequestFailure::Changed => RequestFailure::Failed(failure.to_string()),
            other => other,
        })?;
        let list =
            ItemList::<PodObject>::from_slice(&body).map_err(|e| RequestFailure::Failed(e.to_string()))?;
        let found = list.items.into_iter().find_map(|item| match item {
            Item::Ok(pod) => Some(pod.endpoint_pod()),
            Item::Malformed { .. } => None,
        });
        match found {
            Some(pod) => pods.push(pod),
            None => return Ok(OutageEvidence::default()),
        }
    }
    Ok(OutageEvidence(pods))
}

/// Deletes a pod if it is still the one that was seen, in the state in which it was seen. The answer must come `within`
/// this time. Gives the time of the deletion by the API server's clock.
///
/// # Errors
/// Why not.
pub(crate) async fn delete(
    client: &kube::Client,
    pod: &Pod,
    within: Duration,
) -> Result<Option<UnixTime>, RequestFailure> {
    let namespace = &*pod.key.namespace;
    let request = kube::core::Request::new(PodObject::url_path(&(), Some(namespace)));
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(pod.uid.clone()),
        resource_version: Some(pod.resource_version.clone()),
    });
    let permission = || Permission::new("delete", "", "pods").in_namespace(namespace);
    let answer = send(client, request.delete(&pod.key.name, &params), permission);
    let (head, body) = tokio::time::timeout(within, answer)
        .await
        .map_err(|_| RequestFailure::Failed(format!("no answer within {within:.1?}")))??;
    let answered_at = head.headers.get(http::header::DATE).and_then(server_time);
    Ok(deletion_time(&body).or_else(|| answered_at.map(|at| UnixTime(at.0 - DATE_DELAY_MICROS))))
}

async fn send(
    client: &kube::Client,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    permission: impl Fn() -> Permission,
) -> Result<(Parts, Bytes), RequestFailure> {
    let request = request.map_err(|error| RequestFailure::Failed(error.to_string()))?;
    // The head has a deadline: that of the paced client, or of a deletion.
    let answer = client.send(request.map(Body::from)).await.map_err(|e| lost(&e))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect();
    let body = tokio::time::timeout(REQUEST_DEADLINE, body)
        .await
        .map_err(|_| RequestFailure::Failed("no end of the answer within 10s".to_owned()))?
        .map_err(|e| lost(&*e))?
        .to_bytes();
    if head.status.is_success() {
        return Ok((head, body));
    }
    let status = serde_json::from_slice::<Status>(&body).ok();
    Err(match head.status {
        StatusCode::NOT_FOUND => RequestFailure::Gone,
        StatusCode::CONFLICT => RequestFailure::Changed,
        StatusCode::TOO_MANY_REQUESTS => {
            RequestFailure::Throttled(retry_after(&head.headers, status.as_ref()))
        }
        StatusCode::FORBIDDEN => {
            let server_message = server_message(status.as_ref(), &body);
            RequestFailure::Forbidden(format!(
                "grant this service {}; the API server says: {server_message}",
                permission()
            ))
        }
        code => RequestFailure::Failed(format!(
            "{} ({})",
            server_message(status.as_ref(), &body),
            code.as_u16()
        )),
    })
}

/// When a pod was deleted, rounded down to whole seconds as its successor's creationTimestamp is: so no successor is
/// older. None for a pod that is gone at once.
fn deletion_time(body: &Bytes) -> Option<UnixTime> {
    let PartialObjectMeta::<v1::Pod> { metadata, .. } = serde_json::from_slice(body).ok()?;
    let Time(at) = metadata.deletion_timestamp?;
    let grace = metadata.deletion_grace_period_seconds?.checked_mul(1_000_000)?;
    UnixTime::from(at).0.checked_sub(grace).map(UnixTime)
}

/// The time of an answer, in whole seconds.
fn server_time(date: &HeaderValue) -> Option<UnixTime> {
    let date = jiff::fmt::rfc2822::parse(date.to_str().ok()?).ok()?;
    Some(date.timestamp().into())
}

fn server_message(status: Option<&Status>, body: &Bytes) -> String {
    let text = match status {
        Some(status) => status.message.clone(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    let text: String = text
        .trim()
        .chars()
        .filter(|c| !c.is_control())
        .take(MAX_MESSAGE)
        .collect();
    if text.is_empty() {
        "no reason given".to_owned()
    } else {
        text
    }
}

/// The chain says what failed and why, in one line.
fn lost(error: &(dyn std::error::Error + 'static)) -> RequestFailure {
    RequestFailure::Failed(chain(error).chars().take(MAX_MESSAGE).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_deletion_is_that_before_its_grace_period() {
        let time = |metadata: &'static str| deletion_time(&Bytes::from_static(metadata.as_bytes()));
        assert_eq!(
            time(
                r#"{"metadata": {"deletionTimestamp": "2026-11-21T08:00:31Z", "deletionGracePeriodSeconds": 30}}"#
            ),
            Some(UnixTime(1_795_248_001_000_000))
        );
        for silent in [
            r#"{"kind": "Status", "metadata": {}, "status": "Success"}"#,
            r#"{"metadata": {"deletionTimestamp": "2026-11-21T08:00:31Z"}}"#,
            "",
        ] {
            assert_eq!(time(silent), None, "{silent}");
        }
    }

    /// An API server that takes 9 s for each pod.
    #[tokio::test(start_paused = true)]
    async fn all_endpoint_pods_share_one_deadline() {
        let service = tower::service_fn(|_: Request<Body>| async {
            tokio::time::sleep(Duration::from_secs(9)).await;
            let pod = serde_json::json!({"metadata": {"name": "etcd-0", "namespace": "shoot"}});
            let list = serde_json::json!({"metadata": {}, "items": [pod]});
            Ok::<_, kube::Error>(http::Response::new(Body::from(list.to_string().into_bytes())))
        });
        let client = kube::Client::new(service, "default");
        let names = |count: usize| (0..count).map(|i| Arc::from(format!("etcd-{i}"))).collect();
        let three = read_endpoint_pods(&client, "shoot", &names(3)).await.unwrap();
        assert_eq!(three.0.len(), 3);
        let begun = tokio::time::Instant::now();
        let four = read_endpoint_pods(&client, "shoot", &names(4)).await;
        let why = "4 endpoint pods were not read within 30s".to_owned();
        assert_eq!(four, Err(RequestFailure::Failed(why)));
        assert_eq!(begun.elapsed(), READ_DEADLINE);
    }

    #[test]
    fn what_a_server_says_is_cut() {
        assert_eq!(
            server_message(None, &Bytes::from("x".repeat(1_000))).len(),
            MAX_MESSAGE
        );
        assert_eq!(
            server_message(None, &Bytes::from_static(b"too\nmany\n")),
            "toomany"
        );
        assert_eq!(server_message(None, &Bytes::new()), "no reason given");
    }

    #[test]
    fn the_time_of_the_server() {
        let time = |date: &'static str| server_time(&HeaderValue::from_static(date));
        assert_eq!(
            time("Sat, 21 Nov 2026 08:00:01 GMT"),
            Some(UnixTime(1_795_248_001_000_000))
        );
        assert_eq!(time("yesterday"), None);
    }
}
