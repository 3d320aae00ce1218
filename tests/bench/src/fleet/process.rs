//! The fleet as a process of its own, so that its cost is not that of the measurement.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

use super::listener::FleetListener;
use super::{Fleet, admin, seeding};

/// From the wish for other replicas to ready ones: pods that are pulled already.
const WORKLOAD_DELAY: Duration = Duration::from_millis(200);

/// The shoots, and the objects that are put on the seed besides namespaces, kubeconfigs and Clusters.
#[derive(Debug, Clone, clap::Args)]
pub struct FleetProcessOptions {
    /// Shoots
    #[arg(long)]
    pub shoots: usize,
    /// Nodes of each shoot
    #[arg(long)]
    pub nodes: usize,
    /// Kubeconfig of the seed on which the shoots are put
    #[arg(long)]
    pub seed_kubeconfig: PathBuf,
    /// Put a Machine for every node on the seed: without them no node counts, so no loss is found
    #[arg(long)]
    pub machines: bool,
    /// Put kube-controller-manager, machine-controller-manager and cluster-autoscaler on the seed, play their
    /// controller, and note when they are scaled
    #[arg(long)]
    pub dependants: bool,
}

/// Simulates the shoots until the process is killed. Prints a line of JSON when all of them are on the seed.
///
/// # Errors
/// When something does not come up.
pub async fn run(options: FleetProcessOptions) -> anyhow::Result<()> {
    let fleet = Arc::new(Fleet::new(options.shoots, options.nodes));
    let listener = FleetListener::bind()?;
    let endpoint = listener.endpoint.clone();
    let serving = tokio::spawn(listener.serve(fleet.clone()));
    let client = seeding::client(&options.seed_kubeconfig).await?;
    let workload_options = WorkloadOptions::new(WORKLOAD_DELAY);
    let workloads = options
        .dependants
        .then(|| Arc::new(WorkloadController::start(&client, workload_options)));
    seeding::seed(&fleet, &client, &endpoint, &options)
        .await
        .context("put the shoots on the seed")?;
    let address = admin::serve(fleet, workloads).await?;
    let ready = serde_json::json!({"message": "fleet ready", "admin": address.to_string()});
    writeln!(std::io::stdout().lock(), "{ready}")?;
    Ok(serving.await?)
}
