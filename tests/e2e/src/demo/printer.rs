//! Tasks that watch the services over gRPC and the seed, and print what changes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_proto::weeder::v1 as weeder;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_test_support::simulation::SimulatedShoot;

use super::output::TimedOutput;
use super::{Watchdog, timing};
use watchdog_test_support::watchdog::Setup;

/// Reports replicas this often: they are read from the store, in this process.
const LOOK: Duration = Duration::from_millis(50);

/// Watches as long as it is held.
pub(super) struct ChangePrinter {
    healthy: watch::Receiver<usize>,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl ChangePrinter {
    pub(super) fn start(
        output: TimedOutput,
        setup: &Setup,
        watchdog: &Watchdog,
        shoot: &SimulatedShoot,
    ) -> anyhow::Result<Self> {
        let (count, healthy) = watch::channel(0);
        let verdicts = verdicts(
            output,
            count,
            LeaseProbeServiceClient::new(setup.channel(&watchdog.lease_probe)?),
        );
        let scalings = scalings(
            output,
            ScalingServiceClient::new(setup.channel(&watchdog.coordinator)?),
        );
        let weedings = weedings(output, WeederServiceClient::new(setup.channel(&watchdog.weeder)?));
        let replicas = replicas(output, shoot.clone());
        let report = move |name: &'static str, result: anyhow::Result<()>| {
            if let Err(error) = result {
                output.line(format!("the {name} stream ended: {error:#}"));
            }
        };
        let spawn = |task| AbortOnDropHandle::new(tokio::spawn(task));
        let tasks = vec![
            spawn(Box::pin(async move { report("verdict", verdicts.await) }) as futures::future::BoxFuture<_>),
            spawn(Box::pin(async move { report("scaling", scalings.await) })),
            spawn(Box::pin(async move { report("weeding", weedings.await) })),
            spawn(Box::pin(replicas)),
        ];
        Ok(Self { healthy, tasks })
    }

    /// Stops watching; nothing is reported afterwards.
    pub(super) async fn stop(self) {
        for task in self.tasks {
            task.abort();
            // It was aborted: how it ended says nothing.
            let _ = task.await;
        }
    }

    /// Waits until this many shoots were reported as healthy.
    pub(super) async fn wait_healthy(&self, shoots: usize) -> anyhow::Result<()> {
        let mut healthy = self.healthy.clone();
        let all = healthy.wait_for(|count| *count >= shoots);
        tokio::time::timeout(Duration::from_secs(20), all)
            .await
            .context("not all shoots became healthy")??;
        Ok(())
    }
}

async fn verdicts(
    output: TimedOutput,
    healthy: watch::Sender<usize>,
    mut client: LeaseProbeServiceClient<tonic::transport::Channel>,
) -> anyhow::Result<()> {
    use probe::watch_verdicts_response::Event;
    let mut stream = client
        .watch_verdicts(probe::WatchVerdictsRequest::default())
        .await?
        .into_inner();
    let mut printed: BTreeMap<String, (i32, u32)> = BTreeMap::new();
    while let Some(message) = stream.message().await? {
        let Some(Event::Upsert(verdict)) = message.event else {
            continue;
        };
        let expired = verdict.evidence.as_ref().map_or(0, |evidence| evidence.expired);
        let now = (verdict.outcome, expired);
        if printed.insert(verdict.shoot.clone(), now) != Some(now) {
            let outcome = verdict
                .outcome()
                .as_str_name()
                .trim_start_matches("OUTCOME_")
                .to_owned();
            output.line(format!(
                "verdict  {}: {outcome}. {}",
                verdict.shoot, verdict.message
            ));
        }
        let is_healthy = |(outcome, _): &&(i32, u32)| *outcome == i32::from(probe::Outcome::Healthy);
        healthy.send_replace(printed.values().filter(is_healthy).count());
    }
    Ok(())
}

async fn scalings(
    output: TimedOutput,
    mut client: ScalingServiceClient<tonic::transport::Channel>,
) -> anyhow::Result<()> {
    use scaling::watch_scaling_response::Event;
    let mut stream = client
        .watch_scaling(scaling::WatchScalingRequest::default())
        .await?
        .into_inner();
    let mut printed: BTreeMap<(String, String), i32> = BTreeMap::new();
    while let Some(message) = stream.message().await? {
        let Some(Event::Upsert(shoot)) = message.event else {
            continue;
        };
        let direction = match shoot.direction() {
            scaling::Direction::Down => "down",
            scaling::Direction::Up => "up",
            _ => continue,
        };
        for resource in &shoot.resources {
            let name = resource
                .resource
                .as_ref()
                .map(|r| r.name.clone())
                .unwrap_or_default();
            let state = resource.state();
            let last = printed.insert((shoot.shoot.clone(), name.clone()), resource.state);
            let quiet = matches!(
                state,
                scaling::ResourceState::Pending | scaling::ResourceState::Unspecified
            ) || (state == scaling::ResourceState::Reached && last.is_none());
            if last != Some(resource.state) && !quiet {
                let state = state
                    .as_str_name()
                    .trim_start_matches("RESOURCE_STATE_")
                    .to_lowercase();
                output.line(format!(
                    "scaling  {} {direction}, level {}: {name} {state}",
                    shoot.shoot,
                    resource.level()
                ));
            }
        }
    }
    Ok(())
}

async fn weedings(
    output: TimedOutput,
    mut client: WeederServiceClient<tonic::transport::Channel>,
) -> anyhow::Result<()> {
    use weeder::watch_weeders_response::Event;
    let mut stream = client
        .watch_weeders(weeder::WatchWeedersRequest::default())
        .await?
        .into_inner();
    let mut printed: BTreeMap<(String, String), u64> = BTreeMap::new();
    while let Some(message) = stream.message().await? {
        let Some(Event::Upsert(weeding)) = message.event else {
            continue;
        };
        let key = weeding.key.unwrap_or_default();
        let seen = printed
            .entry((key.namespace.clone(), key.service.clone()))
            .or_default();
        for deletion in weeding
            .deletions
            .iter()
            .filter(|deletion| deletion.sequence > *seen)
        {
            output.line(format!(
                "weeder  {}: {} deleted. {}",
                key.namespace, deletion.pod, deletion.message
            ));
        }
        *seen = weeding.deletions.last().map_or(0, |deletion| deletion.sequence);
    }
    Ok(())
}

async fn replicas(output: TimedOutput, shoot: SimulatedShoot) {
    let mut printed: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    let mut leases_told = leases(&shoot);
    loop {
        for workload in shoot.workloads() {
            let now = (workload.spec_replicas, workload.ready_replicas);
            let last = printed.insert(workload.name.clone(), now);
            if last.is_some_and(|last| last != now) {
                output.line(format!(
                    "seed     {}: {} wants {}, {} ready",
                    shoot.name(),
                    workload.name,
                    now.0,
                    now.1
                ));
            }
        }
        let now = leases(&shoot);
        if now != leases_told {
            output.line(format!(
                "leases   {}: {} of {} missed a renewal, {} expired",
                shoot.name(),
                now.missed,
                now.all,
                now.expired
            ));
            leases_told = now;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How many leases of a shoot are how old.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LeaseCounts {
    all: usize,
    missed: usize,
    expired: usize,
}

/// Looks at the leases as the kubelets wrote them.
fn leases(shoot: &SimulatedShoot) -> LeaseCounts {
    let now = jiff::Timestamp::now();
    let timing = timing();
    let missed = timing.renew_interval.mul_f64(1.25);
    let expired = timing.node_monitor_grace_period.mul_f64(0.75);
    let nodes = shoot.nodes();
    let ages = nodes.iter().filter_map(|node| {
        let renewed: jiff::Timestamp = node.renew_time.parse().ok()?;
        Duration::try_from(now.duration_since(renewed)).ok()
    });
    let mut leases = LeaseCounts {
        all: nodes.len(),
        ..LeaseCounts::default()
    };
    for age in ages {
        leases.missed += usize::from(age > missed);
        leases.expired += usize::from(age >= expired);
    }
    leases
}
