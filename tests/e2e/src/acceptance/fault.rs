//! Faults of the whole system. Each strikes while one shoot is being lost, another one recovers, a third one is calm,
//! and crashed pods wait for their Service to come back; afterwards everything must be as if nothing had been.

mod play;

use std::sync::Arc;
use std::time::Duration;

use super::fixture::Fixture;
use super::shoot::ShootUnderTest;
use watchdog_test_support::fault_proxy::{Behaviour, FixedAnswer};
use watchdog_test_support::restartable_service::RestartableService;
use watchdog_test_support::tools;

pub use self::play::{play, play_all};

/// Between two bytes of a server that answers byte by byte: a small answer takes minutes.
const BYTE: Duration = Duration::from_millis(100);

/// How much later everything of a slow server comes.
const SLOW: Duration = Duration::from_millis(300);

/// How often connections break while watches are dropped.
const DROPS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The seed's API server is restarted.
    SeedRestarted,
    /// The services cannot reach the seed's API server; packets vanish.
    SeedPartitioned,
    /// The seed's API server answers late.
    SeedSlow,
    /// The seed's API server answers 429 to everything.
    SeedThrottles,
    /// Connections to the seed break again and again.
    WatchesDropped,
    /// The seed has forgotten the versions that watches go on from.
    HistoryCompacted,
    /// The leader of the seed's etcd is killed.
    EtcdLeaderLost,
    /// The shoots' API servers accept and never answer.
    ShootSilent,
    /// They answer byte by byte.
    ShootTrickles,
    /// They answer garbage.
    ShootGarbage,
    /// They answer with a page for people and status 200.
    ShootHtml,
    /// They redirect to somewhere else.
    ShootRedirects,
    /// lease-probe is killed.
    LeaseProbeKilled,
    /// scaling-coordinator is killed.
    CoordinatorKilled,
    /// weeder is killed.
    WeederKilled,
    /// The disk for the logs of all services is full.
    LogsOnFullDisk,
    /// The clock of lease-probe's host jumps forwards and backwards by a minute.
    ProbeClockJumps,
    /// The same for scaling-coordinator.
    CoordinatorClockJumps,
}

impl FaultKind {
    /// Those that the sandbox can have.
    pub const SANDBOX: [Self; 17] = [
        Self::SeedRestarted,
        Self::SeedPartitioned,
        Self::SeedSlow,
        Self::SeedThrottles,
        Self::WatchesDropped,
        Self::HistoryCompacted,
        Self::ShootSilent,
        Self::ShootTrickles,
        Self::ShootGarbage,
        Self::ShootHtml,
        Self::ShootRedirects,
        Self::LeaseProbeKilled,
        Self::CoordinatorKilled,
        Self::WeederKilled,
        Self::LogsOnFullDisk,
        Self::ProbeClockJumps,
        Self::CoordinatorClockJumps,
    ];

    /// Those for which real API servers matter.
    pub const REAL: [Self; 3] = [Self::SeedRestarted, Self::HistoryCompacted, Self::EtcdLeaderLost];

    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::SeedRestarted => "the seed's API server is restarted",
            Self::SeedPartitioned => "the seed's API server cannot be reached: packets vanish",
            Self::SeedSlow => "the seed's API server is slow",
            Self::SeedThrottles => "the seed's API server throttles",
            Self::WatchesDropped => "connections and watches break again and again",
            Self::HistoryCompacted => "the seed's history is compacted: watches get 410",
            Self::EtcdLeaderLost => "the leader of etcd is killed",
            Self::ShootSilent => "the shoots' API servers accept and never answer",
            Self::ShootTrickles => "the shoots' API servers answer byte by byte",
            Self::ShootGarbage => "the shoots' API servers answer garbage",
            Self::ShootHtml => "the shoots' API servers answer HTML with status 200",
            Self::ShootRedirects => "the shoots' API servers redirect",
            Self::LeaseProbeKilled => "lease-probe is killed",
            Self::CoordinatorKilled => "scaling-coordinator is killed",
            Self::WeederKilled => "weeder is killed",
            Self::LogsOnFullDisk => "the disk for logs is full",
            Self::ProbeClockJumps => "the clock of lease-probe jumps by a minute, both ways",
            Self::CoordinatorClockJumps => "the clock of scaling-coordinator jumps by a minute, both ways",
        }
    }

    const fn shoot_behaviour(self) -> Option<Behaviour> {
        match self {
            Self::ShootSilent => Some(Behaviour::Silent),
            Self::ShootTrickles => Some(Behaviour::Trickle(BYTE)),
            Self::ShootGarbage => Some(Behaviour::Answer(FixedAnswer::Garbage)),
            Self::ShootHtml => Some(Behaviour::Answer(FixedAnswer::Html)),
            Self::ShootRedirects => Some(Behaviour::Answer(FixedAnswer::Redirect)),
            _ => None,
        }
    }

    const fn seed_behaviour(self) -> Option<Behaviour> {
        match self {
            Self::SeedPartitioned => Some(Behaviour::Silent),
            Self::SeedSlow => Some(Behaviour::Slow(SLOW)),
            Self::SeedThrottles => Some(Behaviour::Answer(FixedAnswer::Throttled(1))),
            _ => None,
        }
    }

    fn victim(self, fixture: &Fixture) -> Option<Arc<RestartableService>> {
        let seed = fixture.seed();
        match self {
            Self::LeaseProbeKilled | Self::ProbeClockJumps => Some(seed.lease_probe.clone()),
            Self::CoordinatorKilled | Self::CoordinatorClockJumps => Some(seed.coordinator.clone()),
            Self::WeederKilled => Some(seed.weeder.clone()),
            _ => None,
        }
    }

    const fn is_clock(self) -> bool {
        matches!(self, Self::ProbeClockJumps | Self::CoordinatorClockJumps)
    }

    /// The settings that must apply from the start.
    async fn prepare(self, fixture: &Fixture) -> anyhow::Result<()> {
        let seed = fixture.seed();
        if self == Self::LogsOnFullDisk {
            for service in seed.services() {
                service.restart_without_log(&seed.setup).await?;
            }
            seed.timeline.note_gap();
        }
        if let (true, Some(victim)) = (self.is_clock(), self.victim(fixture)) {
            seed.timeline.note_gap();
            self.set_clock(&victim, "+0")?;
            let file = clock_file(&victim);
            let variables = [
                ("LD_PRELOAD", tools::path(tools::LIBFAKETIME)?.into()),
                ("FAKETIME_TIMESTAMP_FILE", file.into()),
                ("FAKETIME_NO_CACHE", "1".into()),
                ("DONT_FAKE_MONOTONIC", "1".into()),
            ];
            victim.restart_with(&seed.setup, &variables).await?;
        }
        Ok(())
    }

    /// Strikes.
    async fn begin(self, fixture: &Fixture, shoots: &[Arc<ShootUnderTest>]) -> anyhow::Result<()> {
        let backend = fixture.backend();
        if let Some(behaviour) = self.shoot_behaviour() {
            for shoot in shoots {
                shoot.proxy()?.set(behaviour.clone());
            }
        }
        if let Some(behaviour) = self.seed_behaviour() {
            backend.seed_proxy()?.set(behaviour);
        }
        match (self, self.victim(fixture)) {
            (Self::SeedRestarted, _) => backend.stop_seed().await,
            (Self::HistoryCompacted, _) => {
                backend.compact_seed().await?;
                backend.seed_proxy()?.cut_connections();
                Ok(())
            }
            (Self::EtcdLeaderLost, _) => backend.lose_etcd_leader().await,
            (_, Some(victim)) if self.is_clock() => self.set_clock(&victim, "+60"),
            (_, Some(victim)) => {
                fixture.seed().timeline.note_gap();
                victim.kill().await
            }
            _ => Ok(()),
        }
    }

    /// Stays for this time.
    async fn last(self, fixture: &Fixture, period: Duration) -> anyhow::Result<()> {
        if self == Self::WatchesDropped {
            for _ in 0..DROPS {
                fixture.backend().seed_proxy()?.cut_connections();
                tokio::time::sleep(period / DROPS).await;
            }
            return Ok(());
        }
        tokio::time::sleep(period / 2).await;
        if let (true, Some(victim)) = (self.is_clock(), self.victim(fixture)) {
            self.set_clock(&victim, "-60")?;
        }
        tokio::time::sleep(period / 2).await;
        Ok(())
    }

    /// Is over.
    async fn end(self, fixture: &Fixture, shoots: &[Arc<ShootUnderTest>]) -> anyhow::Result<()> {
        let backend = fixture.backend();
        if self.shoot_behaviour().is_some() {
            for shoot in shoots {
                shoot.proxy()?.set(Behaviour::Pass);
            }
        }
        if self.seed_behaviour().is_some() {
            backend.seed_proxy()?.set(Behaviour::Pass);
        }
        match (self, self.victim(fixture)) {
            (Self::SeedRestarted, _) => backend.start_seed().await,
            (_, Some(victim)) if self.is_clock() => self.set_clock(&victim, "+0"),
            (_, Some(victim)) => victim.start(&fixture.seed().setup).await,
            _ => Ok(()),
        }
    }

    fn set_clock(self, victim: &RestartableService, offset: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(clock_file(victim), offset)?)
    }
}

/// In the folder of the service.
fn clock_file(victim: &RestartableService) -> std::path::PathBuf {
    let service = victim.get();
    let name = format!("{}.clock", service.process.name());
    service.process.scratch().join(name)
}
