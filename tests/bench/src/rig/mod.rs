//! The set-up of a measurement: a seed, the fleet and the services under test, each a process of its own.

pub mod admin;
pub mod memory_limit;
pub mod perf;
pub mod seed;
pub mod subscriber;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use watchdog_test_support::binaries;
use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::watchdog::{Service, Setup};

use admin::FleetAdmin;
use seed::BenchSeed;

/// Putting 10,000 shoots with all their objects on a seed takes minutes.
const SEEDING_BOUND: Duration = Duration::from_secs(900);

/// The weeder's configuration is not used by these measurements.
const NO_WEEDER: &str = "";

/// The processes to start.
#[derive(Debug, Clone)]
pub struct RigOptions {
    pub shoots: usize,
    /// Nodes of each.
    pub nodes: usize,
    /// Machines on the seed.
    pub machines: bool,
    /// Dependants on the seed, and their controller.
    pub dependants: bool,
    /// A real kube-apiserver as the seed, not the sandbox.
    pub real: bool,
    /// The prober configuration.
    pub prober: String,
}

/// A seed with its fleet. The services belong to the measurement. Everything ends when it is dropped.
pub struct Rig {
    /// Steers the fleet.
    pub admin: FleetAdmin,
    pub fleet: ChildProcess,
    pub seed: BenchSeed,
    /// Starts services.
    pub setup: Setup,
    /// The running processes.
    pub options: RigOptions,
    /// Folder of logs, certificates and configuration files.
    pub scratch: Arc<Scratch>,
}

impl Rig {
    /// Starts a seed and the fleet, and waits until all shoots are on the seed.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn start(options: RigOptions) -> anyhow::Result<Self> {
        let scratch = Scratch::new("bench")?;
        let seed = BenchSeed::start(&scratch, options.real).await?;
        let (fleet, admin) = start_fleet(&scratch, &seed, &options).await?;
        Ok(Self {
            setup: Setup::new(&scratch, &options.prober, NO_WEEDER)?,
            admin,
            fleet,
            seed,
            options,
            scratch,
        })
    }

    /// Starts lease-probe replicas.
    ///
    /// # Errors
    /// When one does not come up.
    pub async fn lease_probes(&self, replicas: usize) -> anyhow::Result<Vec<Service>> {
        let mut services = Vec::new();
        for i in 0..replicas {
            let name = format!("lease-probe-{i}");
            services.push(self.setup.lease_probe(&name, &self.seed.kubeconfig).await?);
        }
        Ok(services)
    }
}

async fn start_fleet(
    scratch: &Arc<Scratch>,
    seed: &BenchSeed,
    options: &RigOptions,
) -> anyhow::Result<(ChildProcess, FleetAdmin)> {
    let kubeconfig = scratch.write("fleet-seed.kubeconfig", &seed.kubeconfig)?;
    let mut command = Command::new("fleet", binaries::path("watchdog-fleet")?)
        .arg("--shoots")
        .arg(options.shoots.to_string())
        .arg("--nodes")
        .arg(options.nodes.to_string())
        .arg("--seed-kubeconfig")
        .arg(kubeconfig);
    if options.machines {
        command = command.arg("--machines");
    }
    if options.dependants {
        command = command.arg("--dependants");
    }
    let process = command.spawn(scratch)?;
    let address = process
        .wait_for_field("fleet ready", "admin", SEEDING_BOUND)
        .await
        .context("start the fleet")?;
    Ok((process, FleetAdmin::new(address)))
}
