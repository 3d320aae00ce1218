//! Where the scenarios are played: on the sandbox, or on real kube-apiservers. What a [`ShootBackend`] can do is all
//! that a scenario needs that cannot be done through the Kubernetes API itself.

mod machines;
mod pool;
mod real;
mod sandbox;

use std::sync::Arc;

use anyhow::Context;
use kube::Client;
use tonic::async_trait;

pub use self::pool::PooledServer;
pub use self::real::RealBackend;
pub use self::sandbox::SandboxBackend;
use super::seed::Seed;
use super::times::Times;
use watchdog_test_support::fault_proxy::{FaultProxy, Upstream};

/// True if what an outage costs is counted. It takes a kube-controller-manager, and a twin takes an API server more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    No,
    /// Yes; the twin on the sandbox only.
    Protected,
    /// Yes, with a twin everywhere.
    Both,
}

/// The description of a shoot.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of nodes.
    pub nodes: usize,
    /// Zones that they are spread over, `zone-1` and on.
    pub zones: usize,
    /// True if nodes and machines that are lost are counted, here and at a twin that nobody watches over.
    pub toll: Count,
    /// True if a [`watchdog_test_support::fault_proxy::FaultProxy`] stands before its API server.
    pub proxy: bool,
    /// Its grace period, in those of everybody else.
    pub grace: f64,
}

impl Plan {
    /// Nodes in one zone, nothing else special.
    #[must_use]
    pub const fn nodes(nodes: usize) -> Self {
        Self {
            nodes,
            zones: 1,
            toll: Count::No,
            proxy: false,
            grace: 1.0,
        }
    }

    /// Spread over this many zones.
    #[must_use]
    pub const fn zones(mut self, zones: usize) -> Self {
        self.zones = zones;
        self
    }

    /// Counting what an outage costs.
    #[must_use]
    pub const fn counted(mut self) -> Self {
        self.toll = Count::Protected;
        self
    }

    /// Counting what an outage costs, with the watchdog and, on both back-ends, without it.
    #[must_use]
    pub const fn with_twin(mut self) -> Self {
        self.toll = Count::Both;
        self
    }

    /// With a fault proxy before its API server.
    #[must_use]
    pub const fn behind_proxy(mut self) -> Self {
        self.proxy = true;
        self
    }

    /// With a grace period so many times that of the others.
    #[must_use]
    pub const fn grace(mut self, factor: f64) -> Self {
        self.grace = factor;
        self
    }

    fn zone(&self, index: usize) -> String {
        format!("zone-{}", index % self.zones.max(1) + 1)
    }
}

/// The API servers that a scenario has borrowed; given back when they are dropped. None on the sandbox.
pub type HeldServers = Vec<PooledServer>;

/// A place to play on.
#[async_trait]
pub trait Backend: Send + Sync {
    /// How fast it turns.
    fn times(&self) -> Times;

    /// The seed that all scenarios share.
    fn seed(&self) -> Arc<Seed>;

    /// The proxy between the services and the seed's API server, where there is one.
    fn proxy(&self) -> Option<&FaultProxy>;

    /// The same.
    ///
    /// # Errors
    /// When there is none.
    fn seed_proxy(&self) -> anyhow::Result<&FaultProxy> {
        self.proxy().context("the seed has no proxy")
    }

    /// Ends the seed's API server: connections are refused.
    async fn stop_seed(&self) -> anyhow::Result<()>;

    /// Starts it again, with the same data.
    async fn start_seed(&self) -> anyhow::Result<()>;

    /// Makes the seed forget its past: watches that go on from there get 410.
    async fn compact_seed(&self) -> anyhow::Result<()>;

    /// Kills the leader of etcd; it comes back as a follower.
    async fn lose_etcd_leader(&self) -> anyhow::Result<()> {
        anyhow::bail!("there is no etcd")
    }

    /// True if a shoot of this plan has a twin here.
    fn has_twin(&self, plan: &Plan) -> bool;

    /// Waits until this many API servers are free and keeps them for one scenario. A scenario that needs several asks
    /// once.
    async fn reserve(&self, _servers: usize) -> anyhow::Result<HeldServers> {
        Ok(HeldServers::new())
    }

    /// A second seed with services of its own.
    async fn second_seed(&self, stock: &mut HeldServers) -> anyhow::Result<Arc<Seed>>;

    /// Builds a shoot with everything in it ready. On a seed it has a Cluster as of a creation that has not come to its
    /// end: it is not probed yet. Without one it is a twin, which nobody watches over.
    async fn build(
        &self,
        stock: &mut HeldServers,
        seed: Option<&Seed>,
        name: &str,
        plan: &Plan,
    ) -> anyhow::Result<Box<dyn ShootBackend>>;
}

/// The part of a shoot that differs between the back-ends: its machines, nodes and API server.
#[async_trait]
pub trait ShootBackend: Send + Sync {
    /// Namespace on the seed.
    fn namespace(&self) -> &str;

    /// An administrator's client for the shoot.
    async fn client(&self) -> anyhow::Result<Client>;

    /// The shoot's API server.
    fn upstream(&self) -> Upstream;

    /// The kubeconfig that Gardener gives the probe.
    fn probe_kubeconfig(&self) -> anyhow::Result<String>;

    /// Names and zones of the nodes.
    async fn nodes(&self) -> Vec<(String, String)>;

    /// Cuts the nodes of a zone off, or all of them, those to come included. When this returns, none of their renewals
    /// is on its way.
    async fn cut(&self, zone: Option<&str>);

    /// Reconnects all nodes.
    async fn reconnect(&self);

    /// Ends the API server: connections are refused.
    async fn stop_api_server(&self) -> anyhow::Result<()>;

    /// Starts it again; its kubelets reach it again.
    async fn start_api_server(&self) -> anyhow::Result<()>;

    /// How many machines were given up and replaced.
    fn machines_replaced(&self) -> u64;

    /// True if every machine runs.
    async fn machines_run(&self) -> anyhow::Result<bool>;
}
