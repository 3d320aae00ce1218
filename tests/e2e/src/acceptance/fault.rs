//! Faults of the whole system. Each strikes while one shoot is being lost, another one recovers, a third one is
//! healthy, and crashed pods wait for their Service to come back; afterwards everything must be as if nothing had been.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use watchdog_proto::probe::v1::Outcome;

use super::backend::{Backend, Plan};
use super::control_plane::{API_SERVER, ControlPlane, ControlPlanes, Following};
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

/// Shoots and a control plane for one fault after the other.
struct FaultGround {
    fixture: Fixture,
    /// The one that is being lost, the one that recovers, and the healthy one. They take turns, so that each fault
    /// finds the shoot down that the one before has lost.
    shoots: [Arc<ShootUnderTest>; 3],
    plane: Arc<ControlPlane>,
    _following: Following,
}

/// Plays all of them, one after the other.
///
/// # Errors
/// When the API servers, the services or the shoots do not come up, or the shoots are not restored in the end.
pub async fn play_all() -> anyhow::Result<Results> {
    let mut ground = FaultGround::start().await?;
    let only = std::env::var(ONLY).unwrap_or_default();
    let wanted = FaultKind::ALL.iter().zip(1..);
    let mut rows = Vec::new();
    for (fault, number) in wanted.filter(|(fault, _)| format!("{fault:?}").contains(&only)) {
        rows.push(ground.play(*fault, number).await);
    }
    ground.restore_all().await?;
    Ok(Results::new(rows))
}

// === impl FaultGround ===

impl FaultGround {
    /// All healthy.
    async fn start() -> anyhow::Result<Self> {
        let backend = Arc::new(Backend::start_behind_proxy(3).await?);
        let seed = backend.seed();
        let (control_planes, following) = ControlPlanes::start(&seed).await?;
        let fixture = Fixture::new(backend, control_planes, "faults");
        fixture.reserve(3).await?;
        let shoot = || fixture.shoot_on(seed.clone(), Plan::nodes(3).behind_proxy());
        let shoots = [shoot().await?, shoot().await?, shoot().await?];
        for shoot in &shoots {
            shoot.hand_over_healthy().await?;
        }
        Ok(Self {
            plane: fixture.control_plane(1).await?,
            fixture,
            shoots,
            _following: following,
        })
    }

    async fn play(&mut self, fault: FaultKind, number: u8) -> Row {
        let begin = Instant::now();
        let played = timeout(BOUND, self.strike(fault)).await;
        let played = played.unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {BOUND:?}")));
        self.shoots.rotate_right(1);
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

    async fn strike(&self, fault: FaultKind) -> anyhow::Result<()> {
        let (fixture, plane, seed) = (&self.fixture, &self.plane, self.fixture.seed());
        if fault == FaultKind::ProbeClockJumps {
            let_clock_be_set(&seed).await?;
        }
        let [losing, recovering, calm] = &self.shoots;
        for shoot in [losing, calm] {
            restore(shoot).await?;
        }
        recovering.cut_all().await;
        recovering.wait_down().await?;
        plane.down(API_SERVER).await?;
        let mut before = Vec::new();
        for service in seed.services() {
            before.push(ResourceUsage::of(&service.get()).await?);
        }

        let marks = [losing, recovering].map(|shoot| seed.timeline.of(shoot.namespace()).len());
        losing.cut_all().await;
        // The loss is seen after three quarters of a grace period, a recovery within a renew interval or two: both at
        // once.
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
        let untouched = calm.protection();
        fault.begin(fixture, &self.shoots).await?;
        // What crashed waits for its Service, which is back now; with the seed away that is only known later.
        let (up, lasted) = tokio::join!(plane.up(API_SERVER), async {
            sleep(fixture.times().grace / 2).await;
            fault.turn(fixture)?;
            sleep(fixture.times().grace / 2).await;
            fault.end(fixture, &self.shoots).await
        });
        lasted?;
        if up.is_err() {
            plane.up(API_SERVER).await?;
        }

        losing.wait_down().await?;
        recovering.wait_restored().await?;
        for shoot in [recovering, calm] {
            shoot.wait_outcome(Outcome::Healthy).await?;
        }
        plane.wait_runs(fixture.times().bound).await?;
        let protection = calm.protection();
        anyhow::ensure!(
            protection == untouched,
            "{untouched:?} turned into {protection:?}"
        );
        self.check_history(Some(losing)).await?;
        for (service, before) in seed.services().into_iter().zip(&before) {
            ResourceUsage::wait_for(before, &service.get()).await?;
        }
        Ok(())
    }

    async fn restore_all(&self) -> anyhow::Result<()> {
        for shoot in &self.shoots {
            restore(shoot).await?;
        }
        self.check_history(None).await
    }

    async fn check_history(&self, held_down: Option<&Arc<ShootUnderTest>>) -> anyhow::Result<()> {
        let wrong = self.fixture.violations(held_down).await;
        anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n   "));
        Ok(())
    }
}

/// Does nothing to a shoot that is healthy, as it is unless the fault before has failed.
async fn restore(shoot: &ShootUnderTest) -> anyhow::Result<()> {
    shoot.reconnect().await;
    shoot.wait_restored().await?;
    shoot.wait_outcome(Outcome::Healthy).await.map(drop)
}
