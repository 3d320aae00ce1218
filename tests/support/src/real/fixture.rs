//! A seed on a real API server, any number of shoots with one of their own each, and the programs beside it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;

use super::shoot::{PROBE, namespace};
use super::{
    ApiServerOptions, COUNTS, ControllerManager, ControllerManagerOptions, KubeApiserver, RealControlPlane,
    RealShoot, ShootOptions, create_namespace, create_released_lease, install_seed_crds,
};
use crate::fault_proxy::FaultProxy;
use crate::fixtures;
use crate::history::invariants::{Expectation, NodeTimes};
use crate::history::timeline::{Recorder, Timeline};
use crate::history::{History, HistoryReport, LEADER_LEASE};
use crate::process::Command;
use crate::scratch::Scratch;
use crate::watchdog::{Service, ServiceKind, Setup};

/// The names of the programs where a test needs one of each.
pub const REPLICAS: [(ServiceKind, &str); 3] = [
    (ServiceKind::LeaseProbe, "lease-probe-0"),
    (ServiceKind::Coordinator, "scaling-coordinator-0"),
    (ServiceKind::Weeder, "weeder-0"),
];

/// The grace period where no kube-controller-manager judges the nodes: kubelets renew every 4 s and a Lease is expired
/// after 12 s, so that a busy machine loses none.
const GRACE: Duration = Duration::from_secs(16);

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
    pub seed: Arc<KubeApiserver>,
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
    pub plane: Arc<RealControlPlane>,
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
        let plane = Arc::new(RealControlPlane::start(&options.name).await?);
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
        let mut fixture = Self::start_on(plane, Arc::new(seed), &options).await?;
        fixture.is_audited = is_audited;
        let shoots = options.shoots.iter().zip(servers);
        let shoots = shoots.map(|(name, server)| fixture.start_shoot(name, server));
        fixture.shoots = try_join_all(shoots).await?;
        for shoot in &fixture.shoots {
            shoot.wait_restored().await?;
            if !options.is_judged {
                shoot.hand_over().await?;
            }
        }
        Ok(fixture)
    }

    /// Makes a seed, whose record of writes is not kept, of an API server with the users [`REPLICAS`].
    pub async fn start_on(
        plane: Arc<RealControlPlane>,
        seed: Arc<KubeApiserver>,
        options: &FixtureOptions,
    ) -> anyhow::Result<Self> {
        let client = seed.client();
        install_seed_crds(&client).await?;
        create_namespace(&client, "garden").await?;
        for lease in [LEADER_LEASE, "weeder-leader"] {
            create_released_lease(&client, lease).await?;
        }
        let (timeline, recorder) = Timeline::start(&client).await?;
        let scratch = Scratch::new(&options.name)?;
        Ok(Self {
            setup: Setup::new(&scratch, &options.prober, &fixtures::weeder("2m"))?,
            shoots: Vec::new(),
            seed,
            timeline,
            grace: options.grace,
            is_audited: false,
            _recorder: recorder,
            plane,
        })
    }

    async fn start_shoot(&self, name: &str, server: ShootServer) -> anyhow::Result<RealShoot> {
        let options = ShootOptions {
            zones: 3,
            ..ShootOptions::nodes(5, self.grace)
        };
        let (own, controller_manager) = server.judge.unzip();
        let (seed, server) = (self.seed.client(), Arc::new(server.server));
        let timeline = self.timeline.clone();
        let mut shoot = RealShoot::start(&seed, timeline, name, options, server, controller_manager).await?;
        shoot.plane = own;
        Ok(shoot)
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
        FaultProxy::start((&*self.seed).into()).await
    }

    /// Starts a replica of a program under the name of its user on the seed, and waits until it is ready.
    pub async fn start_replica(&self, kind: ServiceKind, name: &str) -> anyhow::Result<Service> {
        self.start_behind(None, kind, name).await
    }

    /// The same, perhaps through a proxy before the seed.
    pub async fn start_behind(
        &self,
        proxy: Option<&FaultProxy>,
        kind: ServiceKind,
        name: &str,
    ) -> anyhow::Result<Service> {
        let direct = self.seed.kubeconfig_for(name)?;
        let kubeconfig = proxy.map_or_else(|| direct.clone(), |proxy| proxy.kubeconfig(&direct));
        let service = self.setup.service(kind.binary(), name, &kubeconfig).await?;
        service.wait_ready().await?;
        Ok(service)
    }

    /// Starts one of each, see [`REPLICAS`].
    pub async fn start_all(&self) -> anyhow::Result<[Service; 3]> {
        self.start_all_behind(None).await
    }

    /// The same, perhaps through a proxy before the seed.
    pub async fn start_all_behind(&self, proxy: Option<&FaultProxy>) -> anyhow::Result<[Service; 3]> {
        let [lease_probe, coordinator, weeder] =
            REPLICAS.map(|(kind, name)| self.start_behind(proxy, kind, name));
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

/// An API server for a shoot, with a control plane of its own where its nodes are judged.
struct ShootServer {
    server: KubeApiserver,
    judge: Option<(RealControlPlane, ControllerManager)>,
}

async fn shoot_server(
    plane: &RealControlPlane,
    options: &FixtureOptions,
    name: &str,
) -> anyhow::Result<ShootServer> {
    let server = ApiServerOptions::new(name).user(PROBE, &[]);
    if !options.is_judged {
        let server = plane.api_server_with(server.lean()).await?;
        return Ok(ShootServer { server, judge: None });
    }
    let own = RealControlPlane::start_with_small_etcd(&options.name).await?;
    let server = own.api_server_with(server).await?;
    let times = ControllerManagerOptions {
        node_monitor_grace_period: options.grace,
        ..ControllerManagerOptions::default()
    };
    let program = own.controller_manager(&server, &times)?;
    Ok(ShootServer {
        server,
        judge: Some((own, program)),
    })
}
