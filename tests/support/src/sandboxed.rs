//! A sandbox seed with the three services beside it: for the demo, and for random incidents over many shoots.

use std::sync::Arc;
use std::time::Duration;

use crate::simulation::{Cut, Sandbox, SandboxConfig, SimTiming, SimulatedShoot, SimulatedShootSpec};
use kube::Client;
use kube::config::{Config, Kubeconfig};
use tokio::runtime::Builder;

use crate::fixtures::{CA, KCM, MCM};
use crate::history::invariants::{Expectation, NodeTimes};
use crate::history::timeline::{Dependant, Fact, Recorder, Timeline};
use crate::history::{self, History, HistoryReport};
use crate::real::REPLICAS;
use crate::scratch::Scratch;
use crate::separate_runtime::SeparateRuntime;
use crate::wait::BOUND;
use crate::watchdog::{Service, ServiceKind, Setup};

/// Of a sandbox.
const THREADS: usize = 2;

/// The user that the test itself is on the seed; a service is the user of its name.
const ADMINISTRATOR: &str = "administrator";

/// Everything of one test. The services belong to the test itself.
pub struct SandboxFixture {
    /// The seed and its shoots.
    pub sandbox: Arc<Sandbox>,
    /// Starts services.
    pub setup: Setup,
    /// The test's folder.
    pub scratch: Arc<Scratch>,
    /// The record of the seed.
    pub timeline: Arc<Timeline>,
    timing: SimTiming,
    _recorder: Recorder,
    /// The seed and its shoots: with as many API servers as a test may have, one runtime would leave the test no time
    /// to shake hands with a service.
    _runtime: SeparateRuntime,
}

impl SandboxFixture {
    /// Starts a seed with these times of the simulation, shoots and configuration files.
    pub async fn start(
        name: &str,
        timing: SimTiming,
        shoots: Vec<SimulatedShootSpec>,
        prober: &str,
        weeder: &str,
    ) -> anyhow::Result<Self> {
        let scratch = Scratch::new(name)?;
        let config = SandboxConfig {
            timing: timing.clone(),
            shoots,
        };
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(THREADS).thread_name("sandbox");
        let runtime = SeparateRuntime::start(threads)?;
        let sandbox = runtime.run(Sandbox::start(config)).await?;
        let seed = client(&sandbox.seed().kubeconfig(ADMINISTRATOR)).await?;
        let (timeline, recorder) = Timeline::start(&seed).await?;
        Ok(Self {
            setup: Setup::new(&scratch, prober, weeder)?,
            sandbox: Arc::new(sandbox),
            scratch,
            timeline,
            timing,
            _recorder: recorder,
            _runtime: runtime,
        })
    }

    /// Starts one of each program, see [`REPLICAS`], and waits until they are ready.
    pub async fn start_all(&self) -> anyhow::Result<[Service; 3]> {
        let start = async |(kind, name): (ServiceKind, &'static str)| {
            let kubeconfig = self.sandbox.seed().kubeconfig(name);
            let service = self.setup.service(kind.binary(), name, &kubeconfig).await?;
            service.wait_ready().await?;
            anyhow::Ok(service)
        };
        let [lease_probe, coordinator, weeder] = REPLICAS.map(start);
        let (lease_probe, coordinator, weeder) = tokio::try_join!(lease_probe, coordinator, weeder)?;
        Ok([lease_probe, coordinator, weeder])
    }

    /// A shoot by its short name.
    pub fn shoot(&self, name: &str) -> anyhow::Result<SimulatedShoot> {
        self.sandbox.shoot(name)
    }

    /// Waits until the three dependants want and have this many replicas. With more than 0, meltdown-protection-active
    /// must be gone, too: the coordinator takes it off last, and writes no more after that.
    pub async fn wait_replicas(
        &self,
        shoot: &SimulatedShoot,
        replicas: i32,
        bound: Duration,
    ) -> anyhow::Result<()> {
        let good = |found: &Dependant| {
            (found.wanted, found.ready) == (replicas, replicas) && (replicas == 0 || !found.held)
        };
        let what = format!("the dependants are at {replicas}");
        self.timeline
            .until_dependants(&what, &[shoot.namespace()], bound, good)
            .await
    }

    /// Cuts all nodes of a shoot off.
    pub fn cut_off(&self, shoot: &SimulatedShoot) {
        shoot.cut(Cut::All);
        self.note_cut(shoot, shoot.nodes().len());
    }

    /// Connects the nodes of a shoot again.
    pub fn reconnect(&self, shoot: &SimulatedShoot) {
        shoot.heal();
        self.note_cut(shoot, 0);
    }

    fn note_cut(&self, shoot: &SimulatedShoot, cut: usize) {
        let of = shoot.nodes().len();
        self.timeline.add(shoot.namespace(), Fact::Cut { cut, of });
    }

    /// Judges the history of every shoot if all are restored in the end. The test has used [`Self::cut_off`] and
    /// [`Self::reconnect`].
    pub fn expectation(&self) -> Expectation {
        Expectation {
            counts: vec![(KCM, 1), (MCM, 1), (CA, 1)],
            nodes: Some(NodeTimes {
                grace: self.timing.node_monitor_grace_period,
                renew_interval: self.timing.renew_interval,
                threshold: 0.6,
            }),
            restored: true,
            verdicts: false,
        }
    }

    /// Waits until everything is restored, and judges all shoots by what happened until then: by an expectation, and by
    /// the writes that the test has taken from the audit log.
    pub async fn check(
        &self,
        expected: &Expectation,
        history: impl FnOnce() -> History,
    ) -> anyhow::Result<HistoryReport> {
        let shoots = self.sandbox.shoots();
        let names: Vec<_> = shoots.iter().map(SimulatedShoot::namespace).collect();
        let restored = self.timeline.until_restored(&names, &expected.counts, BOUND);
        restored.await?;
        let report = history().check_with(&self.timeline, names, expected);
        report.check()?;
        Ok(report)
    }

    /// Names of the resources of a shoot that were scaled, in the order of the writes.
    pub fn scale_writes(&self, shoot: &SimulatedShoot) -> Vec<String> {
        self.history().scaled(shoot.namespace())
    }

    fn history(&self) -> History {
        History::new(history::from_sandbox(&self.sandbox.seed().audit()))
    }
}

/// A client from a kubeconfig.
pub async fn client(kubeconfig: &str) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    // A retried refusal would hide the one that a test asks for.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
