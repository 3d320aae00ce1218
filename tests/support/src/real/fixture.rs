//! A seed on a real API server, any number of shoots with one of their own each, and the programs beside it. The
//! kubelets and the Deployment controller are simulated.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::{
    ApiServerOptions, ControllerManagerOptions, KubeApiserver, NodeRecorder, RealControlPlane,
    create_cluster, create_deployment, create_kubeconfig_secret, create_namespace, create_released_lease,
    grant_probe, install_seed_crds,
};
use crate::fault_proxy::FaultProxy;
use crate::fixtures::{self, CA, KCM, MCM, PROBE_SECRET};
use crate::history::invariants::{Expectation, NodeTimes};
use crate::history::timeline::{Dependant, Fact, Recorder, Timeline};
use crate::history::{History, HistoryReport, LEADER_LEASE};
use crate::nodes::{Cut, LEASE_NAMESPACE, RunningKubelets};
use crate::process::Command;
use crate::scratch::Scratch;
use crate::wait::BOUND;
use crate::watchdog::{Service, ServiceKind, Setup};
use crate::workload_controller::{WorkloadController, WorkloadOptions};

/// The dependants of each shoot, with their replicas: of machine-controller-manager two, so that a lost count shows.
pub const COUNTS: [(&str, i32); 3] = [(KCM, 1), (MCM, 2), (CA, 1)];

/// The names of the programs where a test needs one of each.
pub const REPLICAS: [(ServiceKind, &str); 3] = [
    (ServiceKind::LeaseProbe, "lease-probe-0"),
    (ServiceKind::Coordinator, "scaling-coordinator-0"),
    (ServiceKind::Weeder, "weeder-0"),
];

/// The grace period where no kube-controller-manager judges the nodes: kubelets renew every 4 s and a Lease is expired
/// after 12 s, so that a busy machine loses none.
const GRACE: Duration = Duration::from_secs(16);

/// From a change of the wanted replicas to that of the ready ones.
const WORKLOAD_DELAY: Duration = Duration::from_millis(300);

/// The zones of a shoot's nodes.
const ZONES: [&str; 5] = ["zone-a", "zone-b", "zone-c", "zone-a", "zone-b"];

/// The user that the probe is in a shoot.
const PROBE: &str = "dependency-watchdog-probe";

/// How a fixture starts.
#[derive(Clone, Debug)]
pub struct FixtureOptions {
    name: String,
    shoots: Vec<String>,
    seed: Option<ApiServerOptions>,
    users: Vec<String>,
    grace: Duration,
    is_judged: bool,
    prober: String,
}

/// A seed with its shoots.
#[must_use = "everything stops when this is dropped"]
pub struct RealFixture {
    /// The seed's API server.
    pub seed: KubeApiserver,
    /// Starts programs.
    pub setup: Setup,
    /// The record of the seed.
    pub timeline: Arc<Timeline>,
    /// The shoots, in the order of the options.
    pub shoots: Vec<RealShoot>,
    grace: Duration,
    is_audited: bool,
    _recorder: Recorder,
    // Last, so that its processes outlive what talks to them.
    pub plane: RealControlPlane,
}

/// A shoot with its control plane on the seed, all of it real except the kubelets and the Deployment controller.
#[must_use = "the shoot stops when this is dropped"]
pub struct RealShoot {
    /// On the seed.
    pub namespace: String,
    /// Its API server.
    pub server: KubeApiserver,
    /// Between lease-probe and its API server.
    pub proxy: FaultProxy,
    /// Of the readiness of its nodes.
    pub nodes: NodeRecorder,
    /// The pods of its control plane.
    pub workloads: WorkloadController,
    seed: Client,
    kubelets: RunningKubelets,
    timeline: Arc<Timeline>,
    grace: Duration,
    _election: AbortOnDropHandle<()>,
    // Last, so that its processes outlive what talks to them.
    /// Of its own where its nodes are judged.
    pub plane: Option<RealControlPlane>,
}

// === impl FixtureOptions ===

impl FixtureOptions {
    /// Shoots of five nodes by their short names, which are probed once the fixture has started. `name` is part of the
    /// name of the temporary folder.
    pub fn new(name: &str, shoots: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            shoots: shoots.iter().map(ToString::to_string).collect(),
            seed: None,
            users: REPLICAS.map(|(_, name)| name.to_owned()).into(),
            grace: GRACE,
            is_judged: false,
            prober: fixtures::prober("probeInterval: 5s\ninitialDelay: 1s\nprobeTimeout: 3s", "500ms"),
        }
    }

    /// A real kube-controller-manager judges the nodes by this grace period. A shoot has an etcd of its own, and is
    /// probed from [`RealShoot::hand_over`] on.
    pub fn judged(mut self, grace: Duration) -> Self {
        self.is_judged = true;
        self.grace = grace;
        self
    }

    /// More names of replicas, which are users on the seed. Their writes are recorded.
    pub fn users(mut self, users: &[&str]) -> Self {
        self.users.extend(users.iter().map(ToString::to_string));
        self
    }

    /// A seed whose users are these, and whose record of writes is not kept.
    pub fn seed(mut self, seed: ApiServerOptions) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Another configuration file of lease-probe and the coordinator.
    pub fn prober(mut self, prober: &str) -> Self {
        prober.clone_into(&mut self.prober);
        self
    }
}

// === impl RealFixture ===

impl RealFixture {
    pub async fn start(options: FixtureOptions) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start(&options.name).await?;
        let is_audited = options.seed.is_none();
        let seed = options.seed.clone().unwrap_or_else(|| {
            let users: Vec<_> = options.users.iter().map(String::as_str).collect();
            ApiServerOptions::new("seed").lean().audited(&users)
        });
        let servers = options
            .shoots
            .iter()
            .map(|name| shoot_server(&plane, &options, name));
        let (seed, servers) = tokio::try_join!(plane.api_server_with(seed), try_join_all(servers))?;
        let client = seed.client();
        install_seed_crds(&client).await?;
        create_namespace(&client, "garden").await?;
        for lease in [LEADER_LEASE, "weeder-leader"] {
            create_released_lease(&client, lease).await?;
        }
        let (timeline, recorder) = Timeline::start(&client).await?;
        let shoots = options.shoots.iter().zip(servers);
        let shoots = shoots.map(|(name, (server, own))| {
            RealShoot::start(&client, &options, name, server, own, timeline.clone())
        });
        let fixture = Self {
            setup: Setup::new(plane.scratch(), &options.prober, &fixtures::weeder("1m"))?,
            shoots: try_join_all(shoots).await?,
            seed,
            timeline,
            grace: options.grace,
            is_audited,
            _recorder: recorder,
            plane,
        };
        for shoot in &fixture.shoots {
            shoot.wait_restored().await?;
            if !options.is_judged {
                shoot.hand_over().await?;
            }
        }
        Ok(fixture)
    }

    /// The test's folder.
    pub fn scratch(&self) -> &Arc<Scratch> {
        self.plane.scratch()
    }

    /// A shoot by its short name.
    pub fn shoot(&self, name: &str) -> anyhow::Result<&RealShoot> {
        let namespace = namespace(name);
        let mut shoots = self.shoots.iter();
        shoots
            .find(|shoot| shoot.namespace == namespace)
            .with_context(|| format!("no shoot {name}"))
    }

    /// A proxy before the seed's API server.
    pub async fn proxy_to_seed(&self) -> anyhow::Result<FaultProxy> {
        proxy(&self.seed).await
    }

    /// Starts a replica of a program under the name of its user on the seed, and waits until it is ready.
    pub async fn start_replica(&self, kind: ServiceKind, name: &str) -> anyhow::Result<Service> {
        let kubeconfig = self.seed.kubeconfig_for(name)?;
        self.start_with_kubeconfig(kind, name, &kubeconfig).await
    }

    /// The same through a proxy before the seed.
    pub async fn start_behind(
        &self,
        proxy: &FaultProxy,
        kind: ServiceKind,
        name: &str,
    ) -> anyhow::Result<Service> {
        let kubeconfig = proxy.kubeconfig(&self.seed.kubeconfig_for(name)?);
        self.start_with_kubeconfig(kind, name, &kubeconfig).await
    }

    async fn start_with_kubeconfig(
        &self,
        kind: ServiceKind,
        name: &str,
        kubeconfig: &str,
    ) -> anyhow::Result<Service> {
        let service = self.setup.service(kind.binary(), name, kubeconfig).await?;
        service.wait_ready().await?;
        Ok(service)
    }

    /// Starts one of each, see [`REPLICAS`].
    pub async fn start_all(&self) -> anyhow::Result<[Service; 3]> {
        let [lease_probe, coordinator, weeder] = REPLICAS.map(|(kind, name)| self.start_replica(kind, name));
        let (lease_probe, coordinator, weeder) = tokio::try_join!(lease_probe, coordinator, weeder)?;
        Ok([lease_probe, coordinator, weeder])
    }

    /// The command line of a program without certificates; it is the user of its name.
    pub fn bare_command(&self, binary: &str, name: &str) -> anyhow::Result<Command> {
        let kubeconfig = self.seed.kubeconfig_for(name)?;
        self.setup.bare_command(binary, name, &kubeconfig)
    }

    /// The record of the writes so far.
    pub fn history(&self) -> anyhow::Result<History> {
        let writes = match self.is_audited {
            true => self.seed.audit()?,
            false => Vec::new(),
        };
        Ok(History::new(writes))
    }

    /// Waits until everything is restored, and judges all shoots by what happened until then.
    pub async fn check_history(&self) -> anyhow::Result<HistoryReport> {
        for shoot in &self.shoots {
            shoot.wait_restored().await?;
        }
        let expected = Expectation {
            counts: COUNTS.to_vec(),
            nodes: Some(NodeTimes {
                grace: self.grace,
                renew_interval: self.grace / 4,
                threshold: 0.6,
            }),
            restored: true,
            verdicts: false,
        };
        let shoots = self.shoots.iter().map(|shoot| shoot.namespace.as_str());
        let report = self.history()?.check_with(&self.timeline, shoots, &expected);
        report.check()?;
        Ok(report)
    }
}

fn namespace(shoot: &str) -> String {
    format!("shoot--real--{shoot}")
}

async fn proxy(server: &KubeApiserver) -> anyhow::Result<FaultProxy> {
    let address = server.url().trim_start_matches("https://");
    FaultProxy::start_tcp(address.parse()?).await
}

async fn shoot_server(
    plane: &RealControlPlane,
    options: &FixtureOptions,
    name: &str,
) -> anyhow::Result<(KubeApiserver, Option<RealControlPlane>)> {
    let server = ApiServerOptions::new(name).user(PROBE, &[]);
    if options.is_judged {
        let own = RealControlPlane::start_with_small_etcd(&options.name).await?;
        return Ok((own.api_server_with(server).await?, Some(own)));
    }
    Ok((plane.api_server_with(server.lean()).await?, None))
}

// === impl RealShoot ===

impl RealShoot {
    async fn start(
        seed: &Client,
        options: &FixtureOptions,
        name: &str,
        server: KubeApiserver,
        plane: Option<RealControlPlane>,
        timeline: Arc<Timeline>,
    ) -> anyhow::Result<Self> {
        let (namespace, shoot, grace) = (namespace(name), server.client(), options.grace);
        create_namespace(seed, &namespace).await?;
        grant_probe(&shoot, PROBE).await?;
        create_namespace(&shoot, LEASE_NAMESPACE).await?;
        let mut kubelets = RunningKubelets::new(&shoot, seed, &namespace, grace / 4);
        if plane.is_none() {
            kubelets = kubelets.spread();
        }
        for zone in ZONES {
            kubelets.start(&kubelets.next_name(), zone).await?;
            if plane.is_some() {
                // The first node of a loss is silent for longer than the others, but not for a whole interval.
                tokio::time::sleep(grace / 40).await;
            }
        }
        let mut workloads = WorkloadOptions::new(WORKLOAD_DELAY).namespace(&namespace);
        if let Some(plane) = &plane {
            let options = ControllerManagerOptions {
                node_monitor_grace_period: grace,
                ..ControllerManagerOptions::default()
            };
            let program = Arc::new(plane.controller_manager(&server, &options)?);
            workloads = workloads.before_ready(move |change| {
                let program = program.clone();
                async move {
                    if change.name == KCM {
                        program.scale(change.replicas).await?;
                    }
                    Ok(())
                }
            });
        }
        let workloads = WorkloadController::start(seed, workloads);
        for (name, replicas) in COUNTS {
            create_deployment(seed, &namespace, name, replicas).await?;
        }
        Ok(Self {
            proxy: proxy(&server).await?,
            nodes: NodeRecorder::start(&shoot).await?,
            _election: AbortOnDropHandle::new(tokio::spawn(elect(shoot))),
            namespace,
            server,
            workloads,
            seed: seed.clone(),
            kubelets,
            timeline,
            grace,
            plane,
        })
    }

    /// The object that Gardener creates last: from then on the shoot is probed.
    pub async fn hand_over(&self) -> anyhow::Result<()> {
        self.hand_over_as(&self.namespace).await
    }

    /// Makes another shoot of the seed, without dependants, that has the same API server.
    pub async fn share(&self, name: &str) -> anyhow::Result<()> {
        let namespace = namespace(name);
        create_namespace(&self.seed, &namespace).await?;
        self.hand_over_as(&namespace).await
    }

    async fn hand_over_as(&self, namespace: &str) -> anyhow::Result<()> {
        let kubeconfig = self.proxy.kubeconfig(&self.server.kubeconfig_for(PROBE)?);
        create_kubeconfig_secret(&self.seed, namespace, PROBE_SECRET, &kubeconfig).await?;
        let grace = format!("{}s", self.grace.as_secs());
        create_cluster(&self.seed, namespace, fixtures::shoot(&grace)).await
    }

    /// Cuts all nodes off.
    pub async fn cut_off(&self) {
        self.kubelets.cut(Cut::All).await;
        let of = self.kubelets.list().len();
        self.timeline.add(&self.namespace, Fact::Cut { cut: of, of });
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
