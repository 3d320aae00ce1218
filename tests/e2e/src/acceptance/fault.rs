//! Faults of the whole system. Each strikes while one shoot is being lost, another one recovers, a third one is calm,
//! and crashed pods wait for their Service to come back; afterwards everything must be as if nothing had been.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use watchdog_proto::probe::v1::Outcome;

use super::backend::{Backend, Plan};
use super::control_plane::{API_SERVER, ControlPlanes};
use super::fixture::Fixture;
use super::results::{Results, Row};
use super::seed::Seed;
use super::shoot::ShootUnderTest;
use watchdog_test_support::fault_proxy::Behaviour;
use watchdog_test_support::history::timeline::Fact;
use watchdog_test_support::resource_usage::ResourceUsage;
use watchdog_test_support::tools;

/// All of one fault.
const BOUND: Duration = Duration::from_secs(400);

/// Set to a part of a fault's name to play only those.
const ONLY: &str = "FAULTS_ONLY";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    SeedRestarted,
    /// The services cannot reach the seed's API server; packets vanish.
    SeedPartitioned,
    /// The seed's API server answers 429 to everything.
    SeedThrottles,
    /// The seed has forgotten the versions that watches go on from.
    HistoryCompacted,
    EtcdLeaderLost,
    /// The shoots' API servers accept and never answer.
    ShootSilent,
    /// The clock of lease-probe's host jumps forwards and backwards by a minute.
    ProbeClockJumps,
}

impl FaultKind {
    /// In the order in which they are played.
    pub const ALL: [Self; 7] = [
        Self::SeedRestarted,
        Self::SeedPartitioned,
        Self::SeedThrottles,
        Self::HistoryCompacted,
        Self::EtcdLeaderLost,
        Self::ShootSilent,
        Self::ProbeClockJumps,
    ];

    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::SeedRestarted => "the seed's API server is restarted",
            Self::SeedPartitioned => "the seed's API server cannot be reached: packets vanish",
            Self::SeedThrottles => "the seed's API server throttles",
            Self::HistoryCompacted => "the seed's history is compacted: watches get 410",
            Self::EtcdLeaderLost => "the leader of etcd is killed",
            Self::ShootSilent => "the shoots' API servers accept and never answer",
            Self::ProbeClockJumps => "the clock of lease-probe jumps by a minute, both ways",
        }
    }

    /// Strikes.
    async fn begin(self, fixture: &Fixture, shoots: &[Arc<ShootUnderTest>]) -> anyhow::Result<()> {
        let backend = fixture.backend();
        match self {
            Self::SeedRestarted => backend.stop_seed().await?,
            Self::SeedPartitioned => backend.seed_proxy()?.set(Behaviour::Silent),
            Self::SeedThrottles => backend.seed_proxy()?.set(Behaviour::Throttle(1)),
            Self::HistoryCompacted => {
                backend.compact_seed().await?;
                backend.seed_proxy()?.cut_connections();
            }
            Self::EtcdLeaderLost => backend.lose_etcd_leader().await?,
            Self::ShootSilent => {
                for shoot in shoots {
                    shoot.proxy()?.set(Behaviour::Silent);
                }
            }
            Self::ProbeClockJumps => std::fs::write(clock_file(&fixture.seed()), "+60")?,
        }
        Ok(())
    }

    /// Half of its time is over.
    fn turn(self, fixture: &Fixture) -> anyhow::Result<()> {
        if self == Self::ProbeClockJumps {
            std::fs::write(clock_file(&fixture.seed()), "-60")?;
        }
        Ok(())
    }

    /// Is over.
    async fn end(self, fixture: &Fixture, shoots: &[Arc<ShootUnderTest>]) -> anyhow::Result<()> {
        let backend = fixture.backend();
        match self {
            Self::SeedRestarted => backend.start_seed().await?,
            Self::SeedPartitioned | Self::SeedThrottles => backend.seed_proxy()?.set(Behaviour::Pass),
            Self::ShootSilent => {
                for shoot in shoots {
                    shoot.proxy()?.set(Behaviour::Pass);
                }
            }
            Self::ProbeClockJumps => std::fs::write(clock_file(&fixture.seed()), "+0")?,
            Self::HistoryCompacted | Self::EtcdLeaderLost => {}
        }
        Ok(())
    }
}

/// In the folder of lease-probe.
fn clock_file(seed: &Seed) -> PathBuf {
    seed.lease_probe.get().process.scratch().join("lease-probe.clock")
}

/// Starts lease-probe with a clock that a file sets.
async fn let_clock_be_set(seed: &Seed) -> anyhow::Result<()> {
    seed.timeline.note_gap();
    let file = clock_file(seed);
    std::fs::write(&file, "+0")?;
    let variables = [
        ("LD_PRELOAD", tools::path(tools::LIBFAKETIME)?.into()),
        ("FAKETIME_TIMESTAMP_FILE", file.into()),
        ("FAKETIME_NO_CACHE", "1".into()),
        ("DONT_FAKE_MONOTONIC", "1".into()),
    ];
    seed.lease_probe.restart_with(&variables).await
}

/// Plays all of them, one after the other.
///
/// # Errors
/// When the API servers or the services do not come up.
pub async fn play_all() -> anyhow::Result<Results> {
    let backend = Arc::new(Backend::start_behind_proxy(3).await?);
    let only = std::env::var(ONLY).unwrap_or_default();
    let wanted = FaultKind::ALL.iter().zip(1..);
    let mut rows = Vec::new();
    for (fault, number) in wanted.filter(|(fault, _)| format!("{fault:?}").contains(&only)) {
        rows.push(play(backend.clone(), *fault, number).await);
    }
    Ok(Results::new(rows))
}

async fn play(backend: Arc<Backend>, fault: FaultKind, number: u8) -> Row {
    let begin = Instant::now();
    let played = timeout(BOUND, strike(backend, fault, number)).await;
    let played = played.unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {BOUND:?}")));
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

async fn strike(backend: Arc<Backend>, fault: FaultKind, number: u8) -> anyhow::Result<()> {
    let seed = backend.seed();
    let (control_planes, _following) = ControlPlanes::start(&seed).await?;
    let fixture = Fixture::new(backend, control_planes, &format!("f{number:02}"));
    if fault == FaultKind::ProbeClockJumps {
        let_clock_be_set(&seed).await?;
    }
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
    sleep(fixture.times().grace / 2).await;
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
        sleep(fixture.times().grace / 2).await;
        fault.turn(&fixture)?;
        sleep(fixture.times().grace / 2).await;
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
