//! Services that are killed at random times while shoots are lost and come back at random times. A seed number stands
//! for a schedule and replays it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_proto::scaling::v1::{Direction, FlowState, GetScalingRequest};

use super::backend::{Backend, Plan};
use super::control_plane::{API_SERVER, ControlPlane, ControlPlanes};
use super::fixture::Fixture;
use super::seed::Seed;
use super::shoot::ShootUnderTest;
use watchdog_test_support::history::History;
use watchdog_test_support::resource_usage::ResourceUsage;
use watchdog_test_support::restartable_service::RestartableService;
use watchdog_test_support::wait;

/// How long things go wrong.
const STORM: Duration = Duration::from_secs(60);

/// Shoots that are lost and come back.
const SHOOTS: usize = 4;

/// The services, whose writes to the seed are recorded.
const IDENTITIES: [&str; 5] = [
    "lease-probe-0",
    LEASE_PROBE,
    "scaling-coordinator-0",
    COORDINATOR,
    "weeder-0",
];

/// The second replicas.
const LEASE_PROBE: &str = "lease-probe-1";
const COORDINATOR: &str = "scaling-coordinator-1";

/// Between two events.
const PAUSE_MILLIS: std::ops::Range<u64> = 500..2_500;

/// From the death of a service to its next start.
const DEAD_MILLIS: std::ops::Range<u64> = 0..4_000;

/// One thing that goes wrong, or right again.
#[derive(Clone, Copy, Debug)]
enum ChaosEvent {
    Cut(usize),
    Reconnect(usize),
    Kill(usize, Duration),
}

/// When, after the beginning, what.
fn schedule(seed: u64, services: usize) -> Vec<(Duration, ChaosEvent)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut events = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_millis(random.random_range(PAUSE_MILLIS));
        if at >= STORM {
            return events;
        }
        // Losses that last, and services that live long enough to act upon them.
        let event = match random.random_range(0..6) {
            0..=2 => ChaosEvent::Cut(random.random_range(0..SHOOTS)),
            3 | 4 => ChaosEvent::Reconnect(random.random_range(0..SHOOTS)),
            _ => {
                let dead = Duration::from_millis(random.random_range(DEAD_MILLIS));
                ChaosEvent::Kill(random.random_range(0..services), dead)
            }
        };
        events.push((at, event));
    }
}

/// Plays a schedule, and judges what came of it.
///
/// # Errors
/// Whatever is wrong in the end.
pub async fn play(seed: u64) -> anyhow::Result<()> {
    let backend = Arc::new(Backend::start_audited(SHOOTS, &IDENTITIES).await?);
    let shared = backend.seed();
    // Verdicts are missed while lease-probe is dead.
    shared.timeline.note_gap();
    let ServiceReplicas {
        services,
        coordinators,
    } = ServiceReplicas::start(&backend, &shared).await?;
    let (control_planes, _following) = ControlPlanes::start(&shared).await?;
    let fixture = Fixture::new(backend.clone(), control_planes, &format!("c{seed}"));
    let mut shoots = Vec::new();
    fixture.reserve(SHOOTS).await?;
    for _ in 0..SHOOTS {
        let shoot = fixture.shoot_on(shared.clone(), Plan::nodes(3)).await?;
        shoot.hand_over_healthy().await?;
        shoots.push(shoot);
    }
    let plane = fixture.control_plane(1).await?;
    let mut before = Vec::new();
    for service in &services {
        before.push(ResourceUsage::of(&service.get()).await?);
    }

    let over = CancellationToken::new();
    let crashing = tokio::spawn(crash_and_recover(plane.clone(), over.clone()));
    storm(seed, &services, &shoots).await?;
    over.cancel();
    crashing.await??;
    for shoot in &shoots {
        shoot.reconnect().await;
    }
    // A shoot that was cut off shortly before looks restored as long as nobody has noticed: what counts is what the
    // coordinator does when it knows of the recovery.
    for shoot in &shoots {
        shoot.wait_recovered().await?;
        wait_settled(&shared, &coordinators, shoot).await?;
        shoot.wait_restored().await?;
    }
    plane.wait_runs(fixture.times().bound).await?;

    let mut wrong = fixture.violations(None).await;
    let report = History::new(backend.writes()?).check();
    wrong.extend(report.violations.iter().map(ToString::to_string));
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (service, before) in services.iter().zip(&before) {
        ResourceUsage::wait_for(before, &service.get()).await?;
    }
    eprintln!("seed {seed}: {:?} by {:?}", report.handovers, report.actions);
    Ok(())
}

/// Two of each but the weeder: a watchdog as it is deployed.
struct ServiceReplicas {
    /// All services.
    services: Vec<Arc<RestartableService>>,
    /// Those that are scaling-coordinators.
    coordinators: [Arc<RestartableService>; 2],
}

impl ServiceReplicas {
    async fn start(backend: &Backend, seed: &Seed) -> anyhow::Result<Self> {
        let kubeconfig = backend.kubeconfig(LEASE_PROBE)?;
        let probe = seed.setup.lease_probe(LEASE_PROBE, &kubeconfig).await?;
        let kubeconfig = backend.kubeconfig(COORDINATOR)?;
        let coordinator = seed.setup.coordinator(COORDINATOR, &kubeconfig, &[]).await?;
        for service in [&probe, &coordinator] {
            service.wait_ready().await?;
        }
        let coordinators = [seed.coordinator.clone(), RestartableService::new(coordinator)];
        let [_, second] = &coordinators;
        let mut services: Vec<_> = seed.services().into_iter().cloned().collect();
        services.extend([RestartableService::new(probe), second.clone()]);
        Ok(Self {
            services,
            coordinators,
        })
    }
}

/// Waits until the coordinator that leads wants the dependants of the shoot up and has nothing left to do.
async fn wait_settled(
    seed: &Seed,
    coordinators: &[Arc<RestartableService>],
    shoot: &ShootUnderTest,
) -> anyhow::Result<()> {
    let what = format!("{} is settled", shoot.namespace());
    wait::until_true(&what, shoot.times().bound, || async {
        let mut leaders = 0;
        for service in coordinators {
            let mut client = ScalingServiceClient::new(service.channel(&seed.setup)?);
            let shoot = shoot.namespace().to_owned();
            let answer = client.get_scaling(GetScalingRequest { shoot }).await?;
            let scaling = answer.into_inner().scaling.context("no scaling in the answer")?;
            if scaling.replica != service.get().process.name() {
                continue;
            }
            let state = (scaling.direction(), scaling.state());
            let settled = state == (Direction::Up, FlowState::Settled);
            anyhow::ensure!(settled, "{}: {state:?}: {}", scaling.replica, scaling.reason);
            leaders += 1;
        }
        anyhow::ensure!(leaders == 1, "{leaders} coordinators lead");
        Ok(true)
    })
    .await
}

async fn storm(
    seed: u64,
    services: &[Arc<RestartableService>],
    shoots: &[Arc<ShootUnderTest>],
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut dead: Vec<Option<AbortOnDropHandle<anyhow::Result<()>>>> =
        services.iter().map(|_| None).collect();
    for (at, event) in schedule(seed, services.len()) {
        tokio::time::sleep_until(begin + at).await;
        match event {
            ChaosEvent::Cut(index) => {
                if let Some(shoot) = shoots.get(index) {
                    shoot.cut_all().await;
                }
            }
            ChaosEvent::Reconnect(index) => {
                if let Some(shoot) = shoots.get(index) {
                    shoot.reconnect().await;
                }
            }
            ChaosEvent::Kill(index, pause) => {
                let (Some(service), Some(dead)) = (services.get(index), dead.get_mut(index)) else {
                    continue;
                };
                // Dead already: it dies again when it is back.
                if let Some(starting) = dead.take() {
                    starting.await??;
                }
                service.kill().await?;
                let service = service.clone();
                *dead = Some(AbortOnDropHandle::new(tokio::spawn(async move {
                    sleep(pause).await;
                    service.start().await
                })));
            }
        }
    }
    for starting in dead.into_iter().flatten() {
        starting.await??;
    }
    Ok(())
}

/// Gives the weeder something to do all the time.
async fn crash_and_recover(plane: Arc<ControlPlane>, over: CancellationToken) -> anyhow::Result<()> {
    while !over.is_cancelled() {
        plane.wait_aged(STORM).await?;
        plane.down(API_SERVER).await?;
        plane.up(API_SERVER).await?;
        plane.wait_runs(STORM * 2).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_schedule() {
        assert_eq!(format!("{:?}", schedule(7, 5)), format!("{:?}", schedule(7, 5)));
        assert_ne!(format!("{:?}", schedule(7, 5)), format!("{:?}", schedule(8, 5)));
        assert!(schedule(7, 5).len() > 10);
    }
}
