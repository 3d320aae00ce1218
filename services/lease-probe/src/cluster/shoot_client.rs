//! The requests of a probe: to the shoot's API server and, to list the machines, to the seed's.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::Item;
use watchdog_api::machine::MachineItem;
use watchdog_api::names::NODE_LEASE_NAMESPACE;
use watchdog_api::node::NodeItem;
use watchdog_api::unix_time::UnixTime;

use super::answer_budget::{KeptLists, SharedLimits};
use super::connection::{CachedConnection, OwnWait, Suspicion};
use super::kubeconfig::Access;
use super::machines;
use super::pages::{self, Listable, Listed, PageSize};
use super::transport::{AnswerKind, ApiRequest, Connector};
use crate::domain::assessment::ListedLeases;
use crate::domain::outcome::{ProbeFailure, ShootPermission};
use crate::domain::renewals::ListedLease;
use crate::domain::schedule;

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

    /// How long this process itself held up the last list of leases.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Counts the nodes. Returns none if that fails, or if the API server does not say how many there are.
    fn count_nodes(&mut self, budget: Budget) -> impl Future<Output = Option<usize>> + Send;

    /// Lists the nodes and the machines.
    fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<(Vec<NodeItem>, Vec<MachineItem>), ProbeFailure>> + Send;

    /// Waits until the connection to the API server ends unexpectedly. Safe to cancel.
    fn disconnected(&self) -> impl Future<Output = ()> + Send;

    /// Why the API server may have been away since the last call.
    fn take_suspicion(&mut self) -> Option<Suspicion>;
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
    kept: KeptLists,
    // How many leases were listed last.
    leases: usize,
    // Found at the first refusal since the last list that succeeded.
    missing: Option<Vec<ShootPermission>>,
    // Lists of the machines that failed in a row.
    machines_failed: u32,
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
            pages: [PageSize::of::<LeaseItem>(), PageSize::of::<NodeItem>()],
            kept: KeptLists::new(limits),
            leases: 0,
            missing: None,
            machines_failed: 0,
        }
    }

    /// Lists within the budget. A failed list is retried once, immediately, as a kubelet retries a renewal. One whose
    /// pages were too large is asked for again in smaller pages. A timeout proves only that the list did not arrive, so
    /// GET /version then checks that the API server is alive. That takes up to [`VERSION_TIMEOUT`] more, and up to the
    /// same time again to get a permit.
    async fn list<I: Listable>(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<Listed<I>, ProbeFailure> {
        let (connection, kept) = (&mut self.connection, &mut self.kept);
        connection.set_kubeconfig(access)?;
        connection.waited = Duration::ZERO;
        let [of_leases, of_nodes] = &mut self.pages;
        let page = match I::PERMISSION {
            ShootPermission::ListLeases => of_leases,
            ShootPermission::ListNodes => of_nodes,
        };
        let began = Instant::now();
        let mut failed = false;
        let retried = async {
            loop {
                match pages::list(connection, page, kept).await {
                    Err(ProbeFailure::ListFailed(_)) if !failed => {
                        connection.suspect(Suspicion::noticed_at(began));
                        failed = true;
                    }
                    Err(failure) if page.shrink_after(&failure, I::ANSWER) => {}
                    result => return result,
                }
            }
        };
        let failure = match timeout_at(budget.deadline, retried).await {
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
            Err(_) => match connection.waits_for {
                Some(OwnWait::Lookup) => ProbeFailure::slow_lookup(budget.limit),
                Some(OwnWait::Permit) => ProbeFailure::QueueTimeout(budget.limit),
                // The server did not have its time if its answer waited for most of it.
                None if connection.waited <= budget.limit / 2 => {
                    check_after_timeout(connection, budget.limit).await
                }
                Some(OwnWait::Place) | None => {
                    ProbeFailure::NoAnswerMemory(connection.limits.answers.capacity())
                }
            },
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

    /// Lists the nodes and, at the same time, the machines.
    async fn both_lists(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), ProbeFailure> {
        // A kubelet whose connection has died without a sign opens a new one: what that takes now must show.
        self.connection.close();
        let (seed, name) = (self.seed.clone(), self.name.clone());
        let deadline = schedule::machines_deadline(self.machines_failed, budget.limit);
        let mut machines = pin!(timeout_at(
            budget.deadline,
            machines::list(&seed, &name, deadline)
        ));
        let (found, machines) = {
            let mut nodes = pin!(self.list::<NodeItem>(access, budget));
            tokio::select! {
                biased;
                found = &mut nodes => (found?, machines.await),
                machines = &mut machines => (nodes.await?, machines),
            }
        };
        self.machines_failed = match machines {
            // A refusal is an answer.
            Ok(Ok(_) | Err(ProbeFailure::MachinesThrottled(_))) => 0,
            _ => self.machines_failed.saturating_add(1),
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
}

impl<C: Connector> ShootClient for HttpShootClient<C> {
    async fn leases(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<(ListedLeases, Instant), ProbeFailure> {
        self.kept.check()?;
        let found = match self.list::<LeaseItem>(access, budget).await {
            Ok(found) => found,
            Err(failure) => return self.kept.check().and(Err(failure)),
        };
        self.leases = found.items.len();
        self.kept.remember(self.leases)?;
        let mut listed = ListedLeases {
            revision: found.revision,
            ..ListedLeases::default()
        };
        for item in found.items {
            match item {
                Item::Ok(LeaseItem {
                    name,
                    revision,
                    renew_time,
                    lease_duration_seconds,
                }) => listed.leases.push(ListedLease {
                    name,
                    revision,
                    renew_time: renew_time.map(UnixTime::from),
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

    fn waited(&self) -> Duration {
        self.connection.waited
    }

    async fn count_nodes(&mut self, budget: Budget) -> Option<usize> {
        let counted = pages::count::<_, NodeItem>(&mut self.connection);
        timeout_at(budget.deadline, counted).await.ok()?
    }

    async fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), ProbeFailure> {
        let limits = self.connection.limits.clone();
        let permit = timeout_at(budget.deadline, limits.node_lists.acquire()).await;
        let permit = permit.map_err(|_| ProbeFailure::QueueTimeout(budget.limit))?;
        match permit.during(self.both_lists(access, budget)).await {
            Ok(listed) => {
                // Nodes without a lease are also remembered.
                self.kept.remember(self.leases.max(listed.0.len()))?;
                Ok(listed)
            }
            Err(failure) => self.kept.check().and(Err(failure)),
        }
    }

    async fn disconnected(&self) {
        self.connection.disconnected().await;
    }

    fn take_suspicion(&mut self) -> Option<Suspicion> {
        self.connection.take_suspicion()
    }
}

impl<C: Connector> ExternalEndpoint for CachedConnection<C> {
    async fn answers(&mut self, access: &Access, budget: Budget) -> Result<(), ProbeFailure> {
        self.set_kubeconfig(access)?;
        version(self, budget.limit.min(VERSION_TIMEOUT)).await
    }
}

// === requests ===

/// Requests the version to find out if the API server answers at all. The server has `limit` to answer, as in
/// [`CachedConnection::get_within`].
async fn version<C: Connector>(
    connection: &mut CachedConnection<C>,
    limit: Duration,
) -> Result<(), ProbeFailure> {
    let response = connection.get_within(limit, "/version").await?;
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

/// Finds out if the API server is alive after a list has taken longer than `limit`.
async fn check_after_timeout<C: Connector>(
    connection: &mut CachedConnection<C>,
    limit: Duration,
) -> ProbeFailure {
    // It may be dead, and no ping has found out yet.
    connection.close();
    match version(connection, VERSION_TIMEOUT).await {
        Ok(()) => ProbeFailure::ListTimeout(limit),
        Err(
            failure @ (ProbeFailure::Throttled(_)
            | ProbeFailure::NameLookup(_)
            | ProbeFailure::QueueTimeout(_)
            | ProbeFailure::LocalLimit(_)
            | ProbeFailure::NoAnswerMemory(_)),
        ) => failure,
        Err(_) => ProbeFailure::Timeout(limit),
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
    let review: Review = serde_json::from_slice(response.body.as_slice())
        .map_err(|e| ProbeFailure::ListFailed(e.to_string()))?;
    Ok(!review.status.allowed)
}
