//! `--release-all`: restores everything that the watchdog holds down, and ends (ADR 0020).
//!
//! The engine, the flow and the writer are those of the service. Two things differ. Every resource counts as dropped
//! from the configuration, which restores what is held down and nothing else (ADR 0011). And this process itself
//! reports every shoot as healthy, once no other replica of the coordinator is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use watchdog_api::prober::{ProberConfig, ResourceRef};
use watchdog_kube::client::request;
use watchdog_kube::membership::{Discovery, Membership, MembershipConfig, Ownership};
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::process::Process;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tasks::Tasks;
use watchdog_watch_stream::server::StateStore;

use crate::app::{SERVICE, wake_all_on};
use crate::cluster::clusters::{Clusters, WriteEligibility};
use crate::cluster::resources::Resources;
use crate::cluster::watched_resources::LAST_WRITES;
use crate::cluster::watches;
use crate::cluster::writer::Writer;
use crate::config::{Config, Release};
use crate::controller::Controller;
use crate::controller::inputs::Inputs;
use crate::controller::verdicts::Verdicts;
use crate::controller::work_queue::WorkQueue;
use crate::controller::write_counts::WriteCounts;
use crate::domain::Direction;
use crate::domain::decision::{Outcome, Verdict};
use crate::domain::overview::ShootScaling;
use crate::domain::plan::{self, Action};

/// The interval at which the state is checked: in the indexes, without a request.
const LOOK: Duration = Duration::from_millis(250);

/// Requests that are under way at the end may take this long, as in the drain of the service.
const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// The name under which this process says that a shoot is healthy.
const OBSERVER: &str = "--release-all";

/// Resources that are held down, by shoot.
type HeldDown = BTreeMap<Arc<str>, BTreeSet<ResourceRef>>;

/// Restores everything that the watchdog holds down and says on `output` what was restored.
///
/// # Errors
/// When something is still held down at the end; says what, and why.
pub async fn run(
    config: Config,
    release: Release,
    _process: Process,
    mut output: impl Write + Send,
) -> anyhow::Result<()> {
    crate::metrics::register();
    watchdog_kube::metrics::register();
    let deadline = Instant::now() + release.timeout;
    let tasks = Tasks::default();
    let result = tokio::select! {
        error = tasks.first_end() => Err(error),
        result = run_until(config, &release, deadline, &tasks, &mut output) => result,
    };
    let (failed, in_time) = tasks.drain(DRAIN_GRACE).await;
    for error in failed {
        tracing::error!(error, "a task failed while draining");
    }
    if !in_time {
        tracing::warn!("tasks were still running 20 s after the drain started, they were aborted");
    }
    result
}

async fn run_until(
    config: Config,
    release: &Release,
    deadline: Instant,
    tasks: &Tasks,
    output: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let agent = format!("{SERVICE}/{}", env!("CARGO_PKG_VERSION"));
    let seed = watchdog_kube::client::seed(config.common.kubeconfig.as_deref(), &agent).await?;
    let readiness = Readiness::default();
    let within = |what: &str| {
        format!(
            "{what} within {:?}: {}",
            release.timeout,
            readiness.lines().join("; ")
        )
    };
    let (indexes, file) = Indexes::follow(&seed, &config, &readiness, tasks);
    timeout_at(deadline, indexes.listed(&file))
        .await
        .with_context(|| within("the Clusters and the resources were not listed"))?;
    indexes.restore_only(&file);
    if release.plan {
        return indexes.plan(&file, output);
    }
    if let Some(name) = &release.stop_deployment {
        stop_deployment(&seed, &config.common.namespace, name, deadline).await?;
    }
    // A replica that joins takes over shoots, and this one protects none.
    timeout_at(deadline, nobody_else(&seed, &config, &readiness, tasks))
        .await
        .with_context(|| {
            within("the replicas of the coordinator have not stopped: scale their Deployment to 0")
        })??;
    let identity = config.common.identity_or_random();
    let (membership, member) = Membership::join(
        MembershipConfig {
            client: seed.clone(),
            namespace: config.common.namespace.clone(),
            service: SERVICE,
            identity: identity.clone(),
            // It serves nothing; the port is none to connect to.
            address: "0.0.0.0:0".to_owned(),
            ownership: Ownership::Exclusive,
            readiness: readiness.clone(),
            timing: config.timing,
        },
        tasks.draining(),
    );
    tasks.critical("membership", async move {
        member.run().await;
        Ok(())
    });
    timeout_at(deadline, alone(&membership))
        .await
        .with_context(|| within("the membership of the coordinator was not joined, or not alone,"))?;
    let before = indexes.held(&file);
    indexes.drive(
        &seed,
        &config,
        &identity,
        &file,
        membership.clone(),
        &readiness,
        tasks,
    );
    // The watches may lag behind the last writes of the replicas that have stopped.
    let settled_at = Instant::now() + LAST_WRITES;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let now = Instant::now();
        let held = indexes.held(&file);
        let unlisted = indexes.unlisted(&file);
        let can_change =
            !unlisted.is_empty() || held.keys().any(|shoot| indexes.why_left_alone(shoot).is_none());
        if (can_change || now < settled_at) && now < deadline {
            continue;
        }
        let restored = indexes.report(&before, &held);
        output.write_all(restored.as_bytes())?;
        let others = others(&membership);
        anyhow::ensure!(
            others.is_empty(),
            "coordinator replicas have started meanwhile and may scale down again: {}",
            others.join(", ")
        );
        anyhow::ensure!(
            unlisted.is_empty(),
            "not known whether something is held down, because these are not listed: {}",
            unlisted.join(", ")
        );
        anyhow::ensure!(held.is_empty(), "still held down:\n{}", indexes.why_held(&held));
        writeln!(output, "nothing is held down")?;
        return Ok(());
    }
}

/// The indexes of the seed.
struct Indexes {
    work_queue: Arc<WorkQueue>,
    clusters: Arc<Clusters>,
    resources: Arc<Resources>,
    feed: StateStore<String, ShootScaling>,
}

impl Indexes {
    /// Starts the watches. Returns the configuration, which is not read again.
    fn follow(
        seed: &kube::Client,
        config: &Config,
        readiness: &Readiness,
        tasks: &Tasks,
    ) -> (Self, Arc<ProberConfig>) {
        let work_queue = Arc::new(WorkQueue::default());
        let clusters = Arc::new(Clusters::new(seed.clone(), work_queue.clone()));
        let resources = Arc::new(Resources::new(work_queue.clone()));
        let rules = config.file.subscribe();
        let file = rules.borrow().clone();
        let stop = tasks.draining();
        let follow = watches::clusters(
            seed.clone(),
            clusters.clone(),
            resources.clone(),
            readiness.clone(),
            stop.clone(),
        );
        tasks.critical("clusters", follow);
        let follow = watches::resources(
            seed.clone(),
            resources.clone(),
            rules,
            watch::Sender::new(file.clone()),
            watch::Sender::new(0),
            readiness.clone(),
            stop,
        );
        tasks.critical("resources", follow);
        let indexes = Self {
            work_queue,
            clusters,
            resources,
            feed: StateStore::new(),
        };
        (indexes, file)
    }

    /// The resources that are not listed, because the seed does not answer or its etcd was just restored.
    fn unlisted(&self, file: &ProberConfig) -> Vec<String> {
        references(file)
            .filter(|reference| !self.resources.is_listed(reference))
            .map(ToString::to_string)
            .collect()
    }

    /// Waits until everything is listed.
    async fn listed(&self, file: &ProberConfig) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            // Any name will do: before the list is complete nothing is known of any.
            let clusters = self.clusters.write_eligibility("") != WriteEligibility::Unlisted;
            if clusters && self.unlisted(file).is_empty() {
                return;
            }
        }
    }

    /// From now on what is held down is restored, and nothing else is touched.
    fn restore_only(&self, file: &ProberConfig) {
        for reference in references(file) {
            self.resources.drop_from_configuration(reference);
        }
    }

    /// Lists the resources that are held down now.
    fn held(&self, file: &ProberConfig) -> HeldDown {
        let mut held = HeldDown::new();
        for reference in references(file) {
            for shoot in self.resources.held_down_in(reference) {
                held.entry(shoot).or_default().insert(reference.clone());
            }
        }
        held
    }

    /// Says what would be done.
    fn plan(&self, file: &ProberConfig, output: &mut impl Write) -> anyhow::Result<()> {
        let held = self.held(file);
        for (shoot, resources) in &held {
            if let Some(why) = self.why_left_alone(shoot) {
                writeln!(output, "{shoot}: left as it is: {why}")?;
                continue;
            }
            if let WriteEligibility::Stopped(reason) = self.clusters.write_eligibility(shoot) {
                for reference in resources {
                    writeln!(
                        output,
                        "{shoot}: {reference}: remove meltdown-protection-active and leave its replicas to others: {reason}"
                    )?;
                }
                continue;
            }
            for (level, resources) in plan::plan(Direction::Up, &self.resources.dependents(file, shoot)) {
                for planned in resources {
                    let what = match (planned.action, planned.target) {
                        (Action::Scale, Some(target)) => format!("scale to {target}"),
                        (Action::Scale | Action::CleanUp, _) => {
                            "remove meltdown-protection-active".to_owned()
                        }
                        (Action::Wait, _) => "wait".to_owned(),
                        _ => continue,
                    };
                    let (reference, why) = (&planned.reference, &planned.why);
                    writeln!(output, "{shoot}: level {level}: {reference}: {what}: {why}")?;
                }
            }
        }
        let resources: usize = held.values().map(BTreeSet::len).sum();
        writeln!(
            output,
            "{resources} resources are held down in {} shoots",
            held.len()
        )?;
        Ok(())
    }

    /// Starts the engine, with a verdict on every shoot that it is healthy.
    #[allow(
        clippy::too_many_arguments,
        reason = "it joins the parts, as the service does"
    )]
    fn drive(
        &self,
        seed: &kube::Client,
        config: &Config,
        identity: &str,
        file: &Arc<ProberConfig>,
        membership: Membership,
        readiness: &Readiness,
        tasks: &Tasks,
    ) {
        let stop = tasks.draining();
        tasks.critical(
            "ownership",
            wake_all_on(membership.subscribe(), self.work_queue.clone(), stop.clone()),
        );
        let verdicts = Arc::new(Verdicts::new(self.work_queue.clone()));
        let observer: Arc<str> = OBSERVER.into();
        let now = Instant::now();
        let healthy = Verdict {
            outcome: Outcome::Healthy,
            observer: observer.clone(),
            observed: now,
            sent: now,
            // The process ends long before.
            valid_until: now + DAY,
            message: "".into(),
        };
        verdicts.joined(&observer);
        let all = self.clusters.names().into_iter();
        verdicts.snapshot(&observer, all.map(|shoot| (shoot.to_string(), healthy.clone())));
        let (events, publish) =
            watchdog_kube::events::recorder(seed.clone(), SERVICE, identity, readiness.clone(), stop.clone());
        tasks.critical("events", publish);
        let inputs = Arc::new(Inputs {
            config: watch::Sender::new(file.clone()).subscribe(),
            verdicts,
            clusters: self.clusters.clone(),
            resources: self.resources.clone(),
            membership,
            draining: stop,
        });
        let writer = Writer::new(seed.clone(), self.clusters.clone(), self.resources.clone());
        let engine = Controller::new(
            inputs,
            self.work_queue.clone(),
            writer,
            self.feed.clone(),
            Arc::new(WriteCounts::default()),
            events,
            config.request_rate,
        );
        self.work_queue.add_all();
        tasks.critical("engine", engine.run());
    }

    /// Returns the reason for which nothing at all is written to a shoot.
    fn why_left_alone(&self, shoot: &str) -> Option<String> {
        match self.clusters.write_eligibility(shoot) {
            write_eligibility if write_eligibility.is_released() => None,
            WriteEligibility::Allowed => None,
            WriteEligibility::Unlisted => Some("the Clusters of the seed are not listed yet".to_owned()),
            WriteEligibility::Absent => Some("its Cluster is gone".to_owned()),
            WriteEligibility::Stopped(reason) => Some(reason.to_string()),
        }
    }

    /// A line for each resource that is not held down any more.
    fn report(&self, before: &HeldDown, now: &HeldDown) -> String {
        let mut lines = String::new();
        for (shoot, resources) in before {
            let done = match self.clusters.write_eligibility(shoot) {
                WriteEligibility::Allowed => "restored",
                WriteEligibility::Absent => "gone with its shoot",
                _ => "meltdown-protection-active removed, its replicas are left to others",
            };
            for reference in resources {
                if !now.get(shoot).is_some_and(|held| held.contains(reference)) {
                    // Writing to a String cannot fail.
                    let _ = writeln!(lines, "{shoot}: {reference}: {done}");
                }
            }
        }
        lines
    }

    /// A line for each resource that is still held down.
    fn why_held(&self, held: &HeldDown) -> String {
        let mut lines = String::new();
        for (shoot, resources) in held {
            let scaling = self.feed.get(&shoot.to_string());
            for reference in resources {
                let why = self.why_left_alone(shoot).unwrap_or_else(|| {
                    let progress = scaling
                        .iter()
                        .flat_map(|scaling| &scaling.status.resources)
                        .find(|progress| progress.reference == *reference);
                    progress.map_or_else(
                        || "this replica does not own the shoot".to_owned(),
                        |progress| progress.message.clone(),
                    )
                });
                // Writing to a String cannot fail.
                let _ = writeln!(lines, "{shoot}: {reference}: {why}");
            }
        }
        lines
    }
}

/// See the verdict of [`Indexes::drive`].
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn references(file: &ProberConfig) -> impl Iterator<Item = &ResourceRef> {
    let dependents = file.dependent_resource_infos.iter();
    dependents.map(|dependent| &dependent.reference)
}

/// The other replicas of the coordinator that have not left.
fn others(membership: &Membership) -> Vec<String> {
    let members = membership.members().into_iter();
    members
        .filter(|member| !member.me)
        .map(|member| member.identity.to_string())
        .collect()
}

/// Waits until no replica of the coordinator is left.
async fn nobody_else(
    seed: &kube::Client,
    config: &Config,
    readiness: &Readiness,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let stop = tasks.draining();
    let (namespace, timing) = (&config.common.namespace, config.timing);
    let (mut found, discovery) =
        Discovery::follow(seed.clone(), namespace, SERVICE, timing, readiness.clone(), stop);
    tasks.critical("discovery", async move {
        discovery.run().await;
        Ok(())
    });
    loop {
        found.changed().await?;
        let replicas: Vec<_> = found
            .borrow_and_update()
            .keys()
            .map(ToString::to_string)
            .collect();
        if replicas.is_empty() {
            return Ok(());
        }
        let replicas = replicas.join(", ");
        tracing::info!(
            replicas,
            "waiting until the replicas of the coordinator have stopped"
        );
    }
}

/// Waits until this is the only replica of the coordinator.
async fn alone(membership: &Membership) {
    let mut changes = membership.subscribe();
    loop {
        changes.mark_unchanged();
        if membership.has_joined() && others(membership).is_empty() {
            return;
        }
        // The sender lives in the membership.
        let _ = changes.changed().await;
    }
}

/// Scales a Deployment to 0, and tries again until the deadline unless that is forbidden.
async fn stop_deployment(
    seed: &kube::Client,
    namespace: &str,
    name: &str,
    deadline: Instant,
) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(seed.clone(), namespace);
    let patch = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(15));
    loop {
        let stopped = request(deployments.patch_scale(name, &PatchParams::default(), &patch)).await;
        let error = match stopped {
            Ok(_) => {
                tracing::info!(deployment = name, "scaled the Deployment to 0");
                return Ok(());
            }
            Err(error) if error.is_not_found() => {
                tracing::info!(deployment = name, "the Deployment does not exist");
                return Ok(());
            }
            Err(error) => error,
        };
        let pause = backoff.next_delay().max(error.retry_after().unwrap_or_default());
        let in_time = Instant::now() + pause < deadline;
        anyhow::ensure!(
            in_time && !error.is_forbidden(),
            "the Deployment {name} could not be scaled to 0: {error}"
        );
        tracing::warn!(deployment = name, %error, "could not scale the Deployment to 0, trying again");
        tokio::time::sleep(pause).await;
    }
}
