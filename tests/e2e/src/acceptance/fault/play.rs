//! How a fault is played.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tokio::time::{Instant, timeout};
use watchdog_proto::probe::v1::Outcome;

use super::FaultKind;
use crate::acceptance::backend::{Backend, Plan, SandboxBackend};
use crate::acceptance::control_plane::{API_SERVER, ControlPlanes};
use crate::acceptance::fixture::Fixture;
use crate::acceptance::results::{Results, Row};
use crate::acceptance::shoot::ShootUnderTest;
use watchdog_test_support::history::timeline::Fact;
use watchdog_test_support::resource_usage::ResourceUsage;

/// Worlds at once, each with three services of its own.
const AT_ONCE: usize = 9;

/// All of one fault.
const BOUND: Duration = Duration::from_secs(400);

/// Set to a part of a fault's name to play only those.
const ONLY: &str = "FAULTS_ONLY";

/// Plays faults on sandboxes, each on one of its own, some at once.
pub async fn play_all(faults: &[FaultKind]) -> Results {
    let only = std::env::var(ONLY).unwrap_or_default();
    let wanted = faults.iter().filter(|fault| format!("{fault:?}").contains(&only));
    let mut rows: Vec<_> = stream::iter(wanted.copied().zip(1..))
        .map(|(fault, number)| async move {
            let backend = SandboxBackend::start_behind_proxy().await;
            match backend {
                Ok(backend) => play(Arc::new(backend), fault, number).await,
                Err(error) => row(fault, number, Instant::now(), Err(error)),
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    rows.sort_by_key(|row| row.number);
    Results::new(rows)
}

/// Plays a fault on a back-end with a fault proxy before its seed.
pub async fn play(backend: Arc<dyn Backend>, fault: FaultKind, number: u8) -> Row {
    let begin = Instant::now();
    let played = timeout(BOUND, strike(backend, fault, number)).await;
    let played = played.unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {BOUND:?}")));
    row(fault, number, begin, played)
}

fn row(fault: FaultKind, number: u8, begin: Instant, played: anyhow::Result<()>) -> Row {
    let row = Row {
        number,
        title: fault.title().to_owned(),
        seconds: begin.elapsed().as_secs_f64(),
        failure: played.err().map(|error| format!("{error:#}")),
        account: None,
    };
    let why = row.failure.as_deref().map(|why| format!("\n   FAILED: {why}"));
    eprintln!("{:6.1} s  {}{}", row.seconds, row.title, why.unwrap_or_default());
    row
}

async fn strike(backend: Arc<dyn Backend>, fault: FaultKind, number: u8) -> anyhow::Result<()> {
    let seed = backend.seed();
    let (control_planes, _following) = ControlPlanes::start(&seed).await?;
    let fixture = Fixture::new(backend, control_planes, &format!("f{number:02}"));
    fault.prepare(&fixture).await?;
    fixture.reserve(3).await?;
    let mut shoots = Vec::new();
    for _ in 0..3 {
        let plan = Plan::nodes(3).behind_proxy();
        shoots.push(fixture.shoot_on(seed.clone(), plan).await?);
    }
    let [losing, recovering, calm] = shoots.as_slice() else {
        anyhow::bail!("three shoots");
    };
    for shoot in &shoots {
        shoot.hand_over_healthy().await?;
    }
    let plane = fixture.control_plane(1).await?;
    plane.down(API_SERVER).await?;
    recovering.cut_all().await;
    recovering.wait_down().await?;
    let mut before = Vec::new();
    for service in seed.services() {
        before.push(ResourceUsage::of(&service.get()).await?);
    }

    let marks = [losing, recovering].map(|shoot| seed.timeline.of(shoot.namespace()).len());
    losing.cut_all().await;
    // The loss is seen after three quarters of a grace period, a recovery within a renew interval or two: both at once.
    tokio::time::sleep(fixture.times().grace / 2).await;
    recovering.reconnect().await;
    let begun = |_: &_| {
        let grown = |(shoot, mark): (&Arc<ShootUnderTest>, usize)| {
            let entries = seed.timeline.of(shoot.namespace());
            entries
                .iter()
                .skip(mark)
                .any(|entry| matches!(entry.fact, Fact::Dependant(_)))
        };
        [losing, recovering].into_iter().zip(marks).any(grown)
    };
    seed.timeline
        .until("something is written", fixture.times().bound, begun)
        .await?;
    fault.begin(&fixture, &shoots).await?;
    // What crashed waits for its Service, which is back now; with the seed away that is only known later.
    let (up, lasted) = tokio::join!(plane.up(API_SERVER), async {
        fault.last(&fixture, fixture.times().grace).await?;
        fault.end(&fixture, &shoots).await
    });
    lasted?;
    if up.is_err() {
        plane.up(API_SERVER).await?;
    }

    losing.wait_down().await?;
    recovering.wait_restored().await?;
    losing.reconnect().await;
    losing.wait_restored().await?;
    for shoot in &shoots {
        shoot.wait_outcome(Outcome::Healthy).await?;
    }
    plane.wait_runs(fixture.times().bound).await?;
    calm.stays_untouched(Duration::ZERO).await?;
    let wrong = fixture.violations().await;
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n   "));
    for (service, before) in seed.services().into_iter().zip(&before) {
        ResourceUsage::wait_for(before, &service.get()).await?;
    }
    Ok(())
}
