//! The set-up of a measurement: a seed, the fleet and the services under test. The services are processes; seed and
//! fleet are threads of their own beside those that measure.

pub mod memory_limit;
pub mod subscriber;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::Builder;
use watchdog_sandbox::ApiServer;
use watchdog_test_support::real::{KubeApiserver, RealControlPlane};
use watchdog_test_support::resource_usage::cpu_of_threads;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::separate_runtime::SeparateRuntime;
use watchdog_test_support::watchdog::{Service, Setup};
use watchdog_test_support::workload_controller::{ReplicasChange, WorkloadController, WorkloadOptions};
use watchdog_test_support::{fixtures, sandboxed};

use crate::fleet::listener::FleetListener;
use crate::fleet::{Fleet, seeding};
use crate::{requests_by_kind, sandbox_seed};

/// From the wish for other replicas to ready ones: pods that are pulled already.
const WORKLOAD_DELAY: Duration = Duration::from_millis(200);

/// The name of the threads of the fleet.
const FLEET: &str = "fleet";

/// The weeder's configuration is not used by these measurements.
const NO_WEEDER: &str = "";

/// The processes to start, and the objects of each shoot besides its namespace, kubeconfig and Cluster.
#[derive(Debug, Clone)]
pub struct RigOptions {
    pub shoots: usize,
    /// Nodes of each.
    pub nodes: usize,
    /// A Machine for every node: without them no node counts, so no loss is found.
    pub machines: bool,
    /// kube-controller-manager, machine-controller-manager and cluster-autoscaler of each shoot, and their controller.
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
    pub fleet: Arc<Fleet>,
    /// An administrator's kubeconfig of the seed.
    pub kubeconfig: String,
    sandbox: Option<ApiServer>,
    _real: Option<(KubeApiserver, RealControlPlane)>,
    workloads: Option<WorkloadController>,
    /// Starts services.
    pub setup: Setup,
    /// The running processes.
    pub options: RigOptions,
    /// Folder of logs, certificates and configuration files.
    pub scratch: Arc<Scratch>,
    _runtimes: [SeparateRuntime; 2],
}

impl Rig {
    /// Starts a seed and the fleet, and puts all shoots on the seed.
    pub async fn start(options: RigOptions) -> anyhow::Result<Self> {
        let scratch = Scratch::new("bench")?;
        let (seed_runtime, fleet_runtime) = (runtime("seed")?, runtime(FLEET)?);
        let (mut sandbox, mut real) = (None, None);
        let kubeconfig = if options.real {
            let plane = RealControlPlane::start("bench-seed").await?;
            let server = plane.api_server("seed").await?;
            let kubeconfig = server.kubeconfig_for("admin")?;
            real = Some((server, plane));
            kubeconfig
        } else {
            let server = seed_runtime.run(sandbox_seed()).await?;
            sandbox.insert(server).kubeconfig("admin")
        };
        let fleet = Arc::new(Fleet::new(options.shoots, options.nodes));
        let serving = fleet.clone();
        let endpoint = fleet_runtime.run(async {
            let listener = FleetListener::bind()?;
            let endpoint = listener.endpoint.clone();
            tokio::spawn(listener.serve(serving));
            Ok(endpoint)
        });
        let endpoint = endpoint.await?;
        let client = sandboxed::client(&kubeconfig).await?;
        let workloads = WorkloadOptions::new(WORKLOAD_DELAY);
        let workloads = options
            .dependants
            .then(|| WorkloadController::start(&client, workloads));
        seeding::seed(&fleet, &client, &endpoint, &options)
            .await
            .context("put the shoots on the seed")?;
        Ok(Self {
            setup: Setup::new(&scratch, &options.prober, NO_WEEDER)?,
            fleet,
            kubeconfig,
            sandbox,
            _real: real,
            workloads,
            options,
            scratch,
            _runtimes: [seed_runtime, fleet_runtime],
        })
    }

    /// Starts lease-probe replicas.
    pub async fn lease_probes(&self, replicas: usize) -> anyhow::Result<Vec<Service>> {
        let mut services = Vec::new();
        for i in 0..replicas {
            let name = format!("lease-probe-{i}");
            services.push(self.setup.lease_probe(&name, &self.kubeconfig).await?);
        }
        Ok(services)
    }

    /// CPU time of the fleet.
    pub fn fleet_cpu(&self) -> anyhow::Result<Duration> {
        cpu_of_threads(FLEET)
    }

    /// Number of the newest request to the sandbox; 0 with a real seed.
    pub fn last_request(&self) -> u64 {
        self.sandbox.as_ref().map_or(0, |seed| seed.counters().requests)
    }

    /// Requests to the sandbox since one, by verb and resource; none with a real seed.
    pub fn requests_since(&self, since: u64) -> BTreeMap<String, usize> {
        let requests = self.sandbox.as_ref().map(|seed| seed.audit_since(since));
        requests_by_kind(&requests.unwrap_or_default())
    }

    /// When dependants were scaled.
    pub fn scales(&self) -> Vec<ReplicasChange> {
        let workloads = self.workloads.as_ref();
        workloads.map(WorkloadController::changes).unwrap_or_default()
    }
}

/// Threads with a name.
fn runtime(name: &str) -> anyhow::Result<SeparateRuntime> {
    let mut threads = Builder::new_multi_thread();
    threads.thread_name(name);
    SeparateRuntime::start(threads)
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
