//! A sandbox seed with the three services beside it, for tests that need many quick turns.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use kube::config::{Config, Kubeconfig};
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_sandbox::{Sandbox, SandboxConfig, SimTiming, SimulatedShoot, SimulatedShootSpec};

use crate::binaries;
use crate::fixtures::{self, CA, KCM, MCM};
use crate::scratch::Scratch;
use crate::wait;
use crate::watchdog::{self, Service, Setup};

/// A sandbox runs faster than a real shoot by this factor: a grace period of 8 s.
const SPEED: f64 = 5.0;

/// The user that the services are on the seed.
const USER: &str = "watchdog";

/// Everything of one test. The services belong to the test itself.
pub struct SandboxFixture {
    /// The seed and its shoots.
    pub sandbox: Sandbox,
    /// Starts services.
    pub setup: Setup,
    /// An administrator's client for the seed.
    pub seed: Client,
    /// The test's folder.
    pub scratch: Arc<Scratch>,
}

/// Times of the simulation.
#[must_use]
pub fn timing() -> SimTiming {
    SimTiming {
        ready_delay: Duration::from_millis(300),
        stop_delay: Duration::from_millis(200),
        ..SimTiming::scaled(SPEED)
    }
}

/// The services, for tests that do the same with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    LeaseProbe,
    /// scaling-coordinator.
    Coordinator,
    Weeder,
}

impl ServiceKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::LeaseProbe, Self::Coordinator, Self::Weeder];

    const fn binary(self) -> &'static str {
        match self {
            Self::LeaseProbe => binaries::LEASE_PROBE,
            Self::Coordinator => binaries::SCALING_COORDINATOR,
            Self::Weeder => binaries::WEEDER,
        }
    }
}

impl SandboxFixture {
    /// Starts a seed with shoots of five nodes.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn start(name: &str, shoots: &[&str]) -> anyhow::Result<Self> {
        let specs: Vec<_> = shoots
            .iter()
            .map(|name| SimulatedShootSpec::new(name, 5))
            .collect();
        let head = "probeInterval: 5s\ninitialDelay: 1s\nprobeTimeout: 3s";
        Self::start_with(
            name,
            specs,
            &fixtures::prober(head, "500ms"),
            &fixtures::weeder("1m"),
        )
        .await
    }

    /// Starts a seed with these shoots and configuration files.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn start_with(
        name: &str,
        shoots: Vec<SimulatedShootSpec>,
        prober: &str,
        weeder: &str,
    ) -> anyhow::Result<Self> {
        let scratch = Scratch::new(name)?;
        let config = SandboxConfig {
            timing: timing(),
            shoots,
            ..SandboxConfig::default()
        };
        let sandbox = Sandbox::start(config).await?;
        let seed = client(&sandbox.seed().kubeconfig("administrator")).await?;
        Ok(Self {
            setup: Setup::new(&scratch, prober, weeder)?,
            sandbox,
            seed,
            scratch,
        })
    }

    /// Kubeconfig of the services.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        self.sandbox.seed().kubeconfig(USER)
    }

    /// Starts a replica of a service under this name, which is also its user on the seed, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_replica(&self, kind: ServiceKind, name: &str) -> anyhow::Result<Service> {
        self.start_as(kind, name, name).await
    }

    async fn start_as(&self, kind: ServiceKind, name: &str, user: &str) -> anyhow::Result<Service> {
        let kubeconfig = self.sandbox.seed().kubeconfig(user);
        let service = self.setup.service(kind.binary(), name, &kubeconfig).await?;
        service.wait_ready().await?;
        Ok(service)
    }

    /// Starts lease-probe and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn lease_probe(&self) -> anyhow::Result<Service> {
        self.start_as(ServiceKind::LeaseProbe, "lease-probe-0", USER)
            .await
    }

    /// Starts scaling-coordinator and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn coordinator(&self) -> anyhow::Result<Service> {
        self.start_as(ServiceKind::Coordinator, "scaling-coordinator-0", USER)
            .await
    }

    /// Starts weeder and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn weeder(&self) -> anyhow::Result<Service> {
        self.start_as(ServiceKind::Weeder, "weeder-0", USER).await
    }

    /// A shoot by its short name.
    ///
    /// # Errors
    /// When there is none.
    pub fn shoot(&self, name: &str) -> anyhow::Result<SimulatedShoot> {
        Ok(self.sandbox.shoot(name)?)
    }

    /// The verdict on a shoot.
    ///
    /// # Errors
    /// When lease-probe does not answer or does not know the shoot.
    pub async fn verdict(&self, lease_probe: &Service, shoot: &str) -> anyhow::Result<probe::Verdict> {
        watchdog::verdict(self.setup.channel(lease_probe)?, shoot).await
    }

    /// Waits for a verdict with this outcome and returns it.
    ///
    /// # Errors
    /// When it does not come within `bound`; says what the verdict is instead.
    pub async fn wait_outcome(
        &self,
        lease_probe: &Service,
        shoot: &str,
        outcome: probe::Outcome,
        bound: Duration,
    ) -> anyhow::Result<probe::Verdict> {
        wait::until(
            &format!("the verdict on {shoot} is {outcome:?}"),
            bound,
            || async {
                let verdict = self.verdict(lease_probe, shoot).await?;
                let found = verdict.outcome();
                anyhow::ensure!(found == outcome, "it is {found:?}: {}", verdict.message);
                Ok(Some(verdict))
            },
        )
        .await
    }

    /// The scaling state of a shoot.
    ///
    /// # Errors
    /// When the coordinator does not answer or does not know the shoot.
    pub async fn scaling(&self, coordinator: &Service, shoot: &str) -> anyhow::Result<scaling::ShootScaling> {
        let mut client = ScalingServiceClient::new(self.setup.channel(coordinator)?);
        let request = scaling::GetScalingRequest {
            shoot: shoot.to_owned(),
        };
        client
            .get_scaling(request)
            .await?
            .into_inner()
            .scaling
            .context("an answer without a state")
    }

    /// Waits until the three dependants want and have this many replicas. With more than 0, meltdown-protection-active
    /// must be gone, too: the coordinator takes it off last, and writes no more after that.
    ///
    /// # Errors
    /// When they do not within `bound`.
    pub async fn wait_replicas(
        &self,
        shoot: &SimulatedShoot,
        replicas: i64,
        bound: Duration,
    ) -> anyhow::Result<()> {
        wait::until(
            &format!("the dependants of {} are at {replicas}", shoot.name()),
            bound,
            || async {
                for name in [KCM, MCM, CA] {
                    let workload = shoot.workload(name).context("absent")?;
                    let now = (workload.spec_replicas, workload.ready_replicas);
                    anyhow::ensure!(
                        now == (replicas, replicas),
                        "{name} wants {} and has {}",
                        now.0,
                        now.1
                    );
                    let held = workload
                        .watchdog_annotations
                        .contains_key("meltdown-protection-active");
                    anyhow::ensure!(replicas == 0 || !held, "{name} is not released yet");
                }
                Ok(Some(()))
            },
        )
        .await
    }

    /// Names of the resources of a shoot that were scaled, in the order of the writes.
    #[must_use]
    pub fn scale_writes(&self, shoot: &SimulatedShoot) -> Vec<String> {
        let prefix = format!("/apis/apps/v1/namespaces/{}/deployments/", shoot.namespace());
        let audit = self.sandbox.seed().audit();
        let writes = audit.iter().filter(|entry| entry.is_write() && entry.code < 300);
        writes.filter_map(|entry| scaled(entry, &prefix)).collect()
    }

    /// Paths of all writes into a shoot's namespace by the services, Kubernetes Events not counted.
    #[must_use]
    pub fn writes(&self, shoot: &SimulatedShoot) -> Vec<String> {
        let namespace = format!("/namespaces/{}/", shoot.namespace());
        let audit = self.sandbox.seed().audit();
        let ours = |entry: &&watchdog_sandbox::AuditEntry| {
            entry.is_write()
                && entry.user == USER
                && entry.path.contains(&namespace)
                && !entry.path.contains("/events")
        };
        audit
            .iter()
            .filter(ours)
            .map(|entry| format!("{} {}", entry.verb, entry.path))
            .collect()
    }
}

/// The resource below `prefix` whose replica count a write changes, if it changes one.
#[must_use]
pub fn scaled(entry: &watchdog_sandbox::AuditEntry, prefix: &str) -> Option<String> {
    let name = entry.path.strip_prefix(prefix)?;
    if let Some(name) = name.strip_suffix("/scale") {
        return Some(name.to_owned());
    }
    let body: serde_json::Value = serde_json::from_slice(&entry.body).ok()?;
    body.pointer("/spec/replicas").map(|_| name.to_owned())
}

/// A client from a kubeconfig.
///
/// # Errors
/// When the kubeconfig cannot be used.
pub async fn client(kubeconfig: &str) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    // A retried refusal would hide the one that a test asks for.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
