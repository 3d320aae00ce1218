//! The clients of a probe: for the shoot's API server and, to list the machines, for the seed's.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::kubeconfig::ShootAccess;
use watchdog_api::machine::MachineItem;
use watchdog_api::node::NodeItem;

use super::connect_limiter::ConnectLimiter;
use super::connection::{CachedConnection, Suspicion};
use super::transport::Connector;
use super::{machines, requests};
use crate::domain::answered::ListCounts;
use crate::domain::assessment::Leases;
use crate::domain::outcome::{Failure, Permission};

/// A kubeconfig with the version of the Secret that it came from, or why it cannot be used.
pub type Access = Result<Arc<Kubeconfig>, Failure>;

/// A usable kubeconfig.
#[derive(Debug)]
pub struct Kubeconfig {
    /// Tells one content from another.
    pub digest: u64,
    /// How to reach the API server.
    pub access: ShootAccess,
}

impl PartialEq for Kubeconfig {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// The kubeconfig in `data`, which is what a Secret has under its key, if it has that key, or why it cannot be read.
///
/// # Errors
/// Why it cannot be used; never shows what is in it.
pub fn access(data: Result<Option<&[u8]>, &str>) -> Access {
    let unusable = |why: &str| Failure::Kubeconfig(format!("the Secret {why}"));
    let data = data.map_err(|why| unusable(&format!("has malformed data: {why}")))?;
    let data = data.ok_or_else(|| unusable("has no data key kubeconfig"))?;
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    let access = watchdog_api::kubeconfig::parse(data)
        .map_err(|e| Failure::Kubeconfig(format!("{}: {}", e.field, e.reason)))?;
    Ok(Arc::new(Kubeconfig {
        digest: hasher.finish(),
        access,
    }))
}

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

/// The leases as one probe listed them.
#[derive(Debug)]
pub struct ListedLeases {
    /// The leases.
    pub leases: Leases,
    /// When the request was sent that brought them, or the first page of them.
    pub sent: Instant,
}

/// Reads from a shoot everything that a probe needs.
pub trait ShootClient: Send {
    /// Lists the leases of the nodes.
    fn leases(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<ListedLeases, Failure>> + Send;

    /// Lists the nodes and the machines.
    fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<(Vec<NodeItem>, Vec<MachineItem>), Failure>> + Send;

    /// Waits until the connection to the API server ends unexpectedly. Safe to cancel.
    fn disconnected(&self) -> impl Future<Output = ()> + Send;

    /// Returns the reason why the API server may have been away since the last call.
    fn take_suspicion(&mut self) -> Option<Suspicion>;

    /// Returns how many lists the API server answered and failed since the last call.
    fn take_list_counts(&mut self) -> ListCounts;
}

/// Another way to the same API server.
pub trait ExternalEndpoint: Send {
    /// Succeeds if the API server answers at this endpoint.
    fn answers(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// A shoot, over one cached connection.
pub struct HttpShootClient<C: Connector> {
    name: Arc<str>,
    seed: kube::Client,
    endpoint: Endpoint<C>,
    // What was found to be missing at the first refusal since the last list that came.
    missing: Option<Vec<Permission>>,
}

/// The external endpoint of a shoot, over one cached connection.
pub struct HttpExternalEndpoint<C: Connector> {
    endpoint: Endpoint<C>,
}

/// A connection and the kubeconfig that it was made from.
struct Endpoint<C: Connector> {
    connector: C,
    limiter: Arc<ConnectLimiter>,
    connection: Option<(u64, CachedConnection<C::Transport>)>,
}

// === impl HttpShootClient ===

impl<C: Connector> HttpShootClient<C> {
    /// A shoot by its namespace; connects when it is asked something.
    #[must_use]
    pub fn new(name: Arc<str>, seed: kube::Client, connector: C, limiter: Arc<ConnectLimiter>) -> Self {
        Self {
            name,
            seed,
            endpoint: Endpoint::new(connector, limiter),
            missing: None,
        }
    }

    /// On the first refusal asks for all that is missing, so that an operator need not find out one by one.
    async fn explain<T>(&mut self, access: &Access, result: Result<T, Failure>) -> Result<T, Failure> {
        match result {
            Err(Failure::Forbidden(mut missing)) => {
                let known = match self.missing.take() {
                    Some(known) => known,
                    None => requests::missing_permissions(self.endpoint.connection(access)?).await,
                };
                for other in &known {
                    if !missing.contains(other) {
                        missing.push(*other);
                    }
                }
                self.missing = Some(known);
                Err(Failure::Forbidden(missing))
            }
            Ok(found) => {
                self.missing = None;
                Ok(found)
            }
            other => other,
        }
    }
}

impl<C: Connector> ShootClient for HttpShootClient<C> {
    async fn leases(&mut self, access: &Access, budget: Budget) -> Result<ListedLeases, Failure> {
        let connection = self.endpoint.connection(access)?;
        let Budget { limit, deadline } = budget;
        let listed = requests::within(deadline, limit, connection, requests::list_leases).await;
        let (leases, sent) = self.explain(access, listed).await?;
        Ok(ListedLeases { leases, sent })
    }

    async fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), Failure> {
        let connection = self.endpoint.connection(access)?;
        let Budget { limit, deadline } = budget;
        let nodes = requests::within(deadline, limit, connection, requests::list_nodes);
        let machines = tokio::time::timeout_at(deadline, machines::list(&self.seed, &self.name));
        let (nodes, machines) = tokio::join!(nodes, machines);
        let nodes = self.explain(access, nodes).await?;
        let late = |_| {
            let limit = watchdog_api::duration::format(limit);
            Failure::Machines(format!("the list took longer than {limit}"))
        };
        Ok((nodes, machines.map_err(late)??))
    }

    async fn disconnected(&self) {
        match &self.endpoint.connection {
            Some((_, connection)) => connection.disconnected().await,
            None => std::future::pending().await,
        }
    }

    fn take_suspicion(&mut self) -> Option<Suspicion> {
        self.endpoint.connection.as_mut()?.1.take_suspicion()
    }

    fn take_list_counts(&mut self) -> ListCounts {
        let connection = self.endpoint.connection.as_mut();
        connection.map_or_else(ListCounts::default, |(_, connection)| {
            connection.take_list_counts()
        })
    }
}

// === impl HttpExternalEndpoint ===

impl<C: Connector> HttpExternalEndpoint<C> {
    /// An endpoint that is connected to when it is asked.
    #[must_use]
    pub const fn new(connector: C, limiter: Arc<ConnectLimiter>) -> Self {
        Self {
            endpoint: Endpoint::new(connector, limiter),
        }
    }
}

impl<C: Connector> ExternalEndpoint for HttpExternalEndpoint<C> {
    async fn answers(&mut self, access: &Access, budget: Budget) -> Result<(), Failure> {
        let limit = budget.limit.min(requests::VERSION_TIMEOUT);
        requests::version(self.endpoint.connection(access)?, limit).await
    }
}

// === impl Endpoint ===

impl<C: Connector> Endpoint<C> {
    const fn new(connector: C, limiter: Arc<ConnectLimiter>) -> Self {
        Self {
            connector,
            limiter,
            connection: None,
        }
    }

    /// The connection for a kubeconfig, a new one when the kubeconfig has changed.
    fn connection(&mut self, access: &Access) -> Result<&mut CachedConnection<C::Transport>, Failure> {
        let kubeconfig = access.as_ref().map_err(Clone::clone)?;
        let connection = match self.connection.take() {
            Some((digest, connection)) if digest == kubeconfig.digest => connection,
            old => {
                let transport = self.connector.transport(&kubeconfig.access)?;
                let mut connection = CachedConnection::new(transport, self.limiter.clone());
                // What the old one says of the server holds all the same.
                if let Some(suspicion) = old.and_then(|(_, mut old)| old.take_suspicion()) {
                    connection.suspect(suspicion);
                }
                connection
            }
        };
        Ok(&mut self.connection.insert((kubeconfig.digest, connection)).1)
    }
}
