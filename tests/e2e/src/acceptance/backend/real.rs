//! Real API servers as a back-end: one etcd, one API server as the seed, and a pool of them as shoots.

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
use tonic::async_trait;

use super::machines::RealMachines;
use super::pool::{Pool, PooledServer};
use super::{Backend, Count, HeldServers, Plan, ShootBackend};
use crate::acceptance::seed::Seed;
use crate::acceptance::times::Times;
use crate::acceptance::{COUNTS, PROJECT};
use watchdog_test_support::fault_proxy::{FaultProxy, Upstream};
use watchdog_test_support::fixtures::{KCM, MCM, PROBE_SECRET, shoot as shoot_object};
use watchdog_test_support::real::{
    ApiServerOptions, ControllerManager, ControllerManagerOptions, KubeApiserver, LEASE_NAMESPACE,
    RealControlPlane, RunningKubelets, create_cluster, create_deployment, create_kubeconfig_secret,
    create_namespace, grant_probe, install_seed_crds,
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

/// Everything that is shared.
pub struct RealBackend {
    seed: Arc<Seed>,
    pool: Arc<Pool>,
    server: KubeApiserver,
    proxy: Option<FaultProxy>,
    times: Times,
    // Last, so that etcd outlives what talks to it.
    plane: RealControlPlane,
}

/// A shoot with a real API server.
struct RealSite {
    namespace: String,
    nodes: Arc<RunningKubelets>,
    machines: Arc<RealMachines>,
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
    let admin = server.kubeconfig_for("admin")?;
    let admin = proxy.map(|proxy| proxy.kubeconfig(&admin)).unwrap_or(admin);
    let folder = Scratch::new(name)?;
    Ok(Arc::new(
        Seed::start(&folder, client, |_| admin.clone(), &TIMES).await?,
    ))
}

async fn shoot_server(plane: &RealControlPlane, name: String) -> anyhow::Result<KubeApiserver> {
    let options = ApiServerOptions::new(&name).user(PROBE, &[]).lean();
    let server = plane.api_server_with(options).await?;
    grant_probe(&server.client(), PROBE).await?;
    Ok(server)
}

// === impl RealBackend ===

impl RealBackend {
    /// Starts etcd, the API servers and the services.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn start() -> anyhow::Result<Self> {
        let plane = RealControlPlane::start("acceptance").await?;
        Self::start_on(plane, POOL, false, TIMES.impatient()).await
    }

    /// The same for few shoots, with three members of etcd and a fault proxy between the services and the seed.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn start_behind_proxy(shoots: usize) -> anyhow::Result<Self> {
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
        machines: &Arc<RealMachines>,
    ) -> anyhow::Result<WorkloadController> {
        let options = ControllerManagerOptions {
            node_monitor_period: TIMES.grace / 8,
            node_monitor_grace_period: TIMES.grace.mul_f64(plan.grace),
            ..ControllerManagerOptions::default()
        };
        let program = match plan.toll != Count::No {
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
                        KCM => follow(program.as_deref(), change.replicas > 0).await?,
                        MCM => machines.running.store(change.replicas > 0, Ordering::SeqCst),
                        _ => {}
                    }
                    Ok(())
                }
            });
        Ok(WorkloadController::start(seed, options))
    }
}

async fn follow(program: Option<&ControllerManager>, runs: bool) -> anyhow::Result<()> {
    match program {
        Some(program) if runs => program.start().await,
        Some(program) => program.stop().await,
        None => Ok(()),
    }
}

#[async_trait]
impl Backend for RealBackend {
    fn times(&self) -> Times {
        self.times
    }

    fn seed(&self) -> Arc<Seed> {
        self.seed.clone()
    }

    fn proxy(&self) -> Option<&FaultProxy> {
        self.proxy.as_ref()
    }

    async fn stop_seed(&self) -> anyhow::Result<()> {
        self.server.stop().await
    }

    async fn start_seed(&self) -> anyhow::Result<()> {
        self.server.start_again().await
    }

    async fn compact_seed(&self) -> anyhow::Result<()> {
        // The API server's own memory of the past ends with its process.
        self.server.stop().await?;
        self.plane.etcd.compact().await?;
        self.server.start_again().await
    }

    async fn lose_etcd_leader(&self) -> anyhow::Result<()> {
        self.plane.etcd.kill_leader().await
    }

    fn has_twin(&self, plan: &Plan) -> bool {
        plan.toll == Count::Both
    }

    async fn reserve(&self, servers: usize) -> anyhow::Result<HeldServers> {
        self.pool.borrow(servers).await
    }

    async fn second_seed(&self, stock: &mut HeldServers) -> anyhow::Result<Arc<Seed>> {
        let lent = stock.pop().context("no API server reserved")?;
        let seed = watch_over(&lent.server, "second-seed", None).await?;
        // Ends with the seed: kept beside it by the scenario's stock.
        stock.insert(0, lent);
        Ok(seed)
    }

    async fn build(
        &self,
        stock: &mut HeldServers,
        seed: Option<&Seed>,
        name: &str,
        plan: &Plan,
    ) -> anyhow::Result<Box<dyn ShootBackend>> {
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
        let machines = Arc::new(RealMachines::new(
            seed.clone(),
            &namespace,
            shoot,
            nodes.clone(),
            self.times,
        ));
        let workloads = self.run_control_plane(seed, &namespace, &lent.server, plan, &machines)?;
        for (name, replicas) in COUNTS {
            create_deployment(seed, &namespace, name, replicas).await?;
        }
        let site = RealSite {
            _tasks: AbortOnDropHandle::new(tokio::spawn(machines.clone().run())),
            namespace,
            nodes,
            machines,
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
        Ok(Box::new(site))
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

#[async_trait]
impl ShootBackend for RealSite {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    async fn client(&self) -> anyhow::Result<Client> {
        Ok(self.lent.server.client())
    }

    fn upstream(&self) -> Upstream {
        Upstream::from(&*self.lent.server)
    }

    fn probe_kubeconfig(&self) -> anyhow::Result<String> {
        self.lent.server.kubeconfig_for(PROBE)
    }

    async fn nodes(&self) -> Vec<(String, String)> {
        self.nodes.list().await
    }

    async fn cut(&self, zone: Option<&str>) {
        self.nodes.cut(zone).await;
    }

    async fn reconnect(&self) {
        self.nodes.reconnect().await;
    }

    async fn stop_api_server(&self) -> anyhow::Result<()> {
        self.lent.server.stop().await
    }

    async fn start_api_server(&self) -> anyhow::Result<()> {
        // It answers for seconds before it is ready, and kubelets do not wait for that.
        self.nodes.reconnect().await;
        self.lent.server.start_again().await
    }

    fn machines_replaced(&self) -> u64 {
        self.machines.replaced.load(Ordering::SeqCst)
    }

    async fn machines_run(&self) -> anyhow::Result<bool> {
        self.machines.all_run().await
    }
}
