//! A shoot on a real API server, with its control plane on the seed. The kubelets, machine-controller-manager and the
//! Deployment controller are simulated.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::{
    ControllerManager, KubeApiserver, NodeRecorder, RealControlPlane, create_cluster, create_deployment,
    create_kubeconfig_secret, create_namespace, grant_probe,
};
use crate::fault_proxy::FaultProxy;
use crate::fixtures::{self, CA, KCM, MCM, PROBE_SECRET};
use crate::history::timeline::{Dependant, Fact, Timeline};
use crate::nodes::{Cut, LEASE_NAMESPACE, MachineTimes, Machines, RunningKubelets};
use crate::wait::BOUND;
use crate::workload_controller::{WorkloadController, WorkloadOptions};

/// The dependants of each shoot, with their replicas: of machine-controller-manager two, so that a lost count shows.
pub const COUNTS: [(&str, i32); 3] = [(KCM, 1), (MCM, 2), (CA, 1)];

/// The user that the probe is in a shoot.
pub const PROBE: &str = "dependency-watchdog-probe";

/// From a change of the wanted replicas to that of the ready ones.
const WORKLOAD_DELAY: Duration = Duration::from_millis(300);

/// The description of a shoot.
#[derive(Clone, Copy, Debug)]
pub struct ShootOptions {
    /// Number of nodes.
    pub nodes: usize,
    /// Zones that they are spread over, `zone-1` and on.
    pub zones: usize,
    /// Kubelets renew four times in it.
    pub grace: Duration,
    /// A machine whose node is Unknown for this long is replaced.
    pub machine_health_timeout: Duration,
}

/// A shoot with its control plane.
#[must_use = "the shoot stops when this is dropped"]
pub struct RealShoot {
    /// On the seed; also the name of its Cluster.
    pub namespace: String,
    /// Its API server.
    pub server: Arc<KubeApiserver>,
    /// Before its API server.
    pub proxy: FaultProxy,
    /// Of the readiness of its nodes.
    pub nodes: NodeRecorder,
    pub kubelets: Arc<RunningKubelets>,
    /// Its machine-controller-manager.
    pub machines: Arc<Machines>,
    /// The pods of its control plane.
    pub workloads: WorkloadController,
    seed: Client,
    timeline: Arc<Timeline>,
    options: ShootOptions,
    _tasks: [AbortOnDropHandle<()>; 2],
    // Last, so that its processes outlive what talks to them.
    /// Of its own where it does not share one.
    pub plane: Option<RealControlPlane>,
}

/// The namespace of a shoot on the seed.
pub(super) fn namespace(shoot: &str) -> String {
    format!("shoot--real--{shoot}")
}

// === impl ShootOptions ===

impl ShootOptions {
    /// Nodes in one zone. Machines are replaced after fifteen grace periods: by default 40 s, and 10 min.
    pub fn nodes(nodes: usize, grace: Duration) -> Self {
        Self {
            nodes,
            zones: 1,
            grace,
            machine_health_timeout: grace * 15,
        }
    }

    fn zone(&self, node: usize) -> String {
        format!("zone-{}", node % self.zones.max(1) + 1)
    }

    fn machine_times(&self) -> MachineTimes {
        MachineTimes {
            period: self.grace / 8,
            // A minute where the grace period is 40 s.
            creation: self.grace.mul_f64(1.5),
            health_timeout: self.machine_health_timeout,
        }
    }
}

// === impl RealShoot ===

impl RealShoot {
    /// Starts everything. It is probed from [`RealShoot::hand_over`] on. Its nodes are judged by the
    /// kube-controller-manager, if there is one.
    pub async fn start(
        seed: &Client,
        timeline: Arc<Timeline>,
        name: &str,
        options: ShootOptions,
        server: Arc<KubeApiserver>,
        controller_manager: Option<ControllerManager>,
    ) -> anyhow::Result<Self> {
        let (namespace, shoot) = (namespace(name), server.client());
        create_namespace(seed, &namespace).await?;
        grant_probe(&shoot, PROBE).await?;
        create_namespace(&shoot, LEASE_NAMESPACE).await?;
        let mut kubelets = RunningKubelets::new(&shoot, seed, &namespace, options.grace / 4);
        if controller_manager.is_none() {
            kubelets = kubelets.spread();
        }
        let kubelets = Arc::new(kubelets);
        for node in 0..options.nodes {
            kubelets.start(&kubelets.next_name(), &options.zone(node)).await?;
            if controller_manager.is_some() {
                // The first node of a loss is silent for longer than the others, but not for a whole interval.
                tokio::time::sleep(options.grace / 40).await;
            }
        }
        let machines = Machines::new(
            seed,
            &namespace,
            &shoot,
            kubelets.clone(),
            options.machine_times(),
        );
        let machines = Arc::new(machines);
        let workloads = run_control_plane(seed, &namespace, controller_manager, machines.clone());
        for (name, replicas) in COUNTS {
            create_deployment(seed, &namespace, name, replicas).await?;
        }
        let tasks = [
            tokio::spawn(machines.clone().run()),
            tokio::spawn(elect(shoot.clone())),
        ];
        Ok(Self {
            proxy: FaultProxy::start((&*server).into()).await?,
            nodes: NodeRecorder::start(&shoot).await?,
            _tasks: tasks.map(AbortOnDropHandle::new),
            namespace,
            server,
            kubelets,
            machines,
            workloads,
            seed: seed.clone(),
            timeline,
            options,
            plane: None,
        })
    }

    /// The kubeconfig that Gardener gives the probe.
    pub fn probe_kubeconfig(&self) -> anyhow::Result<String> {
        self.server.kubeconfig_for(PROBE)
    }

    /// The same through the proxy.
    pub fn proxied_kubeconfig(&self) -> anyhow::Result<String> {
        Ok(self.proxy.kubeconfig(&self.probe_kubeconfig()?))
    }

    /// The objects that Gardener creates last: from then on the shoot is probed, through the proxy.
    pub async fn hand_over(&self) -> anyhow::Result<()> {
        self.hand_over_as(&self.namespace).await
    }

    /// Makes another shoot of the seed, without dependants, that has the same API server.
    pub async fn share(&self, name: &str) -> anyhow::Result<()> {
        let namespace = namespace(name);
        create_namespace(&self.seed, &namespace).await?;
        self.hand_over_as(&namespace).await
    }

    async fn hand_over_as(&self, name: &str) -> anyhow::Result<()> {
        let shoot = fixtures::shoot(&format!("{}ms", self.options.grace.as_millis()));
        self.create_cluster(name, &self.proxied_kubeconfig()?, shoot)
            .await
    }

    /// Makes the probe's Secret and a Cluster with this Shoot.
    pub async fn create_cluster(&self, name: &str, kubeconfig: &str, shoot: Value) -> anyhow::Result<()> {
        create_kubeconfig_secret(&self.seed, name, PROBE_SECRET, kubeconfig).await?;
        create_cluster(&self.seed, name, shoot).await
    }

    /// Cuts all nodes off.
    pub async fn cut_off(&self) {
        self.cut(Cut::All).await;
    }

    /// Cuts nodes off.
    pub async fn cut(&self, cut: Cut) {
        self.kubelets.cut(cut.clone()).await;
        let nodes = self.kubelets.list();
        let hit = nodes.iter().filter(|(name, zone)| cut.hits(name, zone)).count();
        let of = nodes.len();
        self.timeline.add(&self.namespace, Fact::Cut { cut: hit, of });
    }

    /// Connects the nodes again.
    pub fn reconnect(&self) {
        self.kubelets.reconnect();
        let of = self.kubelets.list().len();
        self.timeline.add(&self.namespace, Fact::Cut { cut: 0, of });
    }

    /// Waits until all dependants are at 0 and held down, with their counts recorded.
    pub async fn wait_down(&self, what: &str) -> anyhow::Result<()> {
        let is_recorded = |(name, count): &(&str, i32), found: &Dependant| {
            *name == found.name && found.recorded == Some(count.to_string())
        };
        let is_down = |found: &Dependant| {
            let recorded = COUNTS.iter().any(|count| is_recorded(count, found));
            (found.wanted, found.ready, found.held) == (0, 0, true) && recorded
        };
        self.timeline
            .until_dependants(what, &[&self.namespace], BOUND, is_down)
            .await
    }

    /// Waits until all dependants have their counts again and are not held down.
    pub async fn wait_restored(&self) -> anyhow::Result<()> {
        let shoots = [&self.namespace];
        self.timeline.until_restored(&shoots, &COUNTS, BOUND).await
    }
}

/// The processes behind the Deployments.
fn run_control_plane(
    seed: &Client,
    namespace: &str,
    controller_manager: Option<ControllerManager>,
    machines: Arc<Machines>,
) -> WorkloadController {
    let controller_manager = controller_manager.map(Arc::new);
    let options = WorkloadOptions::new(WORKLOAD_DELAY)
        .namespace(namespace)
        .before_ready(move |change| {
            let (controller_manager, machines) = (controller_manager.clone(), machines.clone());
            async move {
                match change.name.as_str() {
                    KCM => {
                        if let Some(program) = controller_manager {
                            program.scale(change.replicas).await?;
                        }
                    }
                    MCM => machines.running.store(change.replicas > 0, Ordering::SeqCst),
                    _ => {}
                }
                Ok(())
            }
        });
    WorkloadController::start(seed, options)
}

/// Renews the Lease of an election, as every component of a control plane does. kube-controller-manager has none here:
/// only one runs, and waiting for a dead one would only slow the tests down.
async fn elect(shoot: Client) {
    let leases: Api<Lease> = Api::namespaced(shoot, "kube-system");
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        let renewed = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "kube-scheduler"},
            "spec": {"holderIdentity": "one", "renewTime": MicroTime(Timestamp::now())},
        });
        let (parameters, renewed) = (
            PatchParams::apply("kube-scheduler").force(),
            Patch::Apply(renewed),
        );
        let renewed = leases.patch("kube-scheduler", &parameters, &renewed);
        // The API server makes the namespace by itself, soon.
        if let Err(error) = renewed.await {
            eprintln!("a renewal of an election failed: {error}");
        }
    }
}
