//! Where a probe gets what it judges: the shoot's API server and, for the machines, the seed's.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use watchdog_api::kubeconfig::ShootAccess;
use watchdog_api::machine::MachineItem;
use watchdog_api::node::NodeItem;

use super::connection::Connection;
use super::{machines, shoot_api};
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

/// What a probe reads of a shoot.
pub trait Source: Send {
    /// Lists the leases of the nodes.
    fn leases(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<Leases, Failure>> + Send;

    /// Lists the nodes and the machines.
    fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<(Vec<NodeItem>, Vec<MachineItem>), Failure>> + Send;
}

/// Another way to the same API server.
pub trait Outside: Send {
    /// Whether it answers there.
    fn answers(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The real thing: keeps a connection.
pub struct Shoot {
    name: Arc<str>,
    seed: kube::Client,
    kept: Kept,
    // What was found to be missing at the first refusal since the last list that came.
    missing: Option<Vec<Permission>>,
}

/// The real external endpoint.
#[derive(Default)]
pub struct External {
    kept: Kept,
}

/// A connection and the kubeconfig that it was made from.
#[derive(Default)]
struct Kept {
    connection: Option<(u64, Connection)>,
}

// === impl Shoot ===

impl Shoot {
    /// A shoot by its namespace; connects when it is asked something.
    #[must_use]
    pub fn new(name: Arc<str>, seed: kube::Client) -> Self {
        Self {
            name,
            seed,
            kept: Kept::default(),
            missing: None,
        }
    }

    /// On the first refusal asks for all that is missing, so that an operator need not find out one by one.
    async fn explain<T>(&mut self, access: &Access, result: Result<T, Failure>) -> Result<T, Failure> {
        match result {
            Err(Failure::Forbidden(mut missing)) => {
                let known = match self.missing.take() {
                    Some(known) => known,
                    None => shoot_api::missing_permissions(self.kept.to(access)?).await,
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

impl Source for Shoot {
    async fn leases(&mut self, access: &Access, budget: Budget) -> Result<Leases, Failure> {
        let connection = self.kept.to(access)?;
        let Budget { limit, deadline } = budget;
        let listed = shoot_api::within(deadline, limit, connection, shoot_api::list_leases).await;
        self.explain(access, listed).await
    }

    async fn nodes_and_machines(
        &mut self,
        access: &Access,
        budget: Budget,
    ) -> Result<(Vec<NodeItem>, Vec<MachineItem>), Failure> {
        let connection = self.kept.to(access)?;
        let Budget { limit, deadline } = budget;
        let nodes = shoot_api::within(deadline, limit, connection, shoot_api::list_nodes);
        let machines = tokio::time::timeout_at(deadline, machines::list(&self.seed, &self.name));
        let (nodes, machines) = tokio::join!(nodes, machines);
        let nodes = self.explain(access, nodes).await?;
        let late = |_| {
            let limit = watchdog_api::duration::format(limit);
            Failure::Machines(format!("the list took longer than {limit}"))
        };
        Ok((nodes, machines.map_err(late)??))
    }
}

// === impl External ===

impl Outside for External {
    async fn answers(&mut self, access: &Access, budget: Budget) -> Result<(), Failure> {
        let limit = budget.limit.min(shoot_api::VERSION_TIMEOUT);
        shoot_api::version(self.kept.to(access)?, limit).await
    }
}

// === impl Kept ===

impl Kept {
    /// The connection for a kubeconfig, a new one when the kubeconfig has changed.
    fn to(&mut self, access: &Access) -> Result<&mut Connection, Failure> {
        let kubeconfig = access.as_ref().map_err(Clone::clone)?;
        let connection = match self.connection.take() {
            Some((digest, connection)) if digest == kubeconfig.digest => connection,
            _ => Connection::new(&kubeconfig.access)?,
        };
        Ok(&mut self.connection.insert((kubeconfig.digest, connection)).1)
    }
}
