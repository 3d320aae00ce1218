//! The requests of a probe: to the shoot's API server and, to list the machines, to the seed's.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout, timeout_at};
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::Item;
use watchdog_api::machine::MachineItem;
use watchdog_api::node::NodeItem;
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;

use super::connection::CachedConnection;
use super::kubeconfig::Access;
use super::limits::{KeptLists, SMALL_ANSWER, SharedLimits, begin};
use super::machines;
use super::pages::{self, Listable, Listed, PageSize};
use super::transport::{ApiRequest, Budget, Connector, JSON, Suspicion};
use crate::domain::lease_list::LeaseList;
use crate::domain::outcome::{ProbeFailure, ShootPermission};

/// Time limit of GET /version, on a connection opened for it, and of a look at what else is forbidden.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads from a shoot everything that a probe needs, over one cached connection.
pub struct ShootClient<C: Connector> {
    name: Arc<str>,
    seed: kube::Client,
    clock: Clock,
    connection: CachedConnection<C>,
    // How many leases and nodes are asked for at once.
    pages: [PageSize; 2],
    kept: KeptLists,
    // Lists of the machines that failed in a row.
    machines_failed: u32,
}

impl<C: Connector> ShootClient<C> {
    /// A shoot by its namespace; connects when it is asked something.
    #[must_use]
    pub fn new(
        name: Arc<str>,
        seed: kube::Client,
        clock: Clock,
        connector: C,
        limits: Arc<SharedLimits>,
    ) -> Self {
        Self {
            name,
            seed,
            clock,
            pages: [PageSize::of::<LeaseItem>(), PageSize::of::<NodeItem>()],
            kept: KeptLists::new(&limits),
            connection: CachedConnection::new(connector, limits),
            machines_failed: 0,
        }
    }

    /// Lists the leases of the nodes. The list was asked for when its first page was.
    ///
    /// # Errors
    /// Why there is no complete list.
    pub async fn leases(&mut self, access: &Access, budget: Budget) -> Result<LeaseList, ProbeFailure> {
        self.kept.check()?;
        let found = self.list::<LeaseItem>(access, budget).await?;
        let time = |instant| UnixTime(self.clock.micros_at(instant));
        let mut list = LeaseList {
            leases: Vec::with_capacity(found.items.len()),
            malformed: 0,
            revision: found.revision,
            sent: time(found.sent),
            received: time(found.received),
        };
        for item in found.items {
            match item {
                Item::Ok(lease) => list.leases.push(lease),
                Item::Malformed { name, reason } => {
                    tracing::debug!(lease = name.unwrap_or_default(), %reason, "malformed lease");
                    list.malformed += 1;
                }
            }
        }
        Ok(list)
    }

    /// Counts the nodes. Returns none if that fails, or if the API server does not say how many there are.
    pub async fn count_nodes(&mut self, budget: Budget) -> Option<usize> {
        let counted = pages::count_nodes(&mut self.connection, budget);
        timeout_at(budget.deadline, counted).await.ok()?.ok()?
    }

    /// Lists the nodes and the machines.
    ///
    /// # Errors
    /// Why one of the lists is not complete.
    pub async fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), ProbeFailure> {
        let limits = self.connection.limits.clone();
        let permit = limits.node_lists.acquire();
        let permit = budget.wait(permit, ProbeFailure::QueueTimeout).await?;
        // On the heap: it is rare, and every probe would have room for it.
        let both = Box::pin(self.both_lists(access, budget));
        begin(permit, both).await
    }

    /// This many leases and their nodes are remembered of all lists so far.
    ///
    /// # Errors
    /// [`ProbeFailure::TooManyLeases`]: they must be forgotten.
    pub fn remember(&mut self, leases: usize) -> Result<(), ProbeFailure> {
        self.kept.remember(leases)
    }

    /// Waits until the connection to the API server ends unexpectedly. Safe to cancel.
    pub async fn disconnected(&self) {
        self.connection.disconnected().await;
    }

    /// Why the API server may have been away since the last call.
    pub fn take_suspicion(&mut self) -> Option<Suspicion> {
        self.connection.take_suspicion()
    }

    /// Lists within the budget. A failed list is retried once, immediately, as a kubelet retries a renewal. One whose
    /// pages were too large is asked for again in smaller pages. A timeout proves only that the list did not arrive, so
    /// GET /version then checks that the API server is alive, over a new connection, because the one before may be
    /// dead. That takes up to [`VERSION_TIMEOUT`] more, and up to the same time again to get a permit.
    async fn list<I: Listable>(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<Listed<I>, ProbeFailure> {
        let (connection, kept) = (&mut self.connection, &mut self.kept);
        connection.set_kubeconfig(access)?;
        let [of_leases, of_nodes] = &mut self.pages;
        let page = match I::PERMISSION {
            ShootPermission::ListLeases => of_leases,
            ShootPermission::ListNodes => of_nodes,
        };
        let began = Instant::now();
        let mut failed = false;
        let retried = async {
            loop {
                match pages::list(connection, page, kept, budget).await {
                    Err(ProbeFailure::ListFailed(_)) if !failed => {
                        connection.suspect(began, false);
                        failed = true;
                    }
                    Err(failure) if Instant::now() < budget.deadline && page.shrink_after(&failure) => {}
                    result => return result,
                }
            }
        };
        match timeout_at(budget.deadline, retried).await {
            Err(_) => {
                connection.close();
                Err(match version(connection, VERSION_TIMEOUT).await {
                    Ok(()) => ProbeFailure::ListTimeout(budget.limit),
                    Err(failure) if failure.is_throttled() || failure.is_own() => failure,
                    Err(_) => ProbeFailure::Timeout(budget.limit),
                })
            }
            Ok(Err(ProbeFailure::ListFailed(why))) => {
                version(connection, VERSION_TIMEOUT).await?;
                Err(ProbeFailure::ListFailed(why))
            }
            Ok(Err(ProbeFailure::Forbidden(mut missing))) => {
                // All that is missing, so that an operator need not find out one by one.
                let nodes = pages::count_nodes(connection, budget);
                if let Ok(Err(ProbeFailure::Forbidden(more))) = timeout(VERSION_TIMEOUT, nodes).await {
                    missing.extend(more);
                    missing.dedup();
                }
                Err(ProbeFailure::Forbidden(missing))
            }
            Ok(listed) => listed,
        }
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
        let deadline = machines::deadline(self.machines_failed, budget.limit);
        let machines = async {
            let late = |limit| {
                let limit = watchdog_api::duration::format(limit);
                ProbeFailure::Machines(format!("the list took longer than {limit}"))
            };
            let listed = budget.wait(machines::list(&seed, &name, deadline), late);
            // Their failure does not cut the list of nodes short.
            Ok(listed.await.flatten())
        };
        let (found, machines) = tokio::try_join!(self.list::<NodeItem>(access, budget), machines)?;
        self.machines_failed = match machines {
            // A refusal is an answer.
            Ok(_) | Err(ProbeFailure::MachinesThrottled(_)) => 0,
            Err(_) => self.machines_failed.saturating_add(1),
        };
        let nodes = pages::well_formed(found.items, "node").map_err(ProbeFailure::ListFailed)?;
        Ok((nodes, machines?))
    }
}

/// Succeeds if the API server answers at this endpoint, which is another way to it.
///
/// # Errors
/// Why it does not, or why it was not asked.
pub async fn answers<C: Connector>(
    external: &mut CachedConnection<C>,
    access: &Access,
    budget: Budget,
) -> Result<(), ProbeFailure> {
    external.set_kubeconfig(access)?;
    version(external, budget.limit.min(VERSION_TIMEOUT)).await
}

/// Requests the version to find out if the API server answers at all. The server has `limit` to answer on a connection
/// opened for the request, however long this process took to get there.
async fn version<C: Connector>(
    connection: &mut CachedConnection<C>,
    limit: Duration,
) -> Result<(), ProbeFailure> {
    let request = ApiRequest {
        path: "/version".to_owned(),
        accept: JSON,
        most: SMALL_ANSWER,
    };
    let response = connection.request(&request, Budget::starting_now(limit)).await?;
    let is_object =
        || serde_json::from_slice::<HashMap<String, IgnoredAny>>(response.body.as_slice()).is_ok();
    match response.status {
        // A server that refuses a request is alive.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(()),
        StatusCode::TOO_MANY_REQUESTS => Err(ProbeFailure::Throttled(response.retry_after)),
        status if status.is_success() && is_object() => Ok(()),
        status if status.is_success() => Err(ProbeFailure::VersionFailed(format!(
            "GET /version answered {status} without a JSON object; check the address in the kubeconfig, and the \
             proxies on the way to it"
        ))),
        status => Err(ProbeFailure::VersionFailed(format!(
            "GET /version answered {status}"
        ))),
    }
}
