//! One API server as the seed, another as the shoot, and a real kube-controller-manager that judges the shoot's nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM, PROBE_SECRET};
use watchdog_test_support::real::{
    ApiServerOptions, ControllerManagerOptions, FleetOptions, KubeApiserver, MachineOptions, NodeRecorder,
    RealControlPlane, RunningKubelets, create_cluster, create_deployment, create_kubeconfig_secret,
    create_namespace, grant_probe, install_seed_crds, scale_of,
};
use watchdog_test_support::wait;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

pub(crate) const SHOOT: &str = "shoot--real--one";

/// Instead of 40 s; everything else in proportion.
pub(crate) const GRACE: Duration = Duration::from_secs(16);

/// The dependants with their replicas.
pub(crate) const COUNTS: [(&str, i32); 3] = [(KCM, 1), (MCM, 2), (CA, 1)];

/// The user that the probe is in the shoot.
const PROBE: &str = "dependency-watchdog-probe";

/// A shoot with its control plane on the seed, all of it real except the kubelets and the Deployment controller.
pub(crate) struct Fixture {
    pub(crate) seed: KubeApiserver,
    shoot: KubeApiserver,
    pub(crate) fleet: RunningKubelets,
    pub(crate) nodes: NodeRecorder,
    _workloads: WorkloadController,
    // Last, so that its processes outlive what talks to them.
    pub(crate) plane: RealControlPlane,
}

impl Fixture {
    pub(crate) async fn start(name: &str, seed: ApiServerOptions) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start(name).await?;
        let shoot = ApiServerOptions::new("shoot").user(PROBE, &[]);
        let (seed, shoot) = tokio::try_join!(plane.api_server_with(seed), plane.api_server_with(shoot))?;
        install_seed_crds(&seed.client()).await?;
        for namespace in ["garden", SHOOT] {
            create_namespace(&seed.client(), namespace).await?;
        }
        grant_probe(&shoot.client(), PROBE).await?;
        let options = FleetOptions {
            nodes: 5,
            prefix: "node".to_owned(),
            zones: ["zone-a", "zone-b", "zone-c"].map(str::to_owned).to_vec(),
            renew_interval: GRACE / 4,
            machines: MachineOptions {
                seed: seed.client(),
                namespace: SHOOT.to_owned(),
            },
        };
        let fleet = RunningKubelets::start(&shoot.client(), options).await?;
        let nodes = NodeRecorder::start(&shoot.client()).await?;
        let options = ControllerManagerOptions {
            node_monitor_period: Duration::from_secs(2),
            node_monitor_grace_period: GRACE,
            ..ControllerManagerOptions::default()
        };
        let program = Arc::new(plane.controller_manager(&shoot, &options)?);
        let options = WorkloadOptions::new(Duration::from_millis(300))
            .namespace(SHOOT)
            .before_ready(move |change| {
                let program = program.clone();
                async move {
                    match (change.name == KCM, change.replicas > 0) {
                        (true, true) => program.start().await,
                        (true, false) => program.stop().await,
                        (false, _) => Ok(()),
                    }
                }
            });
        let workloads = WorkloadController::start(&seed.client(), options);
        for (name, replicas) in COUNTS {
            create_deployment(&seed.client(), SHOOT, name, replicas).await?;
        }
        let fixture = Self {
            seed,
            shoot,
            fleet,
            nodes,
            _workloads: workloads,
            plane,
        };
        fixture.wait_for("the control plane runs", COUNTS).await?;
        Ok(fixture)
    }

    /// The object that Gardener creates last: from then on the shoot is probed.
    pub(crate) async fn hand_over(&self) -> anyhow::Result<()> {
        let kubeconfig = self.shoot.kubeconfig_for(PROBE)?;
        create_kubeconfig_secret(&self.seed.client(), SHOOT, PROBE_SECRET, &kubeconfig).await?;
        let grace = format!("{}s", GRACE.as_secs());
        create_cluster(&self.seed.client(), SHOOT, fixtures::shoot(&grace)).await
    }

    pub(crate) async fn wait_for(&self, what: &str, replicas: [(&str, i32); 3]) -> anyhow::Result<()> {
        wait::until_true(what, Duration::from_secs(60), || async {
            for (name, wanted) in replicas {
                if scale_of(&self.seed.client(), SHOOT, name).await? != (wanted, wanted) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    pub(crate) async fn wait_down(&self, what: &str) -> anyhow::Result<()> {
        self.wait_for(what, COUNTS.map(|(name, _)| (name, 0))).await
    }

    pub(crate) async fn annotations(&self, name: &str) -> anyhow::Result<BTreeSet<(String, String)>> {
        let deployments: Api<Deployment> = Api::namespaced(self.seed.client(), SHOOT);
        let all = deployments.get(name).await?.metadata.annotations;
        let ours = |(key, value): (String, String)| {
            let key = key.strip_prefix("dependency-watchdog.gardener.cloud/")?;
            Some((key.to_owned(), value))
        };
        Ok(all.unwrap_or_default().into_iter().filter_map(ours).collect())
    }
}
