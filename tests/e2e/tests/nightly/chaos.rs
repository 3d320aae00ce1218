//! Programs that are killed at random times while shoots are lost and come back at random times, and the pods of
//! another one crash, on real API servers. A seed number stands for a schedule and replays it.
//!
//! `CHAOS_SEEDS=10` plays 10 seeds, new ones each time; `CHAOS_SEED=7` plays one again.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep_until};
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_proto::scaling::v1::{Direction, FlowState, GetScalingRequest};
use watchdog_test_support::crash_loop::{CrashingControlPlane, next_second};
use watchdog_test_support::nodes::LEASE_NAMESPACE;
use watchdog_test_support::real::{FixtureOptions, RealFixture, RealShoot};
use watchdog_test_support::resource_usage::ResourceUsage;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{self, Service, ServiceKind};

/// Seeds in `make test`.
const SEEDS: usize = 2;

/// How long things go wrong.
const STORM: Duration = Duration::from_secs(60);

/// The shoots that are lost and come back.
const LOST: [&str; 2] = ["lost-0", "lost-1"];

/// The namespace whose pods crash.
const CRASHING: &str = "shoot--real--crashing";

/// Two of each but the weeder: a watchdog as it is deployed. Lease-probes first, then coordinators.
const REPLICAS: [(ServiceKind, &str); 5] = [
    (ServiceKind::LeaseProbe, "lease-probe-0"),
    (ServiceKind::LeaseProbe, "lease-probe-1"),
    (ServiceKind::Coordinator, "scaling-coordinator-0"),
    (ServiceKind::Coordinator, "scaling-coordinator-1"),
    (ServiceKind::Weeder, "weeder-0"),
];

/// Between two events.
const PAUSE_MILLIS: Range<u64> = 500..2_500;

/// One thing that goes wrong, or right again.
#[derive(Clone, Copy, Debug)]
enum ChaosEvent {
    Cut(usize),
    Reconnect(usize),
    /// Its API server goes down or up for the pods of the shoot that crashes.
    Turn,
    Kill(usize),
    /// Starts the replica unless it runs.
    Start(usize),
}

/// When, after the beginning, what.
fn schedule(seed: u64) -> Vec<(Duration, ChaosEvent)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut events = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_millis(random.random_range(PAUSE_MILLIS));
        if at >= STORM {
            return events;
        }
        // Losses that last, and programs that live long enough to act upon them.
        let event = match random.random_range(0..10) {
            0..=3 => ChaosEvent::Cut(random.random_range(0..LOST.len())),
            4 => ChaosEvent::Reconnect(random.random_range(0..LOST.len())),
            5 | 6 => ChaosEvent::Turn,
            7 => ChaosEvent::Kill(random.random_range(0..REPLICAS.len())),
            _ => ChaosEvent::Start(random.random_range(0..REPLICAS.len())),
        };
        events.push((at, event));
    }
}

struct Chaos {
    services: Vec<Service>,
    crashing: CrashingControlPlane,
    fixture: RealFixture,
}

// === impl Chaos ===

impl Chaos {
    /// All is healthy.
    async fn start() -> anyhow::Result<Self> {
        let users = REPLICAS.map(|(_, name)| name);
        let options = FixtureOptions::new("chaos", &LOST).users(&users);
        let fixture = RealFixture::start(options).await?;
        let crashing = CrashingControlPlane::new(&fixture.seed.client(), CRASHING).await?;
        crashing.set_ready(true).await?;
        let mut services = Vec::new();
        for (kind, name) in REPLICAS {
            services.push(fixture.start_replica(kind, name).await?);
        }
        let chaos = Self {
            services,
            crashing,
            fixture,
        };
        for shoot in &chaos.fixture.shoots {
            chaos.wait_recovered(shoot).await?;
        }
        Ok(chaos)
    }

    async fn storm(&mut self, seed: u64) -> anyhow::Result<()> {
        let begin = Instant::now();
        let mut is_down = false;
        for (at, event) in schedule(seed) {
            sleep_until(begin + at).await;
            match event {
                ChaosEvent::Cut(shoot) => self.fixture.shoots[shoot].cut_off().await,
                ChaosEvent::Reconnect(shoot) => self.fixture.shoots[shoot].reconnect(),
                ChaosEvent::Turn => {
                    is_down = !is_down;
                    self.turn(is_down).await?;
                }
                ChaosEvent::Kill(replica) => drop(self.services[replica].process.kill_9().await?),
                ChaosEvent::Start(replica) => self.start_again(replica).await?,
            }
        }
        for replica in 0..self.services.len() {
            self.start_again(replica).await?;
        }
        // A recovery that every pod is older than.
        self.crashing.set_ready(false).await?;
        next_second().await?;
        self.turn(false).await?;
        self.fixture.shoots.iter().for_each(RealShoot::reconnect);
        Ok(())
    }

    async fn turn(&self, is_down: bool) -> anyhow::Result<()> {
        self.crashing.set_ready(!is_down).await?;
        if is_down {
            self.crashing.crash().await?;
        }
        Ok(())
    }

    async fn start_again(&mut self, replica: usize) -> anyhow::Result<()> {
        let service = &mut self.services[replica];
        if service.process.exit_status()?.is_some() {
            *service = service.again().await?;
        }
        Ok(())
    }

    /// Waits until every kubelet has renewed its lease after this call and lease-probe has found the shoot healthy
    /// after that. Until then a loss that began before the nodes were reconnected may still lead to a scale-down.
    async fn wait_recovered(&self, shoot: &RealShoot) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(shoot.server.client(), LEASE_NAMESPACE);
        let renewals = async || {
            let leases = leases.list(&ListParams::default()).await?.into_iter();
            anyhow::Ok(leases.map(|lease| lease.spec.and_then(|spec| spec.renew_time)))
        };
        let before: Vec<_> = renewals().await?.collect();
        wait::until_true("every lease is renewed", BOUND, || async {
            Ok(renewals().await?.zip(&before).all(|(now, before)| now != *before))
        })
        .await?;
        let renewed = Timestamp::now();
        // Service and test have the same clock.
        let observed = |verdict: &Verdict| {
            let at = verdict.observe_time.as_ref()?;
            Timestamp::new(at.seconds, at.nanos).ok()
        };
        wait::until_true("it is healthy by the renewed leases", BOUND, || async {
            let channel = self.fixture.setup.channel(&self.services[0])?;
            let verdict = watchdog::verdict(channel, &shoot.namespace).await?;
            Ok(verdict.outcome() == Outcome::Healthy && observed(&verdict).is_some_and(|at| at > renewed))
        })
        .await
    }

    /// Waits until the coordinators want the dependants of a shoot up and have nothing left to do. What looks restored
    /// may be a loss that the coordinator does not know of yet.
    async fn wait_settled(&self, shoot: &RealShoot) -> anyhow::Result<()> {
        let what = format!("{} is settled", shoot.namespace);
        wait::until(&what, BOUND, || async {
            for coordinator in &self.services[2..4] {
                let mut client = ScalingServiceClient::new(self.fixture.setup.channel(coordinator)?);
                let shoot = shoot.namespace.clone();
                let answer = client.get_scaling(GetScalingRequest { shoot }).await?;
                let scaling = answer.into_inner().scaling.context("no scaling in the answer")?;
                let state = (scaling.direction(), scaling.state());
                let settled = state == (Direction::Up, FlowState::Settled);
                ensure!(settled, "{}: {state:?}: {}", scaling.replica, scaling.reason);
            }
            Ok(Some(()))
        })
        .await
    }

    /// Only pods that crash were deleted, and nobody did anything else to their namespace.
    async fn check_deletions(&self) -> anyhow::Result<()> {
        self.crashing.wait_weeded().await?;
        let history = self.fixture.history()?;
        let is_deletion = |write: &String| write.starts_with("delete ") && write.contains("/pods/");
        let (deletions, others): (Vec<_>, Vec<_>) =
            history.writes_into(CRASHING).into_iter().partition(is_deletion);
        ensure!(others.is_empty(), "{others:?}");
        for shoot in &self.fixture.shoots {
            let mut writes = history.writes_into(&shoot.namespace);
            writes.retain(is_deletion);
            ensure!(writes.is_empty(), "{writes:?}");
        }
        eprintln!("{} pods were deleted", deletions.len());
        Ok(())
    }
}

/// Plays a schedule, and judges what came of it.
async fn play(seed: u64) -> anyhow::Result<()> {
    let mut chaos = Chaos::start().await?;
    let mut before = Vec::new();
    for service in &chaos.services {
        before.push(ResourceUsage::of(service).await?);
    }
    chaos.storm(seed).await?;
    for shoot in &chaos.fixture.shoots {
        chaos.wait_recovered(shoot).await?;
        chaos.wait_settled(shoot).await?;
    }
    let report = chaos.fixture.check_history().await?;
    chaos.check_deletions().await?;
    for (service, before) in chaos.services.iter().zip(&before) {
        ResourceUsage::wait_for(before, service).await?;
    }
    eprintln!("seed {seed}: {report}");
    Ok(())
}

fn number<T: std::str::FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

#[test]
fn a_seed_is_a_schedule() {
    assert_eq!(format!("{:?}", schedule(7)), format!("{:?}", schedule(7)));
    assert_ne!(format!("{:?}", schedule(7)), format!("{:?}", schedule(8)));
    assert!(schedule(7).len() > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_times() {
    let count = number("CHAOS_SEEDS").unwrap_or(SEEDS);
    let seeds: Vec<u64> = match number("CHAOS_SEED") {
        Some(seed) => vec![seed],
        None => (0..count).map(|_| u64::from(rand::random::<u32>())).collect(),
    };
    let mut failures = Vec::new();
    for seed in seeds {
        if let Err(error) = play(seed).await {
            failures.push(format!("CHAOS_SEED={seed} fails: {error:#}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
