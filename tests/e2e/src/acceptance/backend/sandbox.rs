//! The sandbox as a back-end.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tonic::async_trait;
use watchdog_sandbox::{Cut, Sandbox, SandboxConfig, SimTiming, SimulatedShoot, SimulatedShootSpec};

use super::{Backend, Count, HeldServers, Plan, ShootBackend};
use crate::acceptance::seed::Seed;
use crate::acceptance::times::Times;
use crate::acceptance::{MCM_REPLICAS, PROJECT};
use watchdog_test_support::fault_proxy::{FaultProxy, Upstream};
use watchdog_test_support::fixtures::MCM;
use watchdog_test_support::history::{Write, from_sandbox};
use watchdog_test_support::sandboxed::client;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait::BOUND;

/// Four times faster than a real shoot.
const GRACE: Duration = Duration::from_secs(10);

/// Requests kept where coordinators are judged by them: those of some minutes.
const AUDIT_LOG: usize = 65_536;

/// Two sandboxes: one is watched over, on the other are the twins.
pub struct SandboxBackend {
    watched: Arc<Sandbox>,
    twins: Arc<Sandbox>,
    seed: Arc<Seed>,
    proxy: Option<FaultProxy>,
    times: Times,
}

const TIMES: Times = Times {
    grace: GRACE,
    machine_health_timeout: GRACE.saturating_mul(15),
    bound: BOUND,
};

fn timing(times: &Times) -> SimTiming {
    SimTiming {
        machine_health_timeout: times.machine_health_timeout,
        machine_step: TIMES.machine_step(),
        ready_delay: Duration::from_millis(300),
        stop_delay: Duration::from_millis(200),
        ..SimTiming::scaled(1.0 / TIMES.factor())
    }
}

async fn sandbox(audit_log: usize) -> anyhow::Result<Arc<Sandbox>> {
    let mut config = SandboxConfig::default();
    // Two hundred control planes at once.
    config.seed.watch_log = 32_768;
    config.seed.audit_log = audit_log;
    Ok(Arc::new(Sandbox::start(config).await?))
}

async fn watch_over(
    sandbox: &Arc<Sandbox>,
    name: &str,
    proxy: Option<&FaultProxy>,
) -> anyhow::Result<Arc<Seed>> {
    let admin = client(&sandbox.seed().kubeconfig("administrator")).await?;
    let kubeconfig = |identity: &str| kubeconfig(sandbox, proxy, identity);
    let scratch = Scratch::new(name)?;
    let mut seed = Seed::start(&scratch, admin, kubeconfig, &TIMES).await?;
    seed.sandbox = Some(sandbox.clone());
    Ok(Arc::new(seed))
}

fn kubeconfig(sandbox: &Sandbox, proxy: Option<&FaultProxy>, identity: &str) -> String {
    let direct = sandbox.seed().kubeconfig(identity);
    proxy.map(|proxy| proxy.kubeconfig(&direct)).unwrap_or(direct)
}

// === impl SandboxBackend ===

impl SandboxBackend {
    /// Starts the seeds and the services.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(false, TIMES.impatient()).await
    }

    /// The same with a fault proxy between the services and the seed's API server.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn start_behind_proxy() -> anyhow::Result<Self> {
        Self::start_with(true, TIMES).await
    }

    async fn start_with(proxied: bool, times: Times) -> anyhow::Result<Self> {
        let audit_log = if proxied { AUDIT_LOG } else { 0 };
        let (watched, twins) = tokio::try_join!(sandbox(audit_log), sandbox(0))?;
        let proxy = match proxied {
            true => Some(FaultProxy::start(watched.seed().into()).await?),
            false => None,
        };
        let seed = watch_over(&watched, "acceptance", proxy.as_ref()).await?;
        Ok(Self {
            watched,
            twins,
            seed,
            proxy,
            times,
        })
    }

    /// A kubeconfig for one more replica of a service, through the fault proxy if there is one.
    pub fn kubeconfig(&self, identity: &str) -> String {
        kubeconfig(&self.watched, self.proxy.as_ref(), identity)
    }

    /// The writes to the seed.
    pub fn writes(&self) -> Vec<Write> {
        from_sandbox(&self.watched.seed().audit())
    }
}

#[async_trait]
impl Backend for SandboxBackend {
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
        Ok(self.watched.seed().stop().await?)
    }

    async fn start_seed(&self) -> anyhow::Result<()> {
        Ok(self.watched.seed().resume().await?)
    }

    async fn compact_seed(&self) -> anyhow::Result<()> {
        self.watched.seed().compact();
        Ok(())
    }

    fn has_twin(&self, plan: &Plan) -> bool {
        plan.toll != Count::No
    }

    async fn second_seed(&self, _: &mut HeldServers) -> anyhow::Result<Arc<Seed>> {
        watch_over(&sandbox(0).await?, "second-seed", None).await
    }

    async fn build(
        &self,
        _: &mut HeldServers,
        seed: Option<&Seed>,
        name: &str,
        plan: &Plan,
    ) -> anyhow::Result<Box<dyn ShootBackend>> {
        let timing = SimTiming {
            node_monitor_grace_period: GRACE.mul_f64(plan.grace),
            ..timing(&self.times)
        };
        let spec = SimulatedShootSpec {
            project: PROJECT.to_owned(),
            last_operation: ("Create".into(), "Processing".into()),
            ..SimulatedShootSpec::new(name, plan.nodes)
                .zones(plan.zones)
                .timing(timing)
        };
        let sandbox = seed.and_then(|seed| seed.sandbox.as_ref()).unwrap_or(&self.twins);
        let shoot = sandbox.add_shoot(spec).await?;
        shoot.scale(MCM, MCM_REPLICAS)?;
        Ok(Box::new(SandboxSite(shoot)))
    }
}

/// A simulated shoot.
struct SandboxSite(SimulatedShoot);

#[async_trait]
impl ShootBackend for SandboxSite {
    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    async fn client(&self) -> anyhow::Result<Client> {
        client(&self.0.api().kubeconfig("administrator")).await
    }

    fn upstream(&self) -> Upstream {
        self.0.api().into()
    }

    fn probe_kubeconfig(&self) -> anyhow::Result<String> {
        Ok(self.0.probe_kubeconfig())
    }

    async fn nodes(&self) -> Vec<(String, String)> {
        let nodes = self.0.nodes().into_iter();
        nodes.map(|node| (node.name, node.zone)).collect()
    }

    async fn cut(&self, zone: Option<&str>) {
        self.0
            .cut(zone.map_or(Cut::All, |zone| Cut::Zone(zone.to_owned())));
    }

    async fn reconnect(&self) {
        self.0.heal();
    }

    async fn stop_api_server(&self) -> anyhow::Result<()> {
        Ok(self.0.api().stop().await?)
    }

    async fn start_api_server(&self) -> anyhow::Result<()> {
        self.0.api().resume().await?;
        // Its kubelets need no API server to renew.
        self.0.heal();
        Ok(())
    }

    fn machines_replaced(&self) -> u64 {
        self.0.machines_replaced()
    }

    async fn machines_run(&self) -> anyhow::Result<bool> {
        let machines = self.0.machines();
        Ok(machines.iter().all(|machine| machine.phase == "Running"))
    }
}
