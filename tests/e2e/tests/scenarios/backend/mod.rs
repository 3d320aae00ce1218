//! Where the scenarios are played: on real API servers. One etcd, one API server as the seed, and a pool of them as
//! shoots.

mod plan;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};

pub(crate) use self::plan::Plan;
use self::pool::Pool;
pub(crate) use self::pool::PooledServer;
use crate::seed::Seed;
use crate::times::Times;
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::nodes::LEASE_NAMESPACE;
use watchdog_test_support::real::{
    ApiServerOptions, ControllerManagerOptions, KubeApiserver, PROBE, REPLICAS, RealControlPlane, RealShoot,
};
use watchdog_test_support::wait::BOUND;

const TIMES: Times = Times {
    // As short as leaves a real kube-controller-manager time to be stopped before it judges.
    grace: Duration::from_secs(16),
    machine_health_timeout: Duration::from_secs(240),
    bound: BOUND,
};

/// API servers beside the seed's. Each takes 5 % of a processor for nothing, and machines are at times three times
/// slower than at others; more would only be in the way of what is timed.
const POOL: usize = 4;

/// The API servers that a scenario has borrowed; given back when they are dropped.
pub(crate) type HeldServers = Vec<PooledServer>;

/// Everything that is shared.
pub(crate) struct Backend {
    seed: Arc<Seed>,
    pool: Arc<Pool>,
    proxy: Option<FaultProxy>,
    times: Times,
}

/// An API server that is a shoot's, or that of a second seed.
async fn pooled_server(plane: &RealControlPlane, name: String) -> anyhow::Result<KubeApiserver> {
    let options = ApiServerOptions::new(&name).user(PROBE, &[]).lean();
    let options = REPLICAS.iter().fold(options, |options, (_, name)| {
        options.user(name, &["system:masters"])
    });
    plane.api_server_with(options).await
}

// === impl Backend ===

impl Backend {
    /// Starts etcd, the API servers and the services.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let plane = RealControlPlane::start("acceptance").await?;
        Self::start_on(plane, POOL, false, TIMES.impatient()).await
    }

    /// The same for few shoots, with three members of etcd and a fault proxy between the services and the seed.
    pub(crate) async fn start_behind_proxy(shoots: usize) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start_with_etcd_of_three("acceptance-faults").await?;
        Self::start_on(plane, shoots, true, TIMES).await
    }

    async fn start_on(
        plane: RealControlPlane,
        shoots: usize,
        proxied: bool,
        times: Times,
    ) -> anyhow::Result<Self> {
        let shoots: Vec<_> = (0..shoots)
            .map(|index| pooled_server(&plane, format!("shoot-{index}")))
            .collect();
        let seed = pooled_server(&plane, "seed".to_owned());
        let (server, shoots) = tokio::try_join!(seed, try_join_all(shoots))?;
        let proxy = match proxied {
            true => Some(FaultProxy::start((&server).into()).await?),
            false => None,
        };
        let (plane, server) = (Arc::new(plane), Arc::new(server));
        let seed = Seed::start("seed", plane, server, proxy.as_ref(), &times).await?;
        Ok(Self {
            seed: Arc::new(seed),
            pool: Pool::new(shoots),
            proxy,
            times,
        })
    }

    /// How fast it turns.
    pub(crate) const fn times(&self) -> Times {
        self.times
    }

    /// The seed that all scenarios share.
    pub(crate) fn seed(&self) -> Arc<Seed> {
        self.seed.clone()
    }

    /// The proxy between the services and the seed's API server.
    pub(crate) fn seed_proxy(&self) -> anyhow::Result<&FaultProxy> {
        self.proxy.as_ref().context("the seed has no proxy")
    }

    /// The seed's API server.
    pub(crate) fn server(&self) -> &KubeApiserver {
        &self.seed.fixture.seed
    }

    fn plane(&self) -> &Arc<RealControlPlane> {
        &self.seed.fixture.plane
    }

    /// Makes the seed forget its past: watches that go on from there get 410.
    pub(crate) async fn compact_seed(&self) -> anyhow::Result<()> {
        // The API server's own memory of the past ends with its process.
        self.server().stop().await?;
        self.plane().etcd.compact().await?;
        self.server().start_again().await
    }

    /// Kills the leader of etcd; it comes back as a follower.
    pub(crate) async fn lose_etcd_leader(&self) -> anyhow::Result<()> {
        self.plane().etcd.kill_leader().await
    }

    /// Waits until this many API servers are free and keeps them for one scenario. A scenario that needs several asks
    /// once.
    pub(crate) async fn reserve(&self, servers: usize) -> anyhow::Result<HeldServers> {
        self.pool.borrow(servers).await
    }

    /// A second seed with services of its own.
    pub(crate) async fn second_seed(&self, stock: &mut HeldServers) -> anyhow::Result<Arc<Seed>> {
        let lent = stock.pop().context("no API server reserved")?;
        let server = lent.server.clone();
        let seed = Seed::start("second-seed", self.plane().clone(), server, None, &self.times).await?;
        // Ends with the seed: kept beside it by the scenario's stock.
        stock.insert(0, lent);
        Ok(Arc::new(seed))
    }

    /// Builds a shoot that nobody watches over yet, with everything in it ready. Where nodes are counted it is a real
    /// kube-controller-manager that judges them.
    pub(crate) async fn build(
        &self,
        lent: &PooledServer,
        seed: &Seed,
        name: &str,
        plan: &Plan,
    ) -> anyhow::Result<RealShoot> {
        clean(&lent.server.client()).await?;
        let options = ControllerManagerOptions {
            node_monitor_period: self.times.grace / 8,
            node_monitor_grace_period: self.times.grace.mul_f64(plan.grace),
            ..ControllerManagerOptions::default()
        };
        let program = match plan.counted {
            true => Some(self.plane().controller_manager(&lent.server, &options)?),
            false => None,
        };
        let (timeline, server) = (seed.timeline().clone(), lent.server.clone());
        let plan = plan.of(&self.times);
        RealShoot::start(&seed.client(), timeline, name, plan, server, program).await
    }
}

/// Removes what the borrower before has left.
async fn clean(shoot: &Client) -> anyhow::Result<()> {
    let (delete, all) = (DeleteParams::default(), ListParams::default());
    let nodes = Api::<Node>::all(shoot.clone());
    nodes.delete_collection(&delete, &all).await?;
    let leases = Api::<Lease>::namespaced(shoot.clone(), LEASE_NAMESPACE);
    leases.delete_collection(&delete, &all).await?;
    Ok(())
}
