//! Several coordinators that listen to one [`FakeProbe`], each with credentials and connections of its own, and what
//! the API server recorded of them: that of a sandbox, or a real one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_sandbox::AuditEntry;
use watchdog_test_support::binaries::SCALING_COORDINATOR;
use watchdog_test_support::coordinator::{FakeProbe, Outcome};
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::history::invariants::Expectation;
use watchdog_test_support::history::timeline::{Dependant, Recorder, Timeline};
use watchdog_test_support::history::{self, History, HistoryReport, LEADER_LEASE};
use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::real::{
    ApiServerOptions, KubeApiserver, RealControlPlane, create_namespace, create_shoot, install_seed_crds,
};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::simulation::SimulatedShootSpec;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{self, LISTENING, NAMESPACE};
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

/// The dependants, in the order in which they come up.
pub(crate) const COUNTS: [(&str, i32); 3] = [(KCM, 2), (MCM, 3), (CA, 1)];

/// A coordinator whose user on the seed is its identity. Killed when dropped.
pub(crate) struct ReplicaProcess {
    pub(crate) identity: String,
    pub(crate) process: ChildProcess,
    client: ScalingServiceClient<Channel>,
    /// Between it and the seed.
    pub(crate) to_seed: Arc<FaultProxy>,
    /// Between it and lease-probe.
    pub(crate) to_probe: Arc<FaultProxy>,
    command: Command,
}

// === impl ReplicaProcess ===

impl ReplicaProcess {
    /// Starts the same again, after its process has ended.
    pub(crate) async fn again(&self) -> anyhow::Result<Self> {
        let (to_seed, to_probe) = (self.to_seed.clone(), self.to_probe.clone());
        let scratch = self.process.scratch();
        Self::spawn(scratch, &self.identity, self.command.clone(), to_seed, to_probe).await
    }

    async fn spawn(
        scratch: &Arc<Scratch>,
        identity: &str,
        command: Command,
        to_seed: Arc<FaultProxy>,
        to_probe: Arc<FaultProxy>,
    ) -> anyhow::Result<Self> {
        let process = command.spawn(scratch)?;
        let grpc = process.wait_for_field(LISTENING, "grpc_addr", BOUND).await?;
        let channel = Channel::from_shared(format!("http://{grpc}"))?.connect_lazy();
        Ok(Self {
            identity: identity.to_owned(),
            process,
            client: ScalingServiceClient::new(channel),
            to_seed,
            to_probe,
            command,
        })
    }

    /// The state of a shoot, as it or the leader tells.
    pub(crate) async fn get(&self, shoot: &str) -> anyhow::Result<scaling::ShootScaling> {
        let mut all = self.list().await?.into_iter();
        all.find(|state| state.shoot == shoot)
            .context("no state of the shoot")
    }

    async fn list(&self) -> anyhow::Result<Vec<scaling::ShootScaling>> {
        let request = scaling::ListScalingRequest {
            page_size: 1_000,
            ..scaling::ListScalingRequest::default()
        };
        let answer = self.client.clone().list_scaling(request).await?.into_inner();
        anyhow::ensure!(answer.next_page_token.is_empty(), "more than one page");
        Ok(answer.scalings)
    }
}

/// The API server that the coordinators act on.
enum SeedServer {
    Sandbox {
        fixture: Box<SandboxFixture>,
        /// Its log is bounded: what is new is taken over at every look.
        recorded: Mutex<Vec<AuditEntry>>,
    },
    Kubernetes(Box<RealSeed>),
}

struct RealSeed {
    server: KubeApiserver,
    _workloads: WorkloadController,
    _recorder: Recorder,
    // Last, so that it outlives what talks to it.
    _plane: RealControlPlane,
}

/// Shoots in a seed, whose verdicts the test gives.
pub(crate) struct ScriptedShoots {
    pub(crate) client: Client,
    pub(crate) shoots: Vec<String>,
    probe: Arc<FakeProbe>,
    scratch: Arc<Scratch>,
    config: PathBuf,
    timeline: Arc<Timeline>,
    server: SeedServer,
}

fn prober() -> String {
    fixtures::prober("probeInterval: 5s", "100ms")
}

// === impl ScriptedShoots ===

impl ScriptedShoots {
    /// Shoots in a sandbox, each healthy with [`COUNTS`].
    pub(crate) async fn start(name: &str, shoots: usize) -> anyhow::Result<Self> {
        let specs = (0..shoots)
            .map(|i| SimulatedShootSpec::new(&format!("s{i}"), 1))
            .collect();
        let fixture = SandboxFixture::start_with(name, specs, &prober(), &fixtures::weeder("1m")).await?;
        let shoots = fixture.sandbox.shoots();
        for shoot in &shoots {
            for (name, replicas) in COUNTS {
                shoot.scale(name, u32::try_from(replicas)?)?;
            }
        }
        Self::until_started(Self {
            client: fixture.seed.clone(),
            shoots: shoots.iter().map(|shoot| shoot.namespace().to_owned()).collect(),
            probe: Arc::new(FakeProbe::start().await?),
            scratch: fixture.scratch.clone(),
            config: fixture.setup.prober_file().clone(),
            timeline: fixture.timeline.clone(),
            server: SeedServer::Sandbox {
                fixture: Box::new(fixture),
                recorded: Mutex::default(),
            },
        })
        .await
    }

    /// The same on a real API server, for replicas of these identities.
    pub(crate) async fn start_real(name: &str, shoots: usize, identities: &[&str]) -> anyhow::Result<Self> {
        let plane = RealControlPlane::start(name).await?;
        let options = ApiServerOptions::new("seed").audited(identities);
        let server = plane.api_server_with(options).await?;
        let client = server.client();
        install_seed_crds(&client).await?;
        create_namespace(&client, "garden").await?;
        let shoots: Vec<_> = (0..shoots).map(|i| format!("shoot--real--s{i}")).collect();
        for shoot in &shoots {
            create_shoot(&client, shoot, &COUNTS).await?;
        }
        let options = WorkloadOptions::new(Duration::from_millis(100));
        let workloads = WorkloadController::start(&client, options);
        let (timeline, recorder) = Timeline::start(&client).await?;
        Self::until_started(Self {
            client,
            shoots,
            probe: Arc::new(FakeProbe::start().await?),
            scratch: plane.scratch().clone(),
            config: plane.scratch().write("prober.yaml", prober())?,
            timeline,
            server: SeedServer::Kubernetes(Box::new(RealSeed {
                server,
                _workloads: workloads,
                _recorder: recorder,
                _plane: plane,
            })),
        })
        .await
    }

    async fn until_started(fleet: Self) -> anyhow::Result<Self> {
        fleet.say_all(Outcome::Healthy);
        fleet
            .until_all("every control plane runs", |wanted, _| wanted > 0)
            .await?;
        Ok(fleet)
    }

    /// The sandbox, where there is one.
    pub(crate) fn sandbox(&self) -> Option<&SandboxFixture> {
        match &self.server {
            SeedServer::Sandbox { fixture, .. } => Some(fixture),
            SeedServer::Kubernetes(_) => None,
        }
    }

    /// Waits this long before the second level of a scale-down. For coordinators that are started afterwards.
    pub(crate) fn pause_between_levels(&self, delay: &str) -> anyhow::Result<()> {
        let second = format!("scaleDown: {{level: 1, initialDelay: {delay}}}");
        Ok(std::fs::write(
            &self.config,
            prober().replace("scaleDown: {level: 1}", &second),
        )?)
    }

    pub(crate) fn say_all(&self, outcome: Outcome) {
        self.probe.say(self.shoots.iter().map(String::as_str), outcome);
    }

    /// Starts a coordinator; it need not be ready yet.
    pub(crate) async fn replica(&self, identity: &str) -> anyhow::Result<ReplicaProcess> {
        self.replica_with(identity, |command| command).await
    }

    /// The same with what `more` adds to the command.
    pub(crate) async fn replica_with(
        &self,
        identity: &str,
        more: impl FnOnce(Command) -> Command,
    ) -> anyhow::Result<ReplicaProcess> {
        let (address, kubeconfig) = match &self.server {
            SeedServer::Sandbox { fixture, .. } => {
                let seed = fixture.sandbox.seed();
                (seed.address(), seed.kubeconfig(identity))
            }
            SeedServer::Kubernetes(seed) => {
                let server = &seed.server;
                let address = server.url().trim_start_matches("https://");
                (address.parse::<SocketAddr>()?, server.kubeconfig_for(identity)?)
            }
        };
        let to_seed = Arc::new(FaultProxy::start_tcp(address).await?);
        let to_probe = Arc::new(FaultProxy::start_tcp(self.probe.address()).await?);
        let kubeconfig = to_seed.kubeconfig(&kubeconfig);
        anyhow::ensure!(
            kubeconfig.contains(&to_seed.address().to_string()),
            "a kubeconfig of another server"
        );
        let (scratch, config) = (&self.scratch, &self.config);
        let command = watchdog::command(scratch, SCALING_COORDINATOR, identity, &kubeconfig, config)?
            .args(["--insecure-plaintext", "--lease-probe"])
            .arg(to_probe.address().to_string());
        ReplicaProcess::spawn(scratch, identity, more(command), to_seed, to_probe).await
    }

    /// Starts several, of which the first one leads and the others stand by, and waits until each tells of all shoots.
    pub(crate) async fn replicas<const N: usize>(
        &self,
        identities: [&str; N],
    ) -> anyhow::Result<[ReplicaProcess; N]> {
        let mut replicas = Vec::new();
        for identity in identities {
            replicas.push(self.replica(identity).await?);
            self.until_following(&replicas.iter().collect::<Vec<_>>()).await?;
        }
        replicas.try_into().ok().context("as many as were started")
    }

    /// Waits until one leads and each of these knows it.
    pub(crate) async fn until_following(&self, replicas: &[&ReplicaProcess]) -> anyhow::Result<()> {
        wait::until("each replica tells of all shoots", BOUND, || async {
            for replica in replicas {
                let known = replica.list().await?;
                let held = |state: &&scaling::ShootScaling| state.direction() == scaling::Direction::Hold;
                let held = known.iter().filter(held).count();
                anyhow::ensure!(
                    known.len() == self.shoots.len() && held == 0,
                    "{} tells of {}, of which {held} are held",
                    replica.identity,
                    known.len()
                );
            }
            Ok(Some(()))
        })
        .await
    }

    /// The replica that the Lease names, and the holder in full, which differs for every process; none when nobody
    /// holds it.
    pub(crate) async fn leader(&self) -> anyhow::Result<Option<(String, String)>> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let lease = leases.get(LEADER_LEASE).await?;
        let holder = lease
            .spec
            .and_then(|spec| spec.holder_identity)
            .unwrap_or_default();
        let name = holder.rsplit_once('_').map(|(name, _)| name.to_owned());
        Ok(name.map(|name| (name, holder)))
    }

    /// Waits until another process leads than this holder, and gives the name of its replica.
    pub(crate) async fn until_led_after(&self, holder: &str) -> anyhow::Result<String> {
        wait::until("another process leads", BOUND, || async {
            let leader = self.leader().await?;
            Ok(leader.filter(|(_, now)| now != holder).map(|(name, _)| name))
        })
        .await
    }

    /// Waits until every dependant wants and has as many replicas as `fits` accepts; the second argument says whether
    /// it is held down by us.
    pub(crate) async fn until_all(&self, what: &str, fits: impl Fn(i32, bool) -> bool) -> anyhow::Result<()> {
        self.timeline.catch_up(&self.client).await?;
        let good = |found: &Dependant| found.wanted == found.ready && fits(found.wanted, found.held);
        self.timeline
            .until_dependants(what, &self.shoots, BOUND, good)
            .await
    }

    /// Waits until everything is as it was before.
    pub(crate) async fn until_restored(&self) -> anyhow::Result<()> {
        self.timeline.catch_up(&self.client).await?;
        self.timeline.until_restored(&self.shoots, &COUNTS, BOUND).await
    }

    /// The record since the start.
    pub(crate) fn history(&self) -> anyhow::Result<History> {
        let writes = match &self.server {
            SeedServer::Sandbox { fixture, recorded } => {
                let mut recorded = recorded.lock();
                let last = recorded.last().map_or(0, |entry| entry.id);
                let new = fixture.sandbox.seed().audit_since(last);
                recorded.extend(new.into_iter().filter(AuditEntry::is_write));
                history::from_sandbox(&recorded)
            }
            SeedServer::Kubernetes(seed) => seed.server.audit()?,
        };
        Ok(History::new(writes))
    }

    /// Judges who wrote what, and what became of the dependants.
    pub(crate) fn report(&self) -> anyhow::Result<HistoryReport> {
        let expected = Expectation {
            counts: COUNTS.to_vec(),
            nodes: None,
            restored: false,
            verdicts: false,
        };
        let shoots = self.shoots.iter().map(String::as_str);
        Ok(self.history()?.check_with(&self.timeline, shoots, &expected))
    }

    /// Ends a test: everything becomes healthy and is restored, and what happened until then is judged.
    pub(crate) async fn end(&self) -> anyhow::Result<HistoryReport> {
        self.say_all(Outcome::Healthy);
        self.until_restored().await?;
        let report = self.report()?;
        eprintln!("{report}");
        report.check()?;
        Ok(report)
    }

    /// How often a replica has acted.
    pub(crate) fn actions_of(&self, replica: &str) -> anyhow::Result<usize> {
        let actions = self.history()?.check().actions;
        Ok(actions.get(replica).copied().unwrap_or_default())
    }

    /// Waits until somebody has acted on every shoot.
    pub(crate) async fn until_all_acted_on(&self) -> anyhow::Result<()> {
        self.until_taken_over("").await
    }

    /// Waits until others than this replica have acted on all shoots.
    pub(crate) async fn until_taken_over(&self, from: &str) -> anyhow::Result<()> {
        wait::until("others act on the shoots", BOUND, || async {
            let history = self.history()?;
            for shoot in &self.shoots {
                let author = history.last_author(shoot).unwrap_or_default();
                anyhow::ensure!(author != from, "{shoot} is still {author:?}'s");
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until a replica has acted since then.
    pub(crate) async fn until_acting(&self, replica: &str) -> anyhow::Result<()> {
        let before = self.actions_of(replica)?;
        let what = format!("{replica} acts");
        wait::until_true(&what, BOUND, || async { Ok(self.actions_of(replica)? > before) }).await
    }

    /// Lets every shoot lose its nodes and have them back again and again, each at its own pace, flows that are under
    /// way or not, until the handle is dropped.
    pub(crate) fn flip(&self) -> AbortOnDropHandle<()> {
        let (probe, shoots) = (self.probe.clone(), self.shoots.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let flips = shoots.iter().map(|shoot| async {
                for outcome in [Outcome::LeasesExpired, Outcome::Healthy].iter().cycle() {
                    sleep(Duration::from_millis(rand::random_range(200..3_000))).await;
                    probe.say([shoot.as_str()], *outcome);
                }
            });
            futures::future::join_all(flips).await;
        }))
    }
}
