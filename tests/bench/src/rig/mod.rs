//! The set-up of a measurement: a seed, the fleet and the services under test, each a process of its own.

pub mod memory_limit;
pub mod perf;
pub mod seed;
pub mod subscriber;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use watchdog_test_support::process::{ChildProcess, Command};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::watchdog::{Service, Setup};
use watchdog_test_support::{binaries, fixtures};

use crate::fleet::admin::FleetAdmin;
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

impl RigOptions {
    /// The sandbox as the seed, with Machines and without dependants; each shoot is probed every `interval` on average.
    pub fn new(shoots: usize, nodes: usize, interval: Duration) -> Self {
        // lease-probe adds 0 to 20 % to its interval at random, 10 % on average.
        let millis = (interval.as_secs_f64() / 1.1 * 1e3).round();
        Self {
            shoots,
            nodes,
            machines: true,
            dependants: false,
            real: false,
            prober: fixtures::prober(&format!("probeInterval: {millis}ms"), "30s"),
        }
    }
}

/// A seed with its fleet. The services belong to the measurement. Everything ends when it is dropped.
pub struct Rig {
    /// Steers the fleet.
    pub admin: FleetAdmin,
    _fleet: ChildProcess,
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
        let kubeconfig = scratch.write("fleet-seed.kubeconfig", &seed.kubeconfig)?;
        let flags = [
            ("--machines", options.machines),
            ("--dependants", options.dependants),
        ];
        let fleet = Command::new("fleet", binaries::path("probe-fleet")?)
            .args(["fleet", "--seed-kubeconfig"])
            .arg(kubeconfig)
            .args(["--shoots".to_owned(), options.shoots.to_string()])
            .args(["--nodes".to_owned(), options.nodes.to_string()])
            .args(
                flags
                    .into_iter()
                    .filter_map(|(flag, is_set)| is_set.then_some(flag)),
            )
            .spawn(&scratch)?;
        let address = fleet
            .wait_for_field("fleet ready", "admin", SEEDING_BOUND)
            .await
            .context("start the fleet")?;
        Ok(Self {
            setup: Setup::new(&scratch, &options.prober, NO_WEEDER)?,
            admin: FleetAdmin { address },
            _fleet: fleet,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_interval_is_the_one_asked_for() {
        let options = RigOptions::new(1, 1, Duration::from_secs(10));
        assert!(options.prober.contains("probeInterval: 9091ms"));
    }
}
