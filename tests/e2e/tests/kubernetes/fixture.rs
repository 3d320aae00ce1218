//! One API server as the seed, another as the shoot, each with its etcd, and a real kube-controller-manager that judges
//! the shoot's nodes.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM, PROBE_SECRET};
use watchdog_test_support::history::History;
use watchdog_test_support::history::invariants::{Expectation, NodeTimes};
use watchdog_test_support::history::timeline::{Dependant, Fact, Recorder, Timeline};
use watchdog_test_support::nodes::{Cut, LEASE_NAMESPACE, RunningKubelets};
use watchdog_test_support::real::{
    ApiServerOptions, ControllerManagerOptions, KubeApiserver, NodeRecorder, RealControlPlane,
    create_cluster, create_deployment, create_kubeconfig_secret, create_namespace, grant_probe,
    install_seed_crds,
};
use watchdog_test_support::wait::BOUND;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

pub(crate) const SHOOT: &str = "shoot--real--one";

/// The default of kube-controller-manager, as [`ControllerManagerOptions`] has it: what lease-probe promises begins at
/// 30 s, and a busy machine needs the seconds between the verdict and the first node that is Unknown.
pub(crate) const GRACE: Duration = Duration::from_secs(40);

/// The dependants with their replicas.
pub(crate) const COUNTS: [(&str, i32); 3] = [(KCM, 1), (MCM, 2), (CA, 1)];

/// The user that the probe is in the shoot.
const PROBE: &str = "dependency-watchdog-probe";

/// A shoot with its control plane on the seed, all of it real except the kubelets and the Deployment controller.
pub(crate) struct Fixture {
    pub(crate) seed: KubeApiserver,
    shoot: KubeApiserver,
    fleet: RunningKubelets,
    pub(crate) nodes: NodeRecorder,
    pub(crate) timeline: Arc<Timeline>,
    _recorder: Recorder,
    _workloads: WorkloadController,
    _election: AbortOnDropHandle<()>,
    // Last, so that their processes outlive what talks to them.
    pub(crate) shoot_plane: RealControlPlane,
    pub(crate) plane: RealControlPlane,
}

impl Fixture {
    pub(crate) async fn start(name: &str, seed: ApiServerOptions) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start(name).await?;
        let shoot_plane = RealControlPlane::start_with_small_etcd(name).await?;
        let shoot = ApiServerOptions::new("shoot").user(PROBE, &[]);
        let (seed, shoot) =
            tokio::try_join!(plane.api_server_with(seed), shoot_plane.api_server_with(shoot))?;
        install_seed_crds(&seed.client()).await?;
        for namespace in ["garden", SHOOT] {
            create_namespace(&seed.client(), namespace).await?;
        }
        grant_probe(&shoot.client(), PROBE).await?;
        create_namespace(&shoot.client(), LEASE_NAMESPACE).await?;
        let fleet = RunningKubelets::new(&shoot.client(), &seed.client(), SHOOT, GRACE / 4);
        for zone in ["zone-a", "zone-b", "zone-c", "zone-a", "zone-b"] {
            fleet.start(&fleet.next_name(), zone).await?;
            // Kubelets renew at different times: the first node of a loss is silent for longer than the others.
            tokio::time::sleep(GRACE / 40).await;
        }
        let election = AbortOnDropHandle::new(tokio::spawn(elect(shoot.client())));
        let nodes = NodeRecorder::start(&shoot.client()).await?;
        let (timeline, recorder) = Timeline::start(&seed.client()).await?;
        let options = ControllerManagerOptions::default();
        let program = Arc::new(shoot_plane.controller_manager(&shoot, &options)?);
        let options = WorkloadOptions::new(Duration::from_millis(300))
            .namespace(SHOOT)
            .before_ready(move |change| {
                let program = program.clone();
                async move {
                    if change.name == KCM {
                        program.scale(change.replicas).await?;
                    }
                    Ok(())
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
            timeline,
            _recorder: recorder,
            _workloads: workloads,
            _election: election,
            shoot_plane,
            plane,
        };
        fixture.wait_restored().await?;
        Ok(fixture)
    }

    /// The object that Gardener creates last: from then on the shoot is probed.
    pub(crate) async fn hand_over(&self) -> anyhow::Result<()> {
        let kubeconfig = self.shoot.kubeconfig_for(PROBE)?;
        create_kubeconfig_secret(&self.seed.client(), SHOOT, PROBE_SECRET, &kubeconfig).await?;
        let grace = format!("{}s", GRACE.as_secs());
        create_cluster(&self.seed.client(), SHOOT, fixtures::shoot(&grace)).await
    }

    pub(crate) async fn cut_off(&self) {
        self.fleet.cut(Cut::All).await;
        let of = self.fleet.list().len();
        self.timeline.add(SHOOT, Fact::Cut { cut: of, of });
    }

    pub(crate) fn reconnect(&self) {
        self.fleet.reconnect();
        let of = self.fleet.list().len();
        self.timeline.add(SHOOT, Fact::Cut { cut: 0, of });
    }

    /// Waits until all dependants are at 0 and held down, with their counts recorded.
    pub(crate) async fn wait_down(&self, what: &str) -> anyhow::Result<()> {
        let is_recorded = |(name, count): &(&str, i32), found: &Dependant| {
            *name == found.name && found.recorded == Some(count.to_string())
        };
        let is_down = |found: &Dependant| {
            let recorded = COUNTS.iter().any(|count| is_recorded(count, found));
            (found.wanted, found.ready, found.held) == (0, 0, true) && recorded
        };
        self.timeline
            .until_dependants(what, &[SHOOT], BOUND, is_down)
            .await
    }

    pub(crate) async fn wait_restored(&self) -> anyhow::Result<()> {
        self.timeline.until_restored(&[SHOOT], &COUNTS, BOUND).await
    }

    /// Judges what has happened until everything was restored.
    pub(crate) fn check_history(&self) -> anyhow::Result<()> {
        let expected = Expectation {
            counts: COUNTS.to_vec(),
            nodes: Some(NodeTimes {
                grace: GRACE,
                renew_interval: GRACE / 4,
                threshold: 0.6,
            }),
            restored: true,
            verdicts: false,
        };
        // The Go program's Lease says who acts here.
        let history = History::new(Vec::new());
        history.check_with(&self.timeline, [SHOOT], &expected).check()
    }
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
