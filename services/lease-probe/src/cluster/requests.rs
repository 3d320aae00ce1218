//! The requests of a probe to a shoot's API server, and how their answers are interpreted.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::{Item, ItemList};
use watchdog_api::names::NODE_LEASE_NAMESPACE;
use watchdog_api::node::NodeItem;

use super::connection::{Answer, CachedConnection, Suspicion};
use super::transport::{Call, Transport};
use crate::domain::assessment::Leases;
use crate::domain::moment::Moment;
use crate::domain::outcome::{Failure, Permission};
use crate::domain::renewals::ListedLease;
use crate::metrics::SHOOT_REQUESTS;

/// Objects asked for at once: what client-go's pager takes, and what API servers are tuned for.
const PAGE: usize = 500;

/// Pages of one list at most: a shoot has at most some thousands of nodes.
const MAX_PAGES: usize = 100;

/// Time limit of GET /version, on a connection opened for it.
pub const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Lists the leases of the nodes, and says when the request was sent that brought the first page.
///
/// # Errors
/// Says why they could not be listed.
pub async fn list_leases<T: Transport>(
    connection: &mut CachedConnection<T>,
) -> Result<(Leases, Instant), Failure> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASE_NAMESPACE}/leases");
    let mut listed = Leases::default();
    let sent = list::<T, LeaseItem>(connection, &path, Permission::ListLeases, |item| match item {
        Item::Ok(lease) => listed.leases.push(ListedLease {
            name: lease.name,
            renew_time: lease.renew_time.map(|time| Moment(time.as_microsecond())),
            duration_seconds: lease.lease_duration_seconds,
        }),
        Item::Malformed { name, reason } => {
            tracing::debug!(lease = name.unwrap_or_default(), %reason, "malformed lease");
            listed.malformed += 1;
        }
    })
    .await?;
    Ok((listed, sent))
}

/// Lists the nodes.
///
/// # Errors
/// Says why they could not be listed. A single malformed node fails the list: it might be one that counts.
pub async fn list_nodes<T: Transport>(
    connection: &mut CachedConnection<T>,
) -> Result<Vec<NodeItem>, Failure> {
    let mut nodes = Vec::new();
    let mut malformed = None;
    list::<T, NodeItem>(
        connection,
        "/api/v1/nodes",
        Permission::ListNodes,
        |item| match item {
            Item::Ok(node) => nodes.push(node),
            Item::Malformed { name, reason } => {
                malformed = Some(format!(
                    "node {} is malformed: {reason}",
                    name.unwrap_or_default()
                ));
            }
        },
    )
    .await?;
    match malformed {
        None => Ok(nodes),
        Some(why) => Err(Failure::ListFailed(why)),
    }
}

/// Requests the version to find out if the API server answers at all. The server has `limit` to answer, as in
/// [`CachedConnection::get_within`].
///
/// # Errors
/// The reason why the server does not answer, or why the request was not sent.
pub async fn version<T: Transport>(
    connection: &mut CachedConnection<T>,
    limit: Duration,
) -> Result<(), Failure> {
    let answer = connection.get_within(limit, "/version").await?;
    count(&answer);
    match answer.status {
        // A server that refuses a request is alive.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(()),
        StatusCode::TOO_MANY_REQUESTS => Err(Failure::Throttled(answer.retry_after)),
        status if status.is_success() && is_json_object(&answer.body) => Ok(()),
        status => Err(Failure::VersionFailed(format!("GET /version answered {status}"))),
    }
}

/// Asks which permissions of a probe the kubeconfig's user lacks. Everybody who is authenticated may ask that. What is
/// not answered counts as granted: a permission is only named as missing when the server says so.
pub async fn missing_permissions<T: Transport>(connection: &mut CachedConnection<T>) -> Vec<Permission> {
    let mut missing = Vec::new();
    for permission in Permission::ALL {
        let ask = is_denied(connection, permission);
        if tokio::time::timeout(VERSION_TIMEOUT, ask).await == Ok(Ok(true)) {
            missing.push(permission);
        }
    }
    missing
}

async fn is_denied<T: Transport>(
    connection: &mut CachedConnection<T>,
    permission: Permission,
) -> Result<bool, Failure> {
    #[derive(Deserialize)]
    struct Review {
        status: ReviewStatus,
    }
    #[derive(Deserialize)]
    struct ReviewStatus {
        allowed: bool,
    }
    let resource = match permission {
        Permission::ListLeases => {
            json!({"verb": "list", "group": "coordination.k8s.io", "resource": "leases", "namespace": NODE_LEASE_NAMESPACE})
        }
        Permission::ListNodes => json!({"verb": "list", "group": "", "resource": "nodes"}),
    };
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": resource},
    });
    let call = Call {
        method: Method::POST,
        path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(),
        body: review.to_string().into(),
    };
    let answer = connection.request(&call).await?;
    count(&answer);
    let review: Review =
        serde_json::from_slice(&answer.body).map_err(|e| Failure::ListFailed(e.to_string()))?;
    Ok(!review.status.allowed)
}

/// Runs a list of a probe that must finish by `deadline`; `limit` is the time limit of the whole probe. A failed list
/// is retried once, immediately, as a kubelet retries a renewal. A timeout proves only that the list did not arrive,
/// so GET /version then checks that the API server is alive. That takes up to [`VERSION_TIMEOUT`] more, and up to the
/// same time again to get a permit.
///
/// # Errors
/// Those of the list; [`Failure::Timeout`] if GET /version got no answer either, [`Failure::ConnectQueueTimeout`] if no
/// request was sent.
pub async fn within<T: Transport, L>(
    deadline: Instant,
    limit: Duration,
    connection: &mut CachedConnection<T>,
    list: impl AsyncFn(&mut CachedConnection<T>) -> Result<L, Failure>,
) -> Result<L, Failure> {
    let began = Instant::now();
    let twice = async {
        match list(connection).await {
            Err(Failure::ListFailed(_)) => {
                connection.suspect(Suspicion::NoticedAt(began));
                list(connection).await
            }
            result => result,
        }
    };
    match tokio::time::timeout_at(deadline, twice).await {
        Ok(Err(Failure::ListFailed(why))) => match version(connection, VERSION_TIMEOUT).await {
            Ok(()) => Err(Failure::ListFailed(why)),
            Err(failure) => Err(failure),
        },
        Ok(result) => result,
        Err(_) if connection.is_queueing() => Err(Failure::ConnectQueueTimeout(limit)),
        Err(_) => {
            // It may be dead, and no ping has found out yet.
            connection.close();
            match version(connection, VERSION_TIMEOUT).await {
                Ok(()) => Err(Failure::ListTimeout(limit)),
                Err(failure @ (Failure::Throttled(_) | Failure::ConnectQueueTimeout(_))) => Err(failure),
                Err(_) => Err(Failure::Timeout(limit)),
            }
        }
    }
}

async fn list<T: Transport, I: for<'de> Deserialize<'de>>(
    connection: &mut CachedConnection<T>,
    path: &str,
    permission: Permission,
    mut take: impl FnMut(Item<I>),
) -> Result<Instant, Failure> {
    let mut query = format!("?limit={PAGE}");
    let mut sent = None;
    for number in 1..=MAX_PAGES {
        let answer = connection.get(&format!("{path}{query}")).await?;
        count(&answer);
        let sent = *sent.get_or_insert(answer.sent);
        // Who throttles or refuses answers.
        connection.count_list(answer.status.is_server_error());
        let broken = |why: String| match number {
            1 => Failure::ListFailed(why),
            _ => Failure::ListBrokeOff(format!("page {number}: {why}")),
        };
        let page = match answer.status {
            StatusCode::OK => ItemList::<I>::from_slice(&answer.body).map_err(|e| broken(e.to_string()))?,
            StatusCode::TOO_MANY_REQUESTS => return Err(Failure::Throttled(answer.retry_after)),
            StatusCode::UNAUTHORIZED => return Err(Failure::Unauthorized),
            StatusCode::FORBIDDEN => return Err(Failure::Forbidden(vec![permission])),
            status => return Err(broken(format!("{status}{}", message(&answer.body)))),
        };
        page.items.into_iter().for_each(&mut take);
        if page.metadata.continue_token.is_empty() {
            return Ok(sent);
        }
        let token = percent_encode(&page.metadata.continue_token);
        query = format!("?limit={PAGE}&continue={token}");
    }
    Err(Failure::ListBrokeOff(format!(
        "it has more than {MAX_PAGES} pages"
    )))
}

/// The message of a `Status`, cut to a sensible length; empty when the body is something else.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    match serde_json::from_slice::<Status>(body) {
        Ok(status) => format!(" ({})", status.message.chars().take(200).collect::<String>()),
        Err(_) => String::new(),
    }
}

fn is_json_object(body: &[u8]) -> bool {
    serde_json::from_slice::<std::collections::HashMap<String, serde::de::IgnoredAny>>(body).is_ok()
}

fn count(answer: &Answer) {
    SHOOT_REQUESTS.inc(&[("code", answer.status.as_str().to_owned())]);
}

/// Tokens are base64: only three of its characters mean something else in a query.
fn percent_encode(token: &str) -> String {
    let mut encoded = String::with_capacity(token.len());
    for byte in token.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
