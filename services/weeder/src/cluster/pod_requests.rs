//! The requests that weeding is made of. Sent as they are, because kube's client drops the Retry-After header.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::Resource;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::client::Body;
use kube::core::Status;
use watchdog_api::list::{Item, ItemList};
use watchdog_kube::client::{REQUEST_DEADLINE, retry_after};
use watchdog_kube::permissions::Permission;
use watchdog_runtime::failure::chain;

use super::objects::PodObject;
use crate::domain::dependants::Dependants;
use crate::domain::failure::Failure;
use crate::domain::pods::Pod;
use crate::metrics;

/// Pods per page: a page stays below some megabytes.
const PAGE: u32 = 500;

/// All pages of a list together may take so long.
const LIST_DEADLINE: Duration = Duration::from_secs(30);

/// Largest answer. A page of pods of 100 KiB each still fits.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// What an API server says is cut at so many characters: it ends up in streams and logs.
const MAX_MESSAGE: usize = 300;

/// Lists the crash-looping dependants in a namespace. No resourceVersion is sent: what comes back is at least as new as
/// the moment of asking.
///
/// # Errors
/// Why not; never [`Failure::Gone`] or [`Failure::Changed`].
pub async fn list(
    client: &kube::Client,
    namespace: &str,
    dependants: &Dependants,
) -> Result<Vec<Pod>, Failure> {
    let all = async {
        let mut crashing = Vec::new();
        for labels in dependants.queries() {
            list_one(client, namespace, labels, &mut crashing).await?;
        }
        Ok(crashing)
    };
    tokio::time::timeout(LIST_DEADLINE, all)
        .await
        .unwrap_or_else(|_| Err(Failure::Failed("the list was not complete within 30s".to_owned())))
}

async fn list_one(
    client: &kube::Client,
    namespace: &str,
    labels: &str,
    crashing: &mut Vec<Pod>,
) -> Result<(), Failure> {
    let request = kube::core::Request::new(PodObject::url_path(&(), Some(namespace)));
    let mut params = ListParams::default().labels(labels).limit(PAGE);
    loop {
        let answer = send(client, request.list(&params), || {
            Permission::new("list", "", "pods").in_namespace(namespace)
        });
        let answer = answer.await.map_err(|failure| match failure {
            Failure::Gone | Failure::Changed => Failure::Failed(failure.to_string()),
            other => other,
        })?;
        let page = ItemList::<PodObject>::from_slice(&answer).map_err(|e| Failure::Failed(e.to_string()))?;
        for item in page.items {
            match item {
                Item::Ok(pod) => crashing.extend(pod.into_pod().filter(|pod| pod.to_weed().is_some())),
                Item::Malformed { name, reason } => {
                    metrics::MALFORMED.inc(&[("kind", "pod".to_owned())]);
                    let name = name.unwrap_or_default();
                    tracing::warn!(
                        kind = "pod",
                        namespace,
                        name,
                        error = reason,
                        "object cannot be read"
                    );
                }
            }
        }
        if page.metadata.continue_token.is_empty() {
            return Ok(());
        }
        params.continue_token = Some(page.metadata.continue_token);
    }
}

/// Deletes a pod if it is still the one that was seen, in the state in which it was seen.
///
/// # Errors
/// Why not.
pub async fn delete(client: &kube::Client, pod: &Pod) -> Result<(), Failure> {
    let namespace = &*pod.key.namespace;
    let request = kube::core::Request::new(PodObject::url_path(&(), Some(namespace)));
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(pod.uid.clone()),
        resource_version: Some(pod.resource_version.clone()),
    });
    let permission = || Permission::new("delete", "", "pods").in_namespace(namespace);
    send(client, request.delete(&pod.key.name, &params), permission)
        .await
        .map(drop)
}

async fn send(
    client: &kube::Client,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    permission: impl Fn() -> Permission,
) -> Result<Bytes, Failure> {
    let request = request.map_err(|error| Failure::Failed(error.to_string()))?;
    let exchange = async {
        let answer = client.send(request.map(Body::from)).await.map_err(|e| lost(&e))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(|e| lost(&*e))?;
        Ok((head, body.to_bytes()))
    };
    let (head, body) = tokio::time::timeout(REQUEST_DEADLINE, exchange)
        .await
        .unwrap_or_else(|_| Err(Failure::Failed("no answer within 10s".to_owned())))?;
    if head.status.is_success() {
        return Ok(body);
    }
    let status = serde_json::from_slice::<Status>(&body).ok();
    Err(match head.status {
        StatusCode::NOT_FOUND => Failure::Gone,
        StatusCode::CONFLICT => Failure::Changed,
        StatusCode::TOO_MANY_REQUESTS => Failure::Throttled(retry_after(&head.headers, status.as_ref())),
        StatusCode::FORBIDDEN => {
            let said = said(status.as_ref(), &body);
            Failure::Forbidden(format!(
                "grant this service {}; the API server says: {said}",
                permission()
            ))
        }
        code => Failure::Failed(format!("{} ({})", said(status.as_ref(), &body), code.as_u16())),
    })
}

fn said(status: Option<&Status>, body: &Bytes) -> String {
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
fn lost(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::Failed(chain(error).chars().take(MAX_MESSAGE).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_cut() {
        assert_eq!(said(None, &Bytes::from("x".repeat(1_000))).len(), MAX_MESSAGE);
        assert_eq!(said(None, &Bytes::from_static(b"too\nmany\n")), "toomany");
        assert_eq!(said(None, &Bytes::new()), "no reason given");
    }
}
