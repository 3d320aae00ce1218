//! The sandbox as a back-end.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use watchdog_sandbox::{
    AuditEntry, Cut, Sandbox, SandboxConfig, SimTiming, SimulatedShoot, SimulatedShootSpec,
};

use super::{Plan, SeedBackend};
use crate::acceptance::seed::Seed;
use crate::acceptance::times::Times;
use crate::acceptance::{MCM_REPLICAS, PROJECT};
use watchdog_test_support::fault_proxy::{FaultProxy, Upstream};
use watchdog_test_support::fixtures::MCM;
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

/// A simulated shoot.
pub struct SandboxSite {
    shoot: SimulatedShoot,
    // The simulation ends with it.
    _sandbox: Arc<Sandbox>,
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
    sandbox: &Sandbox,
    scratch: &Arc<Scratch>,
    proxy: Option<&FaultProxy>,
) -> anyhow::Result<Arc<Seed>> {
    let admin = client(&sandbox.seed().kubeconfig("administrator")).await?;
    let kubeconfig = |identity: &str| {
        let direct = sandbox.seed().kubeconfig(identity);
        proxy.map(|proxy| proxy.kubeconfig(&direct)).unwrap_or(direct)
    };
    Ok(Arc::new(Seed::start(scratch, admin, kubeconfig, &TIMES).await?))
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
        let scratch = Scratch::new("acceptance")?;
        let audit_log = if proxied { AUDIT_LOG } else { 0 };
        let (watched, twins) = tokio::try_join!(sandbox(audit_log), sandbox(0))?;
        let upstream = Upstream {
            url: watched.seed().url(),
            ca_pem: watched.seed().ca_pem().to_owned(),
        };
        let proxy = match proxied {
            true => Some(FaultProxy::start(upstream).await?),
            false => None,
        };
        let seed = watch_over(&watched, &scratch, proxy.as_ref()).await?;
        Ok(Self {
            watched,
            twins,
            seed,
            proxy,
            times,
        })
    }

    pub(super) fn kubeconfig(&self, identity: &str) -> String {
        let direct = self.watched.seed().kubeconfig(identity);
        let through = self.proxy.as_ref().map(|proxy| proxy.kubeconfig(&direct));
        through.unwrap_or(direct)
    }

    pub(super) fn audit(&self) -> Vec<AuditEntry> {
        self.watched.seed().audit()
    }

    pub(super) const fn proxy(&self) -> Option<&FaultProxy> {
        self.proxy.as_ref()
    }

    pub(super) async fn stop_seed(&self) -> anyhow::Result<()> {
        Ok(self.watched.seed().stop().await?)
    }

    pub(super) async fn start_seed(&self) -> anyhow::Result<()> {
        Ok(self.watched.seed().resume().await?)
    }

    pub(super) fn compact_seed(&self) {
        self.watched.seed().compact();
    }

    pub(super) const fn times(&self) -> Times {
        self.times
    }

    pub(super) fn seed(&self) -> (Arc<Seed>, SeedBackend) {
        (self.seed.clone(), SeedBackend::Sandbox(self.watched.clone()))
    }

    pub(super) fn unwatched(&self) -> SeedBackend {
        SeedBackend::Sandbox(self.twins.clone())
    }

    pub(super) async fn second_seed(&self) -> anyhow::Result<(Arc<Seed>, SeedBackend)> {
        let sandbox = sandbox(0).await?;
        let folder = Scratch::new("second-seed")?;
        Ok((
            watch_over(&sandbox, &folder, None).await?,
            SeedBackend::Sandbox(sandbox),
        ))
    }

    pub(super) async fn build(
        &self,
        sandbox: &Arc<Sandbox>,
        name: &str,
        plan: &Plan,
    ) -> anyhow::Result<SandboxSite> {
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
        let shoot = sandbox.add_shoot(spec).await?;
        shoot.scale(MCM, MCM_REPLICAS)?;
        Ok(SandboxSite {
            shoot,
            _sandbox: sandbox.clone(),
        })
    }
}

// === impl SandboxSite ===

impl SandboxSite {
    pub(super) fn namespace(&self) -> &str {
        self.shoot.namespace()
    }

    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        client(&self.shoot.api().kubeconfig("administrator")).await
    }

    pub(super) fn upstream(&self) -> Upstream {
        Upstream {
            url: self.shoot.api().url(),
            ca_pem: self.shoot.api().ca_pem().to_owned(),
        }
    }

    pub(super) fn probe_kubeconfig(&self) -> String {
        self.shoot.probe_kubeconfig()
    }

    pub(super) fn nodes(&self) -> Vec<(String, String)> {
        let nodes = self.shoot.nodes().into_iter();
        nodes.map(|node| (node.name, node.zone)).collect()
    }

    pub(super) fn cut_all(&self) {
        self.shoot.cut(Cut::All);
    }

    pub(super) fn cut_zone(&self, zone: &str) {
        self.shoot.cut(Cut::Zone(zone.to_owned()));
    }

    pub(super) fn reconnect(&self) {
        self.shoot.heal();
    }

    pub(super) async fn stop_api_server(&self) -> anyhow::Result<()> {
        Ok(self.shoot.api().stop().await?)
    }

    pub(super) async fn start_api_server(&self) -> anyhow::Result<()> {
        self.shoot.api().resume().await?;
        // Its kubelets need no API server to renew.
        self.reconnect();
        Ok(())
    }

    pub(super) fn machines_replaced(&self) -> u64 {
        self.shoot.machines_replaced()
    }

    pub(super) fn machines_run(&self) -> bool {
        self.shoot
            .machines()
            .iter()
            .all(|machine| machine.phase == "Running")
    }
}
