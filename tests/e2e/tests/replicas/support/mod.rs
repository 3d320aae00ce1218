//! Several coordinators that listen to one [`FakeProbe`], each with credentials and connections of its own, and what
//! the API server recorded of them.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its share of it")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{AuditEntry, SimulatedShootSpec};
use watchdog_test_support::binaries;
use watchdog_test_support::fault_proxy::FaultProxy;
use watchdog_test_support::fixtures::{self, CA, KCM, MCM};
use watchdog_test_support::history::invariants::{Expectation, violations};
use watchdog_test_support::history::timeline::{Recorder, Timeline};
use watchdog_test_support::history::{self, History, HistoryReport};
use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait;
pub use watchdog_test_support::wait::BOUND;
use watchdog_test_support::watchdog::LISTENING;

use watchdog_test_support::coordinator::{FakeProbe, Outcome};

/// The dependants, in the order in which they come up.
pub const COUNTS: &[(&str, u32)] = &[(KCM, 2), (MCM, 3), (CA, 1)];

/// A process on a loaded machine.
const START_BOUND: Duration = Duration::from_secs(30);

/// A coordinator whose user on the seed is its identity. Killed when dropped.
pub struct ReplicaProcess {
    pub identity: String,
    pub process: ChildProcess,
    pub client: ScalingServiceClient<Channel>,
    pub admin: String,
    /// Between it and the seed.
    pub to_seed: Arc<FaultProxy>,
    /// Between it and lease-probe.
    pub to_probe: Arc<FaultProxy>,
    command: Command,
}

/// How to reach what a coordinator talks to.
pub struct CoordinatorTargets<'a> {
    pub scratch: &'a Arc<Scratch>,
    pub config: &'a std::path::Path,
    pub namespace: &'a str,
    pub seed: SocketAddr,
    pub probe: SocketAddr,
}

// === impl ReplicaProcess ===

impl ReplicaProcess {
    /// Starts one; it need not be ready yet.
    pub async fn start(
        around: &CoordinatorTargets<'_>,
        identity: &str,
        kubeconfig: &str,
    ) -> anyhow::Result<Self> {
        Self::start_with(around, identity, kubeconfig, |command| command).await
    }

    /// The same with what `more` adds to the command.
    pub async fn start_with(
        around: &CoordinatorTargets<'_>,
        identity: &str,
        kubeconfig: &str,
        more: impl FnOnce(Command) -> Command,
    ) -> anyhow::Result<Self> {
        let to_seed = Arc::new(FaultProxy::start_tcp(around.seed).await?);
        let to_probe = Arc::new(FaultProxy::start_tcp(around.probe).await?);
        let kubeconfig = to_seed.kubeconfig(kubeconfig);
        anyhow::ensure!(
            kubeconfig.contains(&to_seed.address().to_string()),
            "a kubeconfig of another server"
        );
        let kubeconfig = around
            .scratch
            .write(&format!("{identity}.kubeconfig"), kubeconfig)?;
        let command = Command::new(identity, binaries::path(binaries::SCALING_COORDINATOR)?)
            .args([
                "--insecure-plaintext",
                "--identity",
                identity,
                "--namespace",
                around.namespace,
            ])
            .args(["--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"])
            .arg("--config-file")
            .arg(around.config.as_os_str())
            .arg("--kubeconfig")
            .arg(kubeconfig.as_os_str())
            .arg("--lease-probe")
            .arg(to_probe.address().to_string());
        Self::spawn(around.scratch, identity, more(command), to_seed, to_probe).await
    }

    /// Starts the same again, after its process has ended.
    pub async fn again(&self) -> anyhow::Result<Self> {
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
        let grpc = process
            .wait_for_field(LISTENING, "grpc_addr", START_BOUND)
            .await?;
        let admin = process
            .wait_for_field(LISTENING, "admin_addr", START_BOUND)
            .await?;
        let channel = Channel::from_shared(format!("http://{grpc}"))?.connect_lazy();
        Ok(Self {
            identity: identity.to_owned(),
            process,
            client: ScalingServiceClient::new(channel),
            admin,
            to_seed,
            to_probe,
            command,
        })
    }

    /// Its own view of a shoot, which it may not own.
    pub async fn get(&self, shoot: &str) -> anyhow::Result<scaling::ShootScaling> {
        let mut own = self.own().await?.into_iter();
        anyhow::Context::context(own.find(|state| state.shoot == shoot), "no state of the shoot")
    }

    /// The shoots of these that it owns and may act upon.
    pub async fn owns(&self, shoots: &[String]) -> anyhow::Result<Vec<String>> {
        let owned = self.own().await?.into_iter().filter(|state| {
            shoots.contains(&state.shoot)
                && state.owner == self.identity
                && state.direction() != scaling::Direction::Hold
        });
        Ok(owned.map(|state| state.shoot).collect())
    }

    async fn own(&self) -> anyhow::Result<Vec<scaling::ShootScaling>> {
        let request = scaling::ListScalingRequest {
            page_size: 1_000,
            scope: Scope::Local.into(),
            ..scaling::ListScalingRequest::default()
        };
        let answer = self.client.clone().list_scaling(request).await?.into_inner();
        anyhow::ensure!(answer.next_page_token.is_empty(), "more than one page");
        Ok(answer.scalings)
    }
}

/// Shoots in a sandbox, whose verdicts the test gives.
pub struct ScriptedShoots {
    pub fixture: SandboxFixture,
    pub probe: Arc<FakeProbe>,
    pub shoots: Vec<String>,
    recorded: Mutex<Vec<AuditEntry>>,
    timeline: Arc<Timeline>,
    _recorder: Recorder,
}

// === impl ScriptedShoots ===

impl ScriptedShoots {
    /// Shoots, each healthy with [`COUNTS`].
    pub async fn start(name: &str, shoots: usize) -> anyhow::Result<Self> {
        let specs = (0..shoots)
            .map(|i| SimulatedShootSpec::new(&format!("s{i}"), 1))
            .collect();
        let prober = fixtures::prober("probeInterval: 5s", "100ms");
        let fixture = SandboxFixture::start_with(name, specs, &prober, &fixtures::weeder("1m")).await?;
        for shoot in fixture.sandbox.shoots() {
            for (name, replicas) in COUNTS {
                shoot.scale(name, *replicas)?;
            }
        }
        let (timeline, recorder) = Timeline::start(&fixture.seed).await?;
        let shoots: Vec<_> = fixture
            .sandbox
            .shoots()
            .iter()
            .map(|shoot| shoot.namespace().to_owned())
            .collect();
        let probe = Arc::new(FakeProbe::start().await?);
        let field = Self {
            fixture,
            probe,
            shoots,
            recorded: Mutex::default(),
            timeline,
            _recorder: recorder,
        };
        field.say_all(Outcome::Healthy);
        field
            .until_all("every control plane runs", |replicas, _| replicas > 0)
            .await?;
        Ok(field)
    }

    pub fn say_all(&self, outcome: Outcome) {
        self.probe.say(self.shoots.iter().map(String::as_str), outcome);
    }

    pub fn around<'a>(&'a self, namespace: &'a str) -> CoordinatorTargets<'a> {
        CoordinatorTargets {
            scratch: &self.fixture.scratch,
            config: self.fixture.setup.prober_file(),
            namespace,
            seed: self.fixture.sandbox.seed().address(),
            probe: self.probe.address(),
        }
    }

    /// Starts a coordinator.
    pub async fn replica(&self, identity: &str) -> anyhow::Result<ReplicaProcess> {
        let kubeconfig = self.fixture.sandbox.seed().kubeconfig(identity);
        ReplicaProcess::start(&self.around("garden"), identity, &kubeconfig).await
    }

    /// Starts several at once.
    pub async fn replicas(&self, identities: &[&str]) -> anyhow::Result<Vec<ReplicaProcess>> {
        futures::future::try_join_all(identities.iter().map(|identity| self.replica(identity))).await
    }

    /// Waits until every dependant wants and has as many replicas as `fits` accepts; the second argument says whether
    /// it is held down by us.
    pub async fn until_all(&self, what: &str, fits: impl Fn(i64, bool) -> bool) -> anyhow::Result<()> {
        wait::until(what, BOUND, || async {
            for shoot in &self.shoots {
                for (name, _) in COUNTS {
                    let (wanted, ready, held) = self.dependant(shoot, name)?;
                    anyhow::ensure!(
                        wanted == ready && fits(wanted, held),
                        "{shoot}/{name} wants {wanted}, has {ready}, held down: {held}"
                    );
                }
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until everything is as it was before.
    pub async fn until_restored(&self) -> anyhow::Result<()> {
        self.until_all("everything is restored", |wanted, held| wanted > 0 && !held)
            .await?;
        for shoot in &self.shoots {
            for (name, count) in COUNTS {
                let (wanted, ..) = self.dependant(shoot, name)?;
                anyhow::ensure!(
                    wanted == i64::from(*count),
                    "{shoot}/{name} was restored to {wanted}"
                );
            }
        }
        Ok(())
    }

    fn dependant(&self, shoot: &str, name: &str) -> anyhow::Result<(i64, i64, bool)> {
        let store = self.fixture.sandbox.seed().store();
        let object = store.find(&keys::DEPLOYMENTS, shoot, name);
        let object = anyhow::Context::context(object, "a dependant is gone")?;
        let held = object.annotation("dependency-watchdog.gardener.cloud/meltdown-protection-active");
        Ok((
            object.number("/spec/replicas"),
            object.number("/status/readyReplicas"),
            held.is_some(),
        ))
    }

    /// The record since the start.
    pub fn history(&self) -> History {
        let mut recorded = self.recorded.lock();
        // The log of the sandbox is bounded: what is new is taken over at every look.
        let last = recorded.last().map_or(0, |entry| entry.id);
        let new = self.fixture.sandbox.seed().audit_since(last);
        recorded.extend(new.into_iter().filter(AuditEntry::is_write));
        History::new(history::from_sandbox(&recorded))
    }

    pub fn report(&self) -> HistoryReport {
        report(&self.history(), &self.timeline, &self.shoots)
    }

    /// The shoots on which a replica acted last.
    pub fn acted_on_by(&self, replica: &str) -> BTreeSet<String> {
        let history = self.history();
        let last = |shoot: &&String| history.last_author(shoot) == Some(replica);
        self.shoots.iter().filter(last).cloned().collect()
    }

    /// Waits until somebody has acted on every shoot.
    pub async fn until_all_acted_on(&self) -> anyhow::Result<()> {
        wait::until("somebody has acted on every shoot", BOUND, || async {
            let history = self.history();
            for shoot in &self.shoots {
                anyhow::ensure!(
                    history.last_author(shoot).is_some(),
                    "nobody has acted on {shoot}"
                );
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until others have acted on all these shoots.
    pub async fn until_taken_over(&self, shoots: &BTreeSet<String>, from: &[&str]) -> anyhow::Result<()> {
        wait::until("others act on the shoots", BOUND, || async {
            let history = self.history();
            for shoot in shoots {
                let author = history.last_author(shoot).unwrap_or_default();
                anyhow::ensure!(!from.contains(&author), "{shoot} is still {author}'s");
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until each of these replicas has acted since then.
    pub async fn until_acting(&self, replicas: &[&str]) -> anyhow::Result<()> {
        let before = self.report().actions;
        wait::until("each replica acts", BOUND, || async {
            let now = self.report().actions;
            for replica in replicas {
                anyhow::ensure!(now.get(*replica) > before.get(*replica), "{replica} does not act");
            }
            Ok(Some(()))
        })
        .await
    }

    /// See [`flip`].
    pub fn flip(&self) -> AbortOnDropHandle<()> {
        flip(&self.probe, &self.shoots)
    }
}

/// Judges who wrote what, and what became of the dependants.
pub fn report(history: &History, timeline: &Timeline, shoots: &[String]) -> HistoryReport {
    let expected = Expectation {
        counts: COUNTS
            .iter()
            .filter_map(|(name, count)| Some((*name, i32::try_from(*count).ok()?)))
            .collect(),
        nodes: None,
        restored: false,
        verdicts: false,
    };
    let mut report = history.check();
    for shoot in shoots {
        let of_shoot = violations(shoot, &timeline.of(shoot), &expected);
        report.violations.extend(of_shoot);
    }
    report
}

/// Lets every shoot lose its nodes and have them back again and again, each at its own pace, flows that are under way
/// or not, until the handle is dropped.
pub fn flip(probe: &Arc<FakeProbe>, shoots: &[String]) -> AbortOnDropHandle<()> {
    let (probe, shoots) = (probe.clone(), shoots.to_vec());
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
