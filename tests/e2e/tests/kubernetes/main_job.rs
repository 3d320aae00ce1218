//! The main job on real Kubernetes: one API server as the seed, another as the shoot, a real kube-controller-manager
//! that judges the shoot's nodes, and the three services as three processes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM, PROBE_SECRET};
use watchdog_test_support::real::{
    ApiServerOptions, ControllerManager, ControllerManagerOptions, FleetOptions, KubeApiserver,
    MachineOptions, NodeRecorder, RealControlPlane, RunningKubelets, create_cluster, create_deployment,
    create_kubeconfig_secret, create_namespace, install_seed_crds, node_readiness, scale_of,
};
use watchdog_test_support::wait;
use watchdog_test_support::watchdog::{Service, Setup};
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

pub(crate) const SHOOT: &str = "shoot--real--one";

/// Instead of 40 s; everything else in proportion.
pub(crate) const GRACE: Duration = Duration::from_secs(16);

/// A shoot with its control plane on the seed, all of it real except the kubelets and the Deployment controller.
pub(crate) struct Fixture {
    pub(crate) seed: KubeApiserver,
    shoot: KubeApiserver,
    pub(crate) fleet: RunningKubelets,
    pub(crate) nodes: NodeRecorder,
    controller_manager: Arc<ControllerManager>,
    workloads: WorkloadController,
    // Last, so that its processes outlive what talks to them.
    pub(crate) plane: RealControlPlane,
}

impl Fixture {
    async fn start(name: &str) -> anyhow::Result<Self> {
        Self::start_with(name, ApiServerOptions::new("seed")).await
    }

    pub(crate) async fn start_with(name: &str, seed: ApiServerOptions) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start(name).await?;
        let shoot = ApiServerOptions::new("shoot").user("dependency-watchdog-probe", &[]);
        let (seed, shoot) = tokio::try_join!(plane.api_server_with(seed), plane.api_server_with(shoot))?;
        install_seed_crds(&seed.client()).await?;
        for namespace in ["garden", SHOOT] {
            create_namespace(&seed.client(), namespace).await?;
        }
        grant_probe(&shoot.client()).await?;
        let options = FleetOptions {
            nodes: 5,
            renew_interval: GRACE / 4,
            lease_duration_seconds: i32::try_from(GRACE.as_secs())?,
            status_interval: GRACE / 4,
            machines: Some(MachineOptions {
                seed: seed.client(),
                namespace: SHOOT.to_owned(),
            }),
            ..FleetOptions::default()
        };
        let fleet = RunningKubelets::start(&shoot.client(), options).await?;
        let nodes = NodeRecorder::start(&shoot.client()).await?;
        let options = ControllerManagerOptions {
            node_monitor_period: Duration::from_secs(2),
            node_monitor_grace_period: GRACE,
            ..ControllerManagerOptions::default()
        };
        let controller_manager = Arc::new(plane.controller_manager(&shoot, &options)?);
        let program = controller_manager.clone();
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
        for (name, replicas) in [(KCM, 1), (MCM, 2), (CA, 1)] {
            create_deployment(&seed.client(), SHOOT, name, replicas).await?;
        }
        let fixture = Self {
            seed,
            shoot,
            fleet,
            nodes,
            controller_manager,
            workloads,
            plane,
        };
        fixture
            .wait_for("the control plane runs", [(KCM, 1), (MCM, 2), (CA, 1)])
            .await?;
        Ok(fixture)
    }

    /// The object that Gardener creates last: from then on the shoot is probed.
    pub(crate) async fn hand_over(&self) -> anyhow::Result<()> {
        let kubeconfig = self.shoot.kubeconfig_for("dependency-watchdog-probe")?;
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

    pub(crate) async fn annotations(&self, name: &str) -> anyhow::Result<BTreeSet<(String, String)>> {
        let deployments: Api<Deployment> = Api::namespaced(self.seed.client(), SHOOT);
        let all = deployments
            .get(name)
            .await?
            .metadata
            .annotations
            .unwrap_or_default();
        let ours = |key: &str| {
            key.strip_prefix("dependency-watchdog.gardener.cloud/")
                .map(str::to_owned)
        };
        Ok(all
            .into_iter()
            .filter_map(|(key, value)| Some((ours(&key)?, value)))
            .collect())
    }
}

/// The permissions that Gardener grants the probe in a shoot: get and list of nodes and node leases, no more.
async fn grant_probe(shoot: &Client) -> anyhow::Result<()> {
    let role: ClusterRole = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "probe"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list"]},
        ],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "probe"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "probe"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "dependency-watchdog-probe"}],
    }))?;
    Api::all(shoot.clone())
        .create(&PostParams::default(), &role)
        .await?;
    Api::all(shoot.clone())
        .create(&PostParams::default(), &binding)
        .await?;
    Ok(())
}

async fn verdict(setup: &Setup, lease_probe: &Service) -> anyhow::Result<probe::Verdict> {
    let mut client = LeaseProbeServiceClient::new(setup.channel(lease_probe)?);
    let request = probe::GetVerdictRequest {
        shoot: SHOOT.to_owned(),
    };
    let response = client.get_verdict(request).await?.into_inner();
    response
        .verdict
        .ok_or_else(|| anyhow::anyhow!("an answer without a verdict"))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_watchdog_the_nodes_turn_unknown() {
    let fixture = Fixture::start("unprotected").await.unwrap();
    fixture.fleet.cut_all().await;
    wait::until_true("all nodes are Unknown", GRACE * 3, || async {
        Ok(node_readiness(&fixture.shoot.client())
            .await?
            .values()
            .all(|status| status == "Unknown"))
    })
    .await
    .unwrap();
    assert_eq!(fixture.nodes.ever_unknown().len(), 5);
    assert!(fixture.controller_manager.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_meltdown_is_prevented_and_everything_restored() {
    let fixture = Fixture::start("main-job").await.unwrap();
    let prober = fixtures::prober("probeInterval: 10s\ninitialDelay: 1s", "2s");
    let setup = Setup::new(fixture.plane.scratch(), &prober, &fixtures::weeder("5m")).unwrap();
    let kubeconfig = fixture.seed.kubeconfig_for("admin").unwrap();
    let lease_probe = setup.lease_probe("lease-probe-0", &kubeconfig).await.unwrap();
    let coordinator = setup
        .coordinator("scaling-coordinator-0", &kubeconfig, &[])
        .await
        .unwrap();
    for service in [&lease_probe, &coordinator] {
        service.wait_ready().await.unwrap();
    }
    fixture.hand_over().await.unwrap();
    wait::until_true("the shoot is healthy", Duration::from_secs(20), || async {
        Ok(verdict(&setup, &lease_probe).await?.outcome() == probe::Outcome::Healthy)
    })
    .await
    .unwrap();

    fixture.fleet.cut_all().await;
    let cut = Instant::now();
    fixture
        .wait_for("all dependants are at 0", [(KCM, 0), (MCM, 0), (CA, 0)])
        .await
        .unwrap();
    let took = cut.elapsed();
    assert!(
        !fixture.controller_manager.is_running(),
        "the real kube-controller-manager is stopped"
    );
    // 60 % are enough to scale down; the verdict that names all of them is that of the next probe.
    wait::until_true("all five leases have expired", GRACE, || async {
        let lost = verdict(&setup, &lease_probe).await?;
        anyhow::ensure!(
            lost.outcome() == probe::Outcome::LeasesExpired,
            "{}",
            lost.message
        );
        let evidence = lost.evidence.unwrap_or_default();
        Ok((evidence.candidates, evidence.expired) == (5, 5))
    })
    .await
    .unwrap();
    let down: Vec<String> = fixture
        .workloads
        .ready_changes()
        .into_iter()
        .filter(|c| c.replicas == 0)
        .map(|c| c.name)
        .collect();
    assert_eq!(down.len(), 3, "{down:?}");
    assert_eq!(down[2], KCM, "kube-controller-manager goes down last: {down:?}");
    let recorded = fixture.annotations(MCM).await.unwrap();
    assert!(
        recorded.contains(&("replicas".to_owned(), "2".to_owned())),
        "{recorded:?}"
    );
    assert!(
        recorded.contains(&("meltdown-protection-active".to_owned(), String::new())),
        "{recorded:?}"
    );

    // The time in which the nodes would have been declared lost, twice.
    wait::holds("no node turns Unknown", GRACE * 2, || async {
        Ok(fixture.nodes.ever_unknown().is_empty())
    })
    .await
    .unwrap();

    fixture.fleet.reconnect_all().await;
    fixture
        .wait_for("everything is restored", [(KCM, 1), (MCM, 2), (CA, 1)])
        .await
        .unwrap();
    let changes = fixture.workloads.ready_changes();
    let up: Vec<&str> = changes
        .iter()
        .skip(6)
        .filter(|c| c.previous == 0)
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(up, [KCM, MCM, CA], "restored in order");
    wait::until_true(
        "nothing is marked as held down",
        Duration::from_secs(20),
        || async {
            for name in [KCM, MCM, CA] {
                let marks = fixture.annotations(name).await?;
                if marks.iter().any(|(key, _)| key == "meltdown-protection-active") {
                    return Ok(false);
                }
            }
            Ok(true)
        },
    )
    .await
    .unwrap();
    assert!(
        fixture.controller_manager.is_running(),
        "the real kube-controller-manager runs again"
    );
    wait::holds("no node turns Unknown afterwards", GRACE, || async {
        Ok(fixture.nodes.ever_unknown().is_empty())
    })
    .await
    .unwrap();
    assert_eq!(fixture.fleet.failures(), 0);
    eprintln!("all dependants at 0 after {took:?}, grace period {GRACE:?}");
    for service in [&lease_probe, &coordinator] {
        service.process.sigterm().unwrap();
        let status = service.process.wait_exit(Duration::from_secs(25)).await.unwrap();
        assert_eq!(status.code(), Some(0), "a clean stop");
    }
}
