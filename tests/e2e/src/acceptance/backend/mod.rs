//! Where the scenarios are played: on the sandbox, or on real kube-apiservers. What a [`ShootBackend`] can do is all
//! that a scenario needs that cannot be done through the Kubernetes API itself.

mod machines;
mod nodes;
mod pool;
mod real;
mod sandbox;

use std::sync::Arc;

use anyhow::Context;
use kube::Client;

pub use self::pool::PooledServer;
pub use self::real::{RealBackend, RealSite};
pub use self::sandbox::{SandboxBackend, SandboxSite};
use super::seed::Seed;
use super::times::Times;
use watchdog_test_support::fault_proxy::{FaultProxy, Upstream};
use watchdog_test_support::history::{Write, from_sandbox};

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

/// A place to play on.
pub enum Backend {
    /// In memory.
    Sandbox(SandboxBackend),
    /// Real API servers.
    Real(Box<RealBackend>),
}

/// A seed of a back-end, on which shoots can be built.
#[derive(Clone)]
pub enum SeedBackend {
    /// In memory.
    Sandbox(Arc<watchdog_sandbox::Sandbox>),
    /// A real API server.
    Real(Client),
}

/// The part of a shoot that differs between the back-ends: its machines, nodes and API server.
pub enum ShootBackend {
    /// Simulated by the sandbox.
    Sandbox(SandboxSite),
    /// A real API server, with simulated kubelets.
    Real(RealSite),
}

/// The part of the back-end that a scenario holds; given back when it is dropped.
#[derive(Default)]
pub struct HeldServers {
    lent: Vec<PooledServer>,
}

// === impl Backend ===

impl Backend {
    /// How fast it turns.
    #[must_use]
    pub fn times(&self) -> Times {
        match self {
            Self::Sandbox(backend) => backend.times(),
            Self::Real(backend) => backend.times(),
        }
    }

    /// The seed that all scenarios share, and where it is.
    #[must_use]
    pub fn seed(&self) -> (Arc<Seed>, SeedBackend) {
        match self {
            Self::Sandbox(backend) => backend.seed(),
            Self::Real(backend) => backend.seed(),
        }
    }

    /// Where unwatched twins are.
    #[must_use]
    pub fn unwatched(&self) -> SeedBackend {
        match self {
            Self::Sandbox(backend) => backend.unwatched(),
            // Without a Cluster a shoot is not watched over.
            Self::Real(backend) => backend.seed().1,
        }
    }

    /// The proxy between the services and the seed's API server.
    ///
    /// # Errors
    /// When nothing does.
    pub fn seed_proxy(&self) -> anyhow::Result<&FaultProxy> {
        let proxy = match self {
            Self::Sandbox(backend) => backend.proxy(),
            Self::Real(backend) => backend.proxy(),
        };
        proxy.context("the seed has no proxy")
    }

    /// The writes to the seed, where they are recorded.
    #[must_use]
    pub fn writes(&self) -> Vec<Write> {
        match self {
            Self::Sandbox(backend) => from_sandbox(&backend.audit()),
            Self::Real(_) => Vec::new(),
        }
    }

    /// A kubeconfig for one more replica of a service, through the fault proxy.
    ///
    /// # Errors
    /// When the seed has no fault proxy.
    pub fn seed_kubeconfig(&self, identity: &str) -> anyhow::Result<String> {
        match self {
            Self::Sandbox(backend) => Ok(backend.kubeconfig(identity)),
            Self::Real(_) => anyhow::bail!("one user for all"),
        }
    }

    /// Ends the seed's API server: connections are refused.
    ///
    /// # Errors
    /// When it does not go away.
    pub async fn stop_seed(&self) -> anyhow::Result<()> {
        match self {
            Self::Sandbox(backend) => backend.stop_seed().await,
            Self::Real(backend) => backend.stop_seed().await,
        }
    }

    /// Starts it again, with the same data.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_seed(&self) -> anyhow::Result<()> {
        match self {
            Self::Sandbox(backend) => backend.start_seed().await,
            Self::Real(backend) => backend.start_seed().await,
        }
    }

    /// Makes the seed forget its past: watches that go on from there get 410.
    ///
    /// # Errors
    /// When the API server does not come up again.
    pub async fn compact_seed(&self) -> anyhow::Result<()> {
        match self {
            Self::Sandbox(backend) => {
                backend.compact_seed();
                Ok(())
            }
            Self::Real(backend) => backend.compact_seed().await,
        }
    }

    /// Kills the leader of etcd; it comes back as a follower.
    ///
    /// # Errors
    /// When there is no etcd with several members.
    pub async fn lose_etcd_leader(&self) -> anyhow::Result<()> {
        match self {
            Self::Sandbox(_) => anyhow::bail!("the sandbox has no etcd"),
            Self::Real(backend) => backend.lose_etcd_leader().await,
        }
    }

    /// True if a shoot of this plan has a twin here.
    #[must_use]
    pub fn has_twin(&self, plan: &Plan) -> bool {
        match (plan.toll, self) {
            (Count::No, _) | (Count::Protected, Self::Real(_)) => false,
            (Count::Protected, Self::Sandbox(_)) | (Count::Both, _) => true,
        }
    }

    /// Waits until this many API servers are free and keeps them for one scenario. A scenario that needs several asks
    /// once.
    ///
    /// # Errors
    /// When there are fewer.
    pub async fn reserve(&self, servers: usize) -> anyhow::Result<HeldServers> {
        let lent = match self {
            Self::Sandbox(_) => Vec::new(),
            Self::Real(backend) => backend.reserve(servers).await?,
        };
        Ok(HeldServers { lent })
    }

    /// A second seed with services of its own.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn second_seed(&self, stock: &mut HeldServers) -> anyhow::Result<(Arc<Seed>, SeedBackend)> {
        match self {
            Self::Sandbox(backend) => backend.second_seed().await,
            Self::Real(backend) => backend.second_seed(stock).await,
        }
    }

    /// Builds a shoot with everything in it ready. With `cluster` it has a Cluster as of a creation that has not come
    /// to its end: it is not probed yet.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn build(
        &self,
        stock: &mut HeldServers,
        place: &SeedBackend,
        name: &str,
        plan: &Plan,
        cluster: bool,
    ) -> anyhow::Result<ShootBackend> {
        match (self, place) {
            (Self::Sandbox(backend), SeedBackend::Sandbox(sandbox)) => {
                Ok(ShootBackend::Sandbox(backend.build(sandbox, name, plan).await?))
            }
            (Self::Real(backend), SeedBackend::Real(seed)) => Ok(ShootBackend::Real(
                backend.build(stock, seed, name, plan, cluster).await?,
            )),
            _ => anyhow::bail!("a place of another back-end"),
        }
    }
}

// === impl ShootBackend ===

impl ShootBackend {
    /// Namespace on the seed.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Sandbox(site) => site.namespace(),
            Self::Real(site) => site.namespace(),
        }
    }

    /// An administrator's client for the shoot.
    ///
    /// # Errors
    /// When none can be made.
    pub async fn client(&self) -> anyhow::Result<Client> {
        match self {
            Self::Sandbox(site) => site.client().await,
            Self::Real(site) => Ok(site.client()),
        }
    }

    /// The shoot's API server.
    #[must_use]
    pub fn upstream(&self) -> Upstream {
        match self {
            Self::Sandbox(site) => site.upstream(),
            Self::Real(site) => site.upstream(),
        }
    }

    /// The kubeconfig that Gardener gives the probe.
    ///
    /// # Errors
    /// When the API server does not know the probe's user.
    pub fn probe_kubeconfig(&self) -> anyhow::Result<String> {
        match self {
            Self::Sandbox(site) => Ok(site.probe_kubeconfig()),
            Self::Real(site) => site.probe_kubeconfig(),
        }
    }

    /// Names and zones of the nodes.
    pub async fn nodes(&self) -> Vec<(String, String)> {
        match self {
            Self::Sandbox(site) => site.nodes(),
            Self::Real(site) => site.nodes().await,
        }
    }

    /// Cuts all nodes off, those to come included. When this returns, none of their renewals is on its way.
    pub async fn cut_all(&self) {
        match self {
            Self::Sandbox(site) => site.cut_all(),
            Self::Real(site) => site.cut_all().await,
        }
    }

    /// Cuts a zone off.
    pub async fn cut_zone(&self, zone: &str) {
        match self {
            Self::Sandbox(site) => site.cut_zone(zone),
            Self::Real(site) => site.cut_zone(zone).await,
        }
    }

    /// Reconnects all nodes.
    pub async fn reconnect(&self) {
        match self {
            Self::Sandbox(site) => site.reconnect(),
            Self::Real(site) => site.reconnect().await,
        }
    }

    /// Ends the API server: connections are refused.
    ///
    /// # Errors
    /// When it does not go away.
    pub async fn stop_api_server(&self) -> anyhow::Result<()> {
        match self {
            Self::Sandbox(site) => site.stop_api_server().await,
            Self::Real(site) => site.stop_api_server().await,
        }
    }

    /// Starts it again; its kubelets reach it again.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_api_server(&self) -> anyhow::Result<()> {
        match self {
            Self::Sandbox(site) => site.start_api_server().await,
            Self::Real(site) => site.start_api_server().await,
        }
    }

    /// How many machines were given up and replaced.
    #[must_use]
    pub fn machines_replaced(&self) -> u64 {
        match self {
            Self::Sandbox(site) => site.machines_replaced(),
            Self::Real(site) => site.machines_replaced(),
        }
    }

    /// True if every machine runs.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn machines_run(&self) -> anyhow::Result<bool> {
        match self {
            Self::Sandbox(site) => Ok(site.machines_run()),
            Self::Real(site) => site.machines_run().await,
        }
    }
}
