//! Where the scenarios are played: on real API servers. One etcd, one API server as the seed, and a pool of them as
//! shoots.

mod plan;
mod pool;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::plan::Plan;
use self::pool::Pool;
pub(crate) use self::pool::PooledServer;
use crate::seed::Seed;
use crate::times::Times;
use crate::{COUNTS, PROJECT};
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::fixtures::{KCM, MCM, PROBE_SECRET, shoot as shoot_object};
use watchdog_test_support::nodes::{LEASE_NAMESPACE, MachineTimes, Machines, RunningKubelets};
use watchdog_test_support::real::{
    ApiServerOptions, ControllerManagerOptions, KubeApiserver, NodeRecorder, RealControlPlane,
    create_cluster, create_deployment, create_kubeconfig_secret, create_namespace, grant_probe,
    install_seed_crds,
};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait::BOUND;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

const TIMES: Times = Times {
    // As short as leaves a real kube-controller-manager time to be stopped before it judges.
    grace: Duration::from_secs(16),
    machine_health_timeout: Duration::from_secs(240),
    bound: BOUND,
};

/// API servers beside the seed's. Each takes 5 % of a processor for nothing, and machines are at times three times
/// slower than at others; more would only be in the way of what is timed.
const POOL: usize = 4;

/// The user that the probe is in a shoot.
const PROBE: &str = "dependency-watchdog-probe";

/// The API servers that a scenario has borrowed; given back when they are dropped.
pub(crate) type HeldServers = Vec<PooledServer>;

/// Everything that is shared.
pub(crate) struct Backend {
    seed: Arc<Seed>,
    pool: Arc<Pool>,
    server: KubeApiserver,
    proxy: Option<FaultProxy>,
    times: Times,
    // Last, so that etcd outlives what talks to it.
    plane: RealControlPlane,
}

/// The machines, nodes and API server of a shoot.
pub(crate) struct ShootSite {
    /// On the seed.
    pub(crate) namespace: String,
    pub(crate) nodes: Arc<RunningKubelets>,
    pub(crate) machines: Arc<Machines>,
    /// Of the readiness of its nodes.
    pub(crate) recorder: NodeRecorder,
    _tasks: AbortOnDropHandle<()>,
    _workloads: WorkloadController,
    lent: PooledServer,
}

async fn watch_over(
    server: &KubeApiserver,
    name: &str,
    proxy: Option<&FaultProxy>,
) -> anyhow::Result<Arc<Seed>> {
    let client = server.client();
    install_seed_crds(&client).await?;
    create_namespace(&client, "garden").await?;
    let direct = server.kubeconfig_for("admin")?;
    let kubeconfig = proxy.map(|proxy| proxy.kubeconfig(&direct)).unwrap_or(direct);
    let folder = Scratch::new(name)?;
    Ok(Arc::new(Seed::start(&folder, client, &kubeconfig, &TIMES).await?))
}

async fn shoot_server(plane: &RealControlPlane, name: String) -> anyhow::Result<KubeApiserver> {
    let options = ApiServerOptions::new(&name).user(PROBE, &[]).lean();
    let server = plane.api_server_with(options).await?;
    grant_probe(&server.client(), PROBE).await?;
    Ok(server)
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
            .map(|index| shoot_server(&plane, format!("shoot-{index}")))
            .collect();
        let (server, shoots) = tokio::try_join!(plane.api_server("seed"), try_join_all(shoots))?;
        let proxy = match proxied {
            true => Some(FaultProxy::start((&server).into()).await?),
            false => None,
        };
        let seed = watch_over(&server, "seed", proxy.as_ref()).await?;
        Ok(Self {
            seed,
            pool: Pool::new(shoots),
            server,
            proxy,
            times,
            plane,
        })
    }

    /// The processes behind the Deployments. Where nodes are counted it is a real kube-controller-manager that judges
    /// them.
    fn run_control_plane(
        &self,
        seed: &Client,
        namespace: &str,
        server: &KubeApiserver,
        plan: &Plan,
        machines: &Arc<Machines>,
    ) -> anyhow::Result<WorkloadController> {
        let options = ControllerManagerOptions {
            node_monitor_period: TIMES.grace / 8,
            node_monitor_grace_period: TIMES.grace.mul_f64(plan.grace),
            ..ControllerManagerOptions::default()
        };
        let program = match plan.counted {
            true => Some(Arc::new(self.plane.controller_manager(server, &options)?)),
            false => None,
        };
        let machines = machines.clone();
        let options = WorkloadOptions::new(Duration::from_millis(300))
            .namespace(namespace)
            .before_ready(move |change| {
                let (program, machines) = (program.clone(), machines.clone());
                async move {
                    match change.name.as_str() {
                        KCM => {
                            if let Some(program) = program {
                                program.scale(change.replicas).await?;
                            }
                        }
                        MCM => machines.running.store(change.replicas > 0, Ordering::SeqCst),
                        _ => {}
                    }
                    Ok(())
                }
            });
        Ok(WorkloadController::start(seed, options))
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

    /// Ends the seed's API server: connections are refused.
    pub(crate) async fn stop_seed(&self) -> anyhow::Result<()> {
        self.server.stop().await
    }

    /// Starts it again, with the same data.
    pub(crate) async fn start_seed(&self) -> anyhow::Result<()> {
        self.server.start_again().await
    }

    /// Makes the seed forget its past: watches that go on from there get 410.
    pub(crate) async fn compact_seed(&self) -> anyhow::Result<()> {
        // The API server's own memory of the past ends with its process.
        self.server.stop().await?;
        self.plane.etcd.compact().await?;
        self.server.start_again().await
    }

    /// Kills the leader of etcd; it comes back as a follower.
    pub(crate) async fn lose_etcd_leader(&self) -> anyhow::Result<()> {
        self.plane.etcd.kill_leader().await
    }

    /// Waits until this many API servers are free and keeps them for one scenario. A scenario that needs several asks
    /// once.
    pub(crate) async fn reserve(&self, servers: usize) -> anyhow::Result<HeldServers> {
        self.pool.borrow(servers).await
    }

    /// A second seed with services of its own.
    pub(crate) async fn second_seed(&self, stock: &mut HeldServers) -> anyhow::Result<Arc<Seed>> {
        let lent = stock.pop().context("no API server reserved")?;
        let seed = watch_over(&lent.server, "second-seed", None).await?;
        // Ends with the seed: kept beside it by the scenario's stock.
        stock.insert(0, lent);
        Ok(seed)
    }

    /// Builds a shoot with everything in it ready. On a seed it has a Cluster as of a creation that has not come to its
    /// end: it is not probed yet. Without one it is a twin, which nobody watches over.
    pub(crate) async fn build(
        &self,
        stock: &mut HeldServers,
        seed: Option<&Seed>,
        name: &str,
        plan: &Plan,
    ) -> anyhow::Result<ShootSite> {
        let lent = stock.pop().context("no API server reserved")?;
        let namespace = format!("shoot--{PROJECT}--{name}");
        let shoot = lent.server.client();
        let is_watched = seed.is_some();
        // Without a Cluster a shoot is not watched over.
        let seed = &seed.unwrap_or(&self.seed).client;
        clean(&shoot).await?;
        create_namespace(seed, &namespace).await?;
        let nodes = RunningKubelets::new(&shoot, seed, &namespace, TIMES.renew_interval());
        let nodes = Arc::new(nodes);
        for index in 0..plan.nodes {
            nodes.start(&nodes.next_name(), &plan.zone(index)).await?;
        }
        let times = MachineTimes {
            period: self.times.grace / 8,
            creation: self.times.machine_step(),
            health_timeout: self.times.machine_health_timeout,
        };
        let machines = Machines::new(seed, &namespace, &shoot, nodes.clone(), times);
        let machines = Arc::new(machines);
        let workloads = self.run_control_plane(seed, &namespace, &lent.server, plan, &machines)?;
        for (name, replicas) in COUNTS {
            create_deployment(seed, &namespace, name, replicas).await?;
        }
        let site = ShootSite {
            _tasks: AbortOnDropHandle::new(tokio::spawn(machines.clone().run())),
            namespace,
            nodes,
            machines,
            recorder: NodeRecorder::start(&shoot).await?,
            _workloads: workloads,
            lent,
        };
        if is_watched {
            let kubeconfig = site.probe_kubeconfig()?;
            create_kubeconfig_secret(seed, &site.namespace, PROBE_SECRET, &kubeconfig).await?;
            let grace = format!("{}ms", TIMES.grace.mul_f64(plan.grace).as_millis());
            let mut object = shoot_object(&grace);
            if let Some(last) = object.pointer_mut("/status/lastOperation") {
                *last = json!({"type": "Create", "state": "Processing"});
            }
            create_cluster(seed, &site.namespace, object).await?;
        }
        Ok(site)
    }
}

/// Removes what the borrower before has left.
async fn clean(shoot: &Client) -> anyhow::Result<()> {
    create_namespace(shoot, LEASE_NAMESPACE).await?;
    let (delete, all) = (DeleteParams::default(), ListParams::default());
    let nodes = Api::<Node>::all(shoot.clone());
    nodes.delete_collection(&delete, &all).await?;
    let leases = Api::<Lease>::namespaced(shoot.clone(), LEASE_NAMESPACE);
    leases.delete_collection(&delete, &all).await?;
    Ok(())
}

impl ShootSite {
    /// An administrator's client for the shoot.
    pub(crate) fn client(&self) -> Client {
        self.api_server().client()
    }

    /// The shoot's API server.
    pub(crate) fn api_server(&self) -> &KubeApiserver {
        &self.lent.server
    }

    /// The kubeconfig that Gardener gives the probe.
    pub(crate) fn probe_kubeconfig(&self) -> anyhow::Result<String> {
        self.api_server().kubeconfig_for(PROBE)
    }
}
