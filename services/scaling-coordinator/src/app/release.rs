//! `--release-all`: restores everything that the watchdog holds down, then ends.

use std::io::Write;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::{Instant, timeout_at};
use watchdog_kube::leadership::{ElectionConfig, LeaderElection, Leadership};
use watchdog_kube::replica::PermissionGrantor;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tasks::Tasks;

use super::{Indexes, LEADER_LEASE, SERVICE};
use crate::cluster::deployment;
use crate::config::{Config, Release};
use crate::controller::inputs::ModeSource;
use crate::controller::releaser::Releaser;
use crate::metrics;

/// Requests that are under way when `--release-all` ends may take this long, as in the drain of the service.
const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// Restores everything that the watchdog holds down and writes to `output` what was restored (ADR 0018).
///
/// The controller is that of the service. Two things differ. Every resource counts as dropped from the configuration,
/// which restores what is held down and nothing else. And this process itself reports every shoot as healthy, once it
/// leads: no replica of the coordinator acts then.
///
/// # Errors
/// When something is still held down at the end, with the reasons.
pub async fn run(config: Config, options: Release, output: impl Write + Send) -> anyhow::Result<()> {
    metrics::register();
    watchdog_kube::metrics::register();
    let tasks = Tasks::default();
    let result = tokio::select! {
        error = tasks.first_end() => Err(error),
        result = release(config, options, &tasks, output) => result,
    };
    let (failed, in_time) = tasks.drain(DRAIN_GRACE).await;
    for error in failed {
        tracing::error!(error, "a task failed while draining");
    }
    if !in_time {
        tracing::warn!("tasks were still running 20 s after the drain started; they were aborted");
    }
    result
}

async fn release(
    config: Config,
    options: Release,
    tasks: &Tasks,
    mut output: impl Write + Send,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + options.timeout;
    let agent = format!("{SERVICE}/{}", env!("CARGO_PKG_VERSION"));
    let seed = watchdog_kube::client::seed(config.common.kubeconfig.as_deref(), &agent).await?;
    let readiness = Readiness::default();
    let indexes = Indexes::new(&seed, &readiness, tasks, PermissionGrantor::Chart);
    let rules = config.file.subscribe();
    let releaser = Releaser::new(
        indexes.clusters.clone(),
        indexes.resources.clone(),
        rules.borrow().clone(),
    );
    let in_force = indexes.follow(rules);
    timeout_at(deadline, releaser.listed())
        .await
        .with_context(|| options.not_in_time("the Clusters and the resources were not listed", &readiness))?;
    releaser.restore_only();
    if options.plan {
        return releaser.plan(&mut output);
    }
    if let Some(deployment) = &options.stop_deployment {
        deployment::stop(&seed, deployment, deadline).await?;
    }
    let identity = config.common.identity_or_random();
    let leadership = elect(&config, &seed, &identity, &readiness, tasks);
    let mut leads = leadership.subscribe();
    timeout_at(deadline, leads.wait_for(|leads| *leads))
        .await
        .with_context(|| {
            let what = "the replicas of the coordinator have not stopped: scale their Deployment to 0";
            options.not_in_time(what, &readiness)
        })??;
    let before = releaser.held();
    let verdicts = releaser.all_healthy(&indexes.work_queue);
    let inputs = indexes.inputs(
        in_force,
        verdicts,
        leadership,
        ModeSource::ProtectAll,
        Clock::start(),
    );
    let controller = indexes.controller(inputs, PermissionGrantor::Chart, &identity, config.request_rate);
    let states = controller.states();
    tasks.critical("controller", controller.run());
    releaser.finish(&before, &states, deadline, &mut output).await
}

/// Takes part in the election of the coordinator's replicas.
fn elect(
    config: &Config,
    seed: &kube::Client,
    identity: &str,
    readiness: &Readiness,
    tasks: &Tasks,
) -> Leadership {
    let election = ElectionConfig {
        client: seed.clone(),
        namespace: config.common.namespace.clone(),
        lease: LEADER_LEASE,
        service: SERVICE,
        identity: identity.into(),
        address: None,
        readiness: readiness.clone(),
        timing: config.election,
    };
    let (leadership, election) = LeaderElection::join(election, tasks.draining());
    tasks.critical("leader-election", async move {
        election.run().await;
        Ok(())
    });
    leadership
}

impl Release {
    fn not_in_time(&self, what: &str, readiness: &Readiness) -> String {
        let blockers = readiness.lines().join("; ");
        format!("{what} within {:?}: {blockers}", self.timeout)
    }
}
