//! Faults of the whole system. Each strikes while one shoot is being lost, another one recovers, a third one is
//! healthy, and crashed pods wait for their Service to come back; afterwards everything must be as if nothing had been.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use watchdog_proto::probe::v1::Outcome;

use crate::backend::{Backend, Plan};
use crate::fixture::Fixture;
use crate::page::Row;
use crate::shoot::ShootUnderTest;
use watchdog_test_support::crash_loop::CrashingControlPlane;
use watchdog_test_support::fault_proxy::Behaviour;
use watchdog_test_support::history::timeline::Fact;
use watchdog_test_support::resource_usage::ResourceUsage;

/// All of one fault.
const BOUND: Duration = Duration::from_secs(400);

/// Set to a part of a fault's name to play only those.
const ONLY: &str = "FAULTS_ONLY";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
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
}

impl FaultKind {
    /// In the order in which they are played.
    pub(crate) const ALL: [Self; 6] = [
        Self::SeedRestarted,
        Self::SeedPartitioned,
        Self::SeedThrottles,
        Self::HistoryCompacted,
        Self::EtcdLeaderLost,
        Self::ShootSilent,
    ];

    /// For people.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::SeedRestarted => "the seed's API server is restarted",
            Self::SeedPartitioned => "the seed's API server cannot be reached: packets vanish",
            Self::SeedThrottles => "the seed's API server throttles",
            Self::HistoryCompacted => "the seed's history is compacted: watches get 410",
            Self::EtcdLeaderLost => "the leader of etcd is killed",
            Self::ShootSilent => "the shoots' API servers accept and never answer",
        }
    }

    /// Strikes.
    async fn begin(self, fixture: &Fixture, shoots: &[Arc<ShootUnderTest>]) -> anyhow::Result<()> {
        let backend = fixture.backend();
        match self {
            Self::SeedRestarted => backend.server().stop().await?,
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
        }
        Ok(())
    }

    /// Is over.
    async fn end(self, fixture: &Fixture, shoots: &[Arc<ShootUnderTest>]) -> anyhow::Result<()> {
        let backend = fixture.backend();
        match self {
            Self::SeedRestarted => backend.server().start_again().await?,
            Self::SeedPartitioned | Self::SeedThrottles => backend.seed_proxy()?.set(Behaviour::Pass),
            Self::ShootSilent => {
                for shoot in shoots {
                    shoot.proxy()?.set(Behaviour::Pass);
                }
            }
            Self::HistoryCompacted | Self::EtcdLeaderLost => {}
        }
        Ok(())
    }
}

/// Shoots and a crash loop for one fault after the other.
struct FaultGround {
    fixture: Fixture,
    /// The one that is being lost, the one that recovers, and the healthy one. They take turns, so that each fault
    /// finds the shoot down that the one before has lost.
    shoots: [Arc<ShootUnderTest>; 3],
    crash_loop: CrashingControlPlane,
}

/// Plays all of them, one after the other.
pub(crate) async fn play_all() -> anyhow::Result<Vec<Row>> {
    let mut ground = FaultGround::start().await?;
    let only = std::env::var(ONLY).unwrap_or_default();
    let wanted = FaultKind::ALL.iter();
    let mut rows = Vec::new();
    for fault in wanted.filter(|fault| format!("{fault:?}").contains(&only)) {
        rows.push(ground.play(*fault).await);
    }
    ground.restore_all().await?;
    Ok(rows)
}

// === impl FaultGround ===

impl FaultGround {
    /// All healthy.
    async fn start() -> anyhow::Result<Self> {
        let backend = Arc::new(Backend::start_behind_proxy(3).await?);
        let seed = backend.seed();
        let fixture = Fixture::new(backend, "faults");
        fixture.reserve(3).await?;
        let shoot = || fixture.shoot_on(seed.clone(), Plan::nodes(3).behind_proxy());
        let shoots = [shoot().await?, shoot().await?, shoot().await?];
        for shoot in &shoots {
            shoot.hand_over_healthy().await?;
        }
        Ok(Self {
            crash_loop: CrashingControlPlane::new(&seed.client(), "shoot--real--crash-loop").await?,
            fixture,
            shoots,
        })
    }

    async fn play(&mut self, fault: FaultKind) -> Row {
        let begin = Instant::now();
        let played = timeout(BOUND, self.strike(fault)).await;
        let played = played.unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {BOUND:?}")));
        self.shoots.rotate_right(1);
        let row = Row {
            number: 0,
            title: fault.title(),
            seconds: begin.elapsed().as_secs_f64(),
            failure: played.err().map(|error| format!("{error:#}")),
            account: None,
        };
        row.print();
        row
    }

    async fn strike(&self, fault: FaultKind) -> anyhow::Result<()> {
        let (fixture, crash_loop, seed) = (&self.fixture, &self.crash_loop, self.fixture.seed());
        let [losing, recovering, calm] = &self.shoots;
        for shoot in [losing, calm] {
            restore(shoot).await?;
        }
        recovering.cut_all().await;
        recovering.wait_down().await?;
        crash_loop.set_ready(false).await?;
        let crashed = crash_loop.crash().await?;
        let mut before = Vec::new();
        for service in seed.services() {
            before.push(ResourceUsage::of(service).await?);
        }

        let marks = [losing, recovering].map(|shoot| seed.timeline().of(shoot.namespace()).len());
        losing.cut_all().await;
        // The loss is seen after three quarters of a grace period, a recovery within a renew interval or two: both at
        // once.
        sleep(fixture.times().grace / 2).await;
        recovering.reconnect().await;
        let begun = |_: &_| {
            let grown = |(shoot, mark): (&Arc<ShootUnderTest>, usize)| {
                let entries = seed.timeline().of(shoot.namespace());
                entries
                    .iter()
                    .skip(mark)
                    .any(|entry| matches!(entry.fact, Fact::Dependant(_)))
            };
            [losing, recovering].into_iter().zip(marks).any(grown)
        };
        seed.timeline()
            .until("something is written", fixture.times().bound, begun)
            .await?;
        let untouched = calm.protection();
        let waiting = crash_loop.uids().await?;
        anyhow::ensure!(waiting.contains(&crashed), "weeded before its Service is back");
        fault.begin(fixture, &self.shoots).await?;
        // What crashed waits for its Service, which is back now; with the seed away that is only known later.
        let (known, lasted) = tokio::join!(crash_loop.set_ready(true), async {
            sleep(fixture.times().grace).await;
            fault.end(fixture, &self.shoots).await
        });
        lasted?;
        if known.is_err() {
            crash_loop.set_ready(true).await?;
        }

        losing.wait_down().await?;
        recovering.wait_restored().await?;
        for shoot in [recovering, calm] {
            shoot.wait_outcome(Outcome::Healthy).await?;
        }
        crash_loop.wait_weeded().await?;
        let protection = calm.protection();
        anyhow::ensure!(
            protection == untouched,
            "{untouched:?} turned into {protection:?}"
        );
        self.check_history(Some(losing))?;
        for (service, before) in seed.services().iter().zip(&before) {
            ResourceUsage::wait_for(before, service).await?;
        }
        Ok(())
    }

    async fn restore_all(&self) -> anyhow::Result<()> {
        for shoot in &self.shoots {
            restore(shoot).await?;
        }
        self.check_history(None)
    }

    fn check_history(&self, held_down: Option<&Arc<ShootUnderTest>>) -> anyhow::Result<()> {
        let wrong = self.fixture.violations(held_down);
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
