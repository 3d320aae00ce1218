//! The requests of a probe: to the shoot's API server and, to list the machines, to the seed's.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::{Item, ItemList};
use watchdog_api::machine::MachineItem;
use watchdog_api::names::NODE_LEASE_NAMESPACE;
use watchdog_api::node::{NodeCondition, NodeItem};
use watchdog_api::unix_time::UnixTime;

use super::answer_budget::{MemoryShare, RememberedLeases, SharedLimits};
use super::connection::{ApiResponse, CachedConnection, Observations, Suspicion};
use super::kubeconfig::Access;
use super::machines;
use super::transport::{ApiRequest, Connector};
use crate::domain::answer_ledger::AnswerKind;
use crate::domain::assessment::ListedLeases;
use crate::domain::outcome::{ProbeFailure, ShootPermission, code_label, quote};
use crate::domain::renewals::ListedLease;
use crate::metrics::{CodeLabel, SHOOT_REQUESTS};

/// Objects asked for at once: what client-go's pager takes, and what API servers are tuned for.
const PAGE: usize = 500;

/// And the fewest, after pages that were too large: 16 nodes are about 250 kB.
const SMALLEST_PAGE: usize = 16;

/// Pages of one list at most: a shoot has at most some thousands of nodes.
const MAX_PAGES: usize = 200;

/// The longest token for a next page; that of an API server has some hundred bytes.
const LONGEST_TOKEN: usize = 4096;

/// Time limit of GET /version, on a connection opened for it.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a probe has.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// `probeTimeout`: what the probe as a whole was given.
    pub limit: Duration,
    /// When it is over.
    pub deadline: Instant,
}

impl Budget {
    /// From now on.
    #[must_use]
    pub fn starting_now(limit: Duration) -> Self {
        Self {
            limit,
            deadline: Instant::now() + limit,
        }
    }
}

/// Reads from a shoot everything that a probe needs.
pub trait ShootClient: Send {
    /// Lists the leases of the nodes; also returns when the request was sent that brought them, or the first page of
    /// them.
    fn leases(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<(ListedLeases, Instant), ProbeFailure>> + Send;

    /// Lists the nodes and the machines.
    fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<(Vec<NodeItem>, Vec<MachineItem>), ProbeFailure>> + Send;

    /// Waits until the connection to the API server ends unexpectedly. Safe to cancel.
    fn disconnected(&self) -> impl Future<Output = ()> + Send;

    /// The evidence of connections and lists since the last call.
    fn take_observations(&mut self) -> Observations;
}

/// Another way to the same API server.
pub trait ExternalEndpoint: Send {
    /// Succeeds if the API server answers at this endpoint.
    fn answers(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<(), ProbeFailure>> + Send;
}

/// A shoot, over one cached connection.
pub struct HttpShootClient<C: Connector> {
    name: Arc<str>,
    seed: kube::Client,
    connection: CachedConnection<C>,
    // How many leases and nodes are asked for at once.
    pages: [PageSize; 2],
    remembered: RememberedLeases,
    // Found at the first refusal since the last list that succeeded.
    missing: Option<Vec<ShootPermission>>,
}

/// The external endpoint of a shoot, over one cached connection.
pub struct HttpExternalEndpoint<C: Connector> {
    connection: CachedConnection<C>,
}

// === impl HttpShootClient ===

impl<C: Connector> HttpShootClient<C> {
    /// A shoot by its namespace; connects when it is asked something.
    #[must_use]
    pub fn new(name: Arc<str>, seed: kube::Client, connector: C, limits: Arc<SharedLimits>) -> Self {
        Self {
            name,
            seed,
            connection: CachedConnection::new(connector, limits.clone()),
            pages: [PageSize(PAGE); 2],
            remembered: RememberedLeases::new(limits),
            missing: None,
        }
    }

    /// Lists within the budget. A failed list is retried once, immediately, as a kubelet retries a renewal. A timeout
    /// proves only that the list did not arrive, so GET /version then checks that the API server is alive. That takes
    /// up to [`VERSION_TIMEOUT`] more, and up to the same time again to get a permit.
    async fn list<I: DeserializeOwned + HeapSize>(
        &mut self,
        access: &Access,
        budget: Budget,
        permission: ShootPermission,
    ) -> Result<Listed<I>, ProbeFailure> {
        let connection = &mut self.connection;
        connection.set_kubeconfig(access)?;
        let [of_leases, of_nodes] = &mut self.pages;
        let page = match permission {
            ShootPermission::ListLeases => of_leases,
            ShootPermission::ListNodes => of_nodes,
        };
        let began = Instant::now();
        let twice = async {
            match pages(connection, permission, page).await {
                Err(ProbeFailure::ListFailed(_)) => {
                    connection.suspect(Suspicion::NoticedAt(began));
                    pages(connection, permission, page).await
                }
                result => result,
            }
        };
        let failure = match timeout_at(budget.deadline, twice).await {
            Ok(Ok(listed)) => {
                self.missing = None;
                return Ok(listed);
            }
            Ok(Err(ProbeFailure::Forbidden(refused))) => {
                ProbeFailure::Forbidden(self.add_missing(refused).await)
            }
            Ok(Err(ProbeFailure::ListFailed(why))) => match version(connection, VERSION_TIMEOUT).await {
                Ok(()) => ProbeFailure::ListFailed(why),
                Err(failure) => failure,
            },
            Ok(Err(failure)) => failure,
            Err(_) if connection.is_waiting_for_memory() => {
                ProbeFailure::NoAnswerMemory(connection.limits().answers.capacity())
            }
            Err(_) if connection.is_queueing() => ProbeFailure::ConnectQueueTimeout(budget.limit),
            Err(_) => {
                // It may be dead, and no ping has found out yet.
                connection.close();
                match version(connection, VERSION_TIMEOUT).await {
                    Ok(()) => ProbeFailure::ListTimeout(budget.limit),
                    Err(
                        failure @ (ProbeFailure::Throttled(_)
                        | ProbeFailure::ConnectQueueTimeout(_)
                        | ProbeFailure::LocalLimit(_)
                        | ProbeFailure::NoAnswerMemory(_)),
                    ) => failure,
                    Err(_) => ProbeFailure::Timeout(budget.limit),
                }
            }
        };
        Err(failure)
    }

    /// Adds to `refused` everything else that is missing, so that an operator need not find out one by one. Asks only
    /// at the first refusal.
    async fn add_missing(&mut self, mut refused: Vec<ShootPermission>) -> Vec<ShootPermission> {
        let known = match self.missing.take() {
            Some(known) => known,
            None => missing_permissions(&mut self.connection).await,
        };
        for permission in &known {
            if !refused.contains(permission) {
                refused.push(*permission);
            }
        }
        self.missing = Some(known);
        refused
    }
}

impl<C: Connector> ShootClient for HttpShootClient<C> {
    async fn leases(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<(ListedLeases, Instant), ProbeFailure> {
        self.remembered.check()?;
        let found = self.list(access, budget, ShootPermission::ListLeases).await?;
        self.remembered.set(found.items.len())?;
        let mut listed = ListedLeases::default();
        for item in found.items {
            match item {
                Item::Ok(LeaseItem {
                    name,
                    renew_time,
                    lease_duration_seconds,
                }) => listed.leases.push(ListedLease {
                    name,
                    renew_time: renew_time.map(|time| UnixTime(time.as_microsecond())),
                    duration_seconds: lease_duration_seconds,
                }),
                Item::Malformed { name, reason } => {
                    tracing::debug!(lease = name.unwrap_or_default(), %reason, "malformed lease");
                    listed.malformed += 1;
                }
            }
        }
        Ok((listed, found.sent))
    }

    async fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), ProbeFailure> {
        let (seed, name) = (self.seed.clone(), self.name.clone());
        let mut machines = pin!(timeout_at(budget.deadline, machines::list(&seed, &name)));
        let (found, machines) = {
            let mut nodes = pin!(self.list::<NodeItem>(access, budget, ShootPermission::ListNodes));
            tokio::select! {
                biased;
                found = &mut nodes => {
                    let found = found?;
                    let machines = found.share.unless_it_gives_way(machines).await?;
                    (found, machines)
                }
                machines = &mut machines => (nodes.await?, machines),
            }
        };
        // A malformed one might be one that counts.
        let node = |item| match item {
            Item::Ok(node) => Ok(node),
            Item::Malformed { name, reason } => Err(ProbeFailure::ListFailed(format!(
                "node {} is malformed: {reason}",
                name.unwrap_or_default()
            ))),
        };
        let nodes = found.items.into_iter().map(node).collect::<Result<_, _>>()?;
        let late = |_| {
            let limit = watchdog_api::duration::format(budget.limit);
            ProbeFailure::Machines(format!("the list took longer than {limit}"))
        };
        Ok((nodes, machines.map_err(late)??))
    }

    async fn disconnected(&self) {
        self.connection.disconnected().await;
    }

    fn take_observations(&mut self) -> Observations {
        self.connection.take_observations()
    }
}

// === impl HttpExternalEndpoint ===

impl<C: Connector> HttpExternalEndpoint<C> {
    /// An endpoint that is connected to when it is asked.
    #[must_use]
    pub const fn new(connector: C, limits: Arc<SharedLimits>) -> Self {
        Self {
            connection: CachedConnection::new(connector, limits),
        }
    }
}

impl<C: Connector> ExternalEndpoint for HttpExternalEndpoint<C> {
    async fn answers(&mut self, access: &Access, budget: Budget) -> Result<(), ProbeFailure> {
        self.connection.set_kubeconfig(access)?;
        version(&mut self.connection, budget.limit.min(VERSION_TIMEOUT)).await
    }
}

// === requests ===

const fn path(permission: ShootPermission) -> &'static str {
    match permission {
        ShootPermission::ListLeases => "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
        ShootPermission::ListNodes => "/api/v1/nodes",
    }
}

const fn answer(permission: ShootPermission) -> AnswerKind {
    match permission {
        ShootPermission::ListLeases => AnswerKind::Leases,
        ShootPermission::ListNodes => AnswerKind::Nodes,
    }
}

/// How many objects are asked for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageSize(usize);

impl PageSize {
    /// After an answer that was too large, or too large for the memory that was left. Returns false if it is the
    /// smallest already.
    fn shrink(&mut self) -> bool {
        let before = self.0;
        self.0 = (before / 4).max(SMALLEST_PAGE);
        self.0 < before
    }

    /// After a list whose largest page had this many bytes. Grows only if twice as much is far from the limit.
    fn grow(&mut self, largest: usize, limit: usize) {
        if largest < limit / 8 {
            self.0 = (2 * self.0).min(PAGE);
        }
    }
}

/// A complete list.
struct Listed<I> {
    items: Vec<Item<I>>,
    // When the first page was asked for.
    sent: Instant,
    // The memory of the items.
    share: MemoryShare,
}

/// The memory that an object takes beside itself.
trait HeapSize {
    fn heap_size(&self) -> usize;
}

impl HeapSize for LeaseItem {
    fn heap_size(&self) -> usize {
        self.name.len()
    }
}

impl HeapSize for NodeItem {
    fn heap_size(&self) -> usize {
        let label = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let condition = |c: &NodeCondition| size_of_val(c) + c.kind.len() + c.status.len() + c.reason.len();
        let conditions: usize = self.conditions.iter().map(condition).sum();
        self.name.len() + label(&self.pool) + label(&self.zone) + conditions
    }
}

impl<I: HeapSize> HeapSize for Item<I> {
    fn heap_size(&self) -> usize {
        match self {
            Self::Ok(item) => item.heap_size(),
            Self::Malformed { name, reason } => name.as_ref().map_or(0, String::len) + reason.len(),
        }
    }
}

/// Lists once, in smaller pages if they are too large, or too large for the memory that is left.
async fn pages<C: Connector, I: DeserializeOwned + HeapSize>(
    connection: &mut CachedConnection<C>,
    permission: ShootPermission,
    size: &mut PageSize,
) -> Result<Listed<I>, ProbeFailure> {
    let page_limit = answer(permission).limit();
    loop {
        match pages_of(connection, permission, size).await {
            // Smaller pages do not make the whole list smaller.
            Err(ProbeFailure::AnswerTooLarge(limit)) if limit == page_limit && size.shrink() => {}
            Err(ProbeFailure::NoAnswerMemory(_)) if size.shrink() => {}
            result => return result,
        }
    }
}

/// Lists once, page by page.
async fn pages_of<C: Connector, I: DeserializeOwned + HeapSize>(
    connection: &mut CachedConnection<C>,
    permission: ShootPermission,
    size: &mut PageSize,
) -> Result<Listed<I>, ProbeFailure> {
    let (path, kind, limit) = (path(permission), answer(permission), size.0);
    let mut request = ApiRequest::get(format!("{path}?limit={limit}"), kind);
    let (mut items, mut sent) = (Vec::new(), None);
    let (mut largest, mut all) = (0, 0);
    // Of the items of the pages before.
    let mut share: Option<MemoryShare> = None;
    for number in 1..=MAX_PAGES {
        let response = {
            // Pinned, so that no probe has room for it twice.
            let asked = pin!(connection.request(&request));
            match &share {
                None => asked.await?,
                Some(share) => share.unless_it_gives_way(asked).await??,
            }
        };
        count(&response);
        let sent = *sent.get_or_insert(response.sent);
        // A server that throttles or refuses answers.
        connection.count_list(response.status.is_server_error());
        let bytes = response.body.as_slice().len();
        (largest, all) = (largest.max(bytes), all + bytes);
        if all > kind.list_limit() {
            return Err(ProbeFailure::AnswerTooLarge(kind.list_limit()));
        }
        let page: ItemList<I> = decode_page(&response, permission, number)?;
        let kept = page.items.iter().map(|item| size_of_val(item) + item.heap_size());
        let kept = kept.sum();
        let of_list = match share.take() {
            None => response.body.into_share(kept).await?,
            Some(share) => {
                share.take(kept).await?;
                share
            }
        };
        items.extend(page.items);
        let token = page.metadata.continue_token;
        if token.is_empty() {
            size.grow(largest, kind.limit());
            return Ok(Listed {
                items,
                sent,
                share: of_list,
            });
        }
        share = Some(of_list);
        let token = form_urlencoded::byte_serialize(token.as_bytes());
        let token: String = token.collect();
        request = ApiRequest::get(format!("{path}?limit={limit}&continue={token}"), kind);
    }
    Err(ProbeFailure::ListBrokeOff(format!(
        "it has more than {MAX_PAGES} pages"
    )))
}

/// Decodes the page of this number.
fn decode_page<I: DeserializeOwned>(
    response: &ApiResponse,
    permission: ShootPermission,
    number: usize,
) -> Result<ItemList<I>, ProbeFailure> {
    let broken = |why: String| match number {
        1 => ProbeFailure::ListFailed(why),
        _ => ProbeFailure::ListBrokeOff(format!("page {number}: {why}")),
    };
    let body = response.body.as_slice();
    let page = match response.status {
        StatusCode::OK => ItemList::<I>::at_most::<PAGE>(body).map_err(|e| broken(e.to_string()))?,
        StatusCode::TOO_MANY_REQUESTS => return Err(ProbeFailure::Throttled(response.retry_after)),
        StatusCode::UNAUTHORIZED => return Err(ProbeFailure::Unauthorized),
        StatusCode::FORBIDDEN => return Err(ProbeFailure::Forbidden(vec![permission])),
        status => return Err(broken(format!("{status}{}", message(body)))),
    };
    match page.metadata.continue_token.len() {
        0..=LONGEST_TOKEN => Ok(page),
        _ => Err(broken("the token for the next page is too long".to_owned())),
    }
}

/// Requests the version to find out if the API server answers at all. The server has `limit` to answer, as in
/// [`CachedConnection::get_within`].
async fn version<C: Connector>(
    connection: &mut CachedConnection<C>,
    limit: Duration,
) -> Result<(), ProbeFailure> {
    let response = connection.get_within(limit, "/version").await?;
    count(&response);
    let is_object =
        || serde_json::from_slice::<HashMap<String, IgnoredAny>>(response.body.as_slice()).is_ok();
    match response.status {
        // A server that refuses a request is alive.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(()),
        StatusCode::TOO_MANY_REQUESTS => Err(ProbeFailure::Throttled(response.retry_after)),
        status if status.is_success() && is_object() => Ok(()),
        status => Err(ProbeFailure::VersionFailed(format!(
            "GET /version answered {status}"
        ))),
    }
}

/// Asks which permissions of a probe the kubeconfig's user lacks. Everybody who is authenticated may ask that. What is
/// not answered counts as granted: a permission is only named as missing when the server denies it.
async fn missing_permissions<C: Connector>(connection: &mut CachedConnection<C>) -> Vec<ShootPermission> {
    let mut missing = Vec::new();
    for permission in ShootPermission::ALL {
        let ask = is_denied(connection, permission);
        if timeout(VERSION_TIMEOUT, ask).await == Ok(Ok(true)) {
            missing.push(permission);
        }
    }
    missing
}

async fn is_denied<C: Connector>(
    connection: &mut CachedConnection<C>,
    permission: ShootPermission,
) -> Result<bool, ProbeFailure> {
    #[derive(Deserialize)]
    struct Review {
        status: ReviewStatus,
    }
    #[derive(Deserialize)]
    struct ReviewStatus {
        allowed: bool,
    }
    let resource = match permission {
        ShootPermission::ListLeases => {
            let namespace = NODE_LEASE_NAMESPACE;
            json!({"verb": "list", "group": "coordination.k8s.io", "resource": "leases", "namespace": namespace})
        }
        ShootPermission::ListNodes => json!({"verb": "list", "group": "", "resource": "nodes"}),
    };
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": resource},
    });
    let request = ApiRequest {
        method: Method::POST,
        path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(),
        body: review.to_string().into(),
        answer: AnswerKind::Small,
    };
    let response = connection.request(&request).await?;
    count(&response);
    let review: Review = serde_json::from_slice(response.body.as_slice())
        .map_err(|e| ProbeFailure::ListFailed(e.to_string()))?;
    Ok(!review.status.allowed)
}

/// The message of a `Status`, cut to a sensible length; empty when the body is something else.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    match serde_json::from_slice::<Status>(body) {
        Ok(status) => format!(" ({})", quote(&status.message)),
        Err(_) => String::new(),
    }
}

fn count(response: &ApiResponse) {
    SHOOT_REQUESTS.inc(CodeLabel(code_label(response.status.as_u16())));
}
