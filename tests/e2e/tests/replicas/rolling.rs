//! A rolling update of all three services at once in the middle of an incident, as a Deployment makes it: the new
//! replica starts, becomes ready, and then the old one is asked to stop. Nothing healthy is scaled down, nothing that
//! is cut off is missed, and all is restored in the end.

use std::time::Duration;

use futures::future::try_join_all;
use watchdog_test_support::crash_loop::CrashingControlPlane;
use watchdog_test_support::fixtures;
use watchdog_test_support::real::{FixtureOptions, RealFixture};
use watchdog_test_support::watchdog::{Service, ServiceKind};

/// A Pod has 30 s to stop before it is killed; what comes on top is the machine's.
const STOP_BOUND: Duration = Duration::from_secs(60);

const REPLICAS: usize = 2;

/// The first replicas, and those of three updates.
const GENERATIONS: usize = 4;

fn name(kind: ServiceKind, generation: usize, replica: usize) -> String {
    format!("{kind:?}-{generation}-{replica}").to_lowercase()
}

/// The replicas of the three services.
struct Fleet {
    services: Vec<(ServiceKind, Vec<Service>)>,
    generation: usize,
}

// === impl Fleet ===

impl Fleet {
    async fn start(fixture: &RealFixture) -> anyhow::Result<Self> {
        let start = async |kind| {
            let names: Vec<_> = (0..REPLICAS).map(|replica| name(kind, 0, replica)).collect();
            let services = names.iter().map(|name| fixture.start_replica(kind, name));
            anyhow::Ok((kind, try_join_all(services).await?))
        };
        Ok(Self {
            services: try_join_all(ServiceKind::ALL.map(start)).await?,
            generation: 0,
        })
    }

    /// Replaces the replicas, of all services at the same time, replica by replica.
    async fn update(&mut self, fixture: &RealFixture) -> anyhow::Result<()> {
        self.generation += 1;
        let generation = self.generation;
        let roll = async |(kind, services): &mut (ServiceKind, Vec<Service>)| {
            for (replica, old) in services.iter_mut().enumerate() {
                let name = name(*kind, generation, replica);
                let new = fixture.start_replica(*kind, &name).await?;
                let old = std::mem::replace(old, new);
                let status = old.process.stop(STOP_BOUND).await?;
                anyhow::ensure!(
                    status.code() == Some(0),
                    "{} ended with {status}",
                    old.process.name()
                );
            }
            anyhow::Ok(())
        };
        try_join_all(self.services.iter_mut().map(roll)).await?;
        Ok(())
    }
}

/// Loses a shoot while the services are updated, has it back while they are updated again.
async fn updated() -> anyhow::Result<()> {
    let users = ServiceKind::ALL.into_iter().flat_map(|kind| {
        (0..GENERATIONS).flat_map(move |generation| (0..REPLICAS).map(move |n| name(kind, generation, n)))
    });
    let users: Vec<_> = users.collect();
    let users: Vec<_> = users.iter().map(String::as_str).collect();
    let head = "probeInterval: 2s\ninitialDelay: 1s\nprobeTimeout: 5s";
    let options = FixtureOptions::new("rolling", &["lost", "fine"])
        .users(&users)
        .prober(&fixtures::prober(head, "200ms"));
    let fixture = RealFixture::start(options).await?;
    let (lost, fine) = (fixture.shoot("lost")?, fixture.shoot("fine")?);
    let mut fleet = Fleet::start(&fixture).await?;
    let crash_loop = CrashingControlPlane::new(&fixture.seed.client(), &lost.namespace).await?;

    lost.cut_off().await;
    crash_loop.set_ready(false).await?;
    let crashed = crash_loop.crash().await?;
    fleet.update(&fixture).await?;
    lost.wait_down("the loss is acted on").await?;
    // Protected all the time, also while nobody new has anything to do.
    fleet.update(&fixture).await?;
    lost.wait_down("nothing is restored").await?;
    anyhow::ensure!(
        crash_loop.uids().await?.contains(&crashed),
        "weeded before its Service is back"
    );

    crash_loop.set_ready(true).await?;
    lost.reconnect();
    fleet.update(&fixture).await?;
    let report = fixture.check_history().await?;
    anyhow::ensure!(report.handovers.released > 0, "{report}");
    crash_loop.wait_weeded().await?;

    let scaled = fixture.history()?.scaled(&lost.namespace);
    anyhow::ensure!(scaled.len() == 6, "three down, three up, no more: {scaled:?}");
    let touched = fixture.history()?.writes_into(&fine.namespace);
    anyhow::ensure!(touched.is_empty(), "{touched:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_all_three_at_once() {
    updated().await.unwrap();
}
