//! `--release-all` and `watchdogctl release`: restore everything that the watchdog holds down, then end (ADR 0018).
//!
//! The controller is that of the service, with two differences:
//! - Every resource counts as dropped from the configuration. Such a resource is restored if it is held down, and left
//!   alone otherwise.
//! - Every shoot counts as healthy and protected. The process begins when it leads, because no coordinator acts then.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use watchdog_api::policy::Mode;
use watchdog_api::prober::ProberConfig;
use watchdog_kube::leadership::{ElectionConfig, ElectionTiming, LeaderElection, Leadership};
use watchdog_kube::replica::PermissionGrantor;
use watchdog_kube::watch as seed_watches;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tasks::Tasks;

use super::{Indexes, LEADER_LEASE, SERVICE};
use crate::cluster::deployment;
use crate::cluster::resources::Resources;
use crate::config::{Config, Release};
use crate::controller::Controller;
use crate::controller::releaser::Releaser;
use crate::metrics;

pub use crate::controller::releaser::{ReleaseLine, ReleaseReport};

/// Requests that are under way when the release ends may take this long, as in the drain of the service.
const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// A seed, and how it is released.
pub struct SeedRelease {
    /// The seed.
    pub seed: kube::Client,
    /// The configuration whose resources are restored.
    pub rules: watch::Receiver<Arc<ProberConfig>>,
    /// Namespace of the Lease by which the replicas of the coordinator elect a leader.
    pub lease_namespace: String,
    /// Name of this process in the Lease.
    pub identity: String,
    /// Most requests about shoots in a second.
    pub request_rate: u32,
    /// How.
    pub options: Release,
}

/// Runs `--release-all`, and writes to `output` what was restored.
///
/// # Errors
/// When something is still held down at the end, with the reasons.
pub async fn run(config: Config, options: Release, mut output: impl Write + Send) -> anyhow::Result<()> {
    metrics::register();
    watchdog_kube::metrics::register();
    let agent = format!("{SERVICE}/{}", env!("CARGO_PKG_VERSION"));
    let release = SeedRelease {
        seed: watchdog_kube::seed::connect(config.args.common.kubeconfig.as_deref(), &agent).await?,
        rules: config.file.subscribe(),
        identity: config.args.common.identity_or_random(),
        lease_namespace: config.args.common.namespace,
        request_rate: config.args.request_rate,
        options,
    };
    let ReleaseReport { lines, ended } = release.run().await?;
    for line in lines {
        writeln!(output, "{line}")?;
    }
    writeln!(output, "{}", ended?)?;
    Ok(())
}

impl SeedRelease {
    /// Restores what is held down, or plans that.
    ///
    /// # Errors
    /// When nothing could be done: the seed cannot be read, or a replica of the coordinator still leads.
    pub async fn run(self) -> anyhow::Result<ReleaseReport> {
        let tasks = Tasks::default();
        let result = tokio::select! {
            error = tasks.first_end() => Err(error),
            result = self.release(&tasks) => result,
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

    async fn release(self, tasks: &Tasks) -> anyhow::Result<ReleaseReport> {
        let (seed, options) = (&self.seed, &self.options);
        let deadline = Instant::now() + options.timeout;
        let readiness = Readiness::default();
        let resources = |signals| {
            let mut resources = Resources::new(signals, &self.rules.borrow().dependent_resource_infos);
            resources.restores_only = true;
            resources
        };
        let indexes = Indexes::new(seed, &readiness, tasks, resources);
        let releaser = Releaser {
            clusters: indexes.clusters.clone(),
            resources: indexes.resources.clone(),
        };
        let clusters = vec![indexes.on_cluster_change()];
        let clusters = seed_watches::clusters(seed.clone(), readiness.clone(), tasks.draining(), clusters);
        tasks.critical("clusters", clusters);
        indexes.follow(self.rules.clone());
        timeout_at(deadline, releaser.listed()).await.with_context(|| {
            options.not_in_time("the Clusters and the resources were not listed", &readiness)
        })?;
        if options.plan {
            return Ok(releaser.plan());
        }
        if let Some(deployment) = &options.stop_deployment {
            deployment::stop(seed, deployment, deadline).await?;
        }
        let leadership = self.elect(&readiness, tasks);
        let mut leads = leadership.subscribe();
        timeout_at(deadline, leads.wait_for(|leads| *leads))
            .await
            .with_context(|| {
                let what = match &options.stop_deployment {
                    None => "the replicas of the coordinator have not stopped: scale their Deployment to 0".to_owned(),
                    Some(stopped) => format!(
                        "no shoot is protected any more: the Deployment {stopped} is scaled to 0, but its replicas \
                         have not stopped"
                    ),
                };
                options.not_in_time(&what, &readiness)
            })??;
        let before = releaser.held();
        let inputs = indexes.inputs(leadership, Mode::Protect);
        let reconciler = indexes.reconciler(inputs, PermissionGrantor::Chart, self.request_rate);
        let states = reconciler.states.clone();
        let controller = Controller::new(Arc::new(reconciler), indexes.signals);
        tasks.critical("controller", controller.run());
        Ok(releaser.finish(&before, &states, deadline).await)
    }

    /// Takes part in the election of the coordinator's replicas.
    fn elect(&self, readiness: &Readiness, tasks: &Tasks) -> Leadership {
        let election = ElectionConfig {
            client: self.seed.clone(),
            namespace: self.lease_namespace.clone(),
            lease: LEADER_LEASE,
            service: SERVICE,
            identity: self.identity.as_str().into(),
            address: None,
            readiness: readiness.clone(),
            timing: ElectionTiming::default(),
        };
        let (leadership, election) = LeaderElection::join(election, tasks.draining());
        tasks.critical("leader-election", async move {
            election.run().await;
            Ok(())
        });
        leadership
    }
}

impl Release {
    fn not_in_time(&self, what: &str, readiness: &Readiness) -> String {
        let within = format!("{what} within {:?}", self.timeout);
        let lines = [within].into_iter().chain(readiness.lines());
        lines.collect::<Vec<_>>().join("; ")
    }
}
