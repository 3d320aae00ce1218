//! `--release-all`: restores everything that the watchdog holds down, then ends.

use std::io::Write;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::{Instant, timeout_at};
use watchdog_kube::membership::Exclusive;
use watchdog_kube::replica::PermissionGrantor;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tasks::Tasks;

use super::{Indexes, SERVICE};
use crate::cluster::other_replicas::{OtherReplicas, alone};
use crate::config::{Config, Release};
use crate::controller::inputs::ModeSource;
use crate::controller::releaser::Releaser;
use crate::metrics;

/// Requests that are under way when `--release-all` ends may take this long, as in the drain of the service.
const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// Restores everything that the watchdog holds down and writes to `output` what was restored (ADR 0020).
///
/// The engine, the flow and the writer are those of the service. Two things differ. Every resource counts as dropped
/// from the configuration, which restores what is held down and nothing else (ADR 0011). And this process itself
/// reports every shoot as healthy, once no other replica of the coordinator is left.
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
    let identity = config.common.identity_or_random();
    let others = OtherReplicas {
        seed: seed.clone(),
        service: SERVICE,
        namespace: config.common.namespace,
        timing: config.timing,
        readiness,
    };
    let membership = replace(&others, &identity, &options, deadline, tasks).await?;
    let before = releaser.held();
    let verdicts = releaser.all_healthy(&indexes.work_queue);
    let inputs = indexes.inputs(
        in_force,
        verdicts,
        membership.clone(),
        ModeSource::ProtectAll,
        Clock::start(),
    );
    let engine = indexes.engine(inputs, PermissionGrantor::Chart, &identity, config.request_rate);
    let states = engine.states();
    tasks.critical("engine", engine.run());
    releaser
        .finish(&before, &states, &membership, deadline, &mut output)
        .await
}

/// Takes the place of the replicas of the coordinator, once they have stopped.
async fn replace(
    others: &OtherReplicas,
    identity: &str,
    options: &Release,
    deadline: Instant,
    tasks: &Tasks,
) -> anyhow::Result<Exclusive> {
    let not_in_time = |what| options.not_in_time(what, &others.readiness);
    if let Some(deployment) = &options.stop_deployment {
        others.stop_deployment(deployment, deadline).await?;
    }
    // A replica that joins takes over shoots, and this one protects none.
    timeout_at(deadline, others.gone(tasks)).await.with_context(|| {
        not_in_time("the replicas of the coordinator have not stopped: scale their Deployment to 0")
    })??;
    let membership = others.replace(identity, tasks);
    timeout_at(deadline, alone(&membership))
        .await
        .with_context(|| not_in_time("the membership of the coordinator was not joined, or not alone,"))?;
    Ok(membership)
}

impl Release {
    fn not_in_time(&self, what: &str, readiness: &Readiness) -> String {
        let blockers = readiness.lines().join("; ");
        format!("{what} within {:?}: {blockers}", self.timeout)
    }
}
