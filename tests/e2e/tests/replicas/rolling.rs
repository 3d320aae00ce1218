//! A rolling update of all three services at once in the middle of an incident, as a Deployment makes it: the new
//! replica starts, becomes ready, and then the old one is asked to stop. Nothing healthy is scaled down, nothing that
//! is cut off is missed, and all is restored in the end.

use std::time::Duration;

use futures::future::try_join_all;
use watchdog_test_support::fixtures;
use watchdog_test_support::sandboxed::{SandboxFixture, ServiceKind};
use watchdog_test_support::simulation::{SimulatedShoot, SimulatedShootSpec};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

/// A Pod has 30 s to stop before it is killed; what comes on top is the machine's.
const STOP_BOUND: Duration = Duration::from_secs(60);

const REPLICAS: usize = 2;

/// The replicas of the three services.
struct Fleet {
    lease_probes: Vec<Service>,
    coordinators: Vec<Service>,
    weeders: Vec<Service>,
    generation: usize,
}

async fn start_all(
    fixture: &SandboxFixture,
    kind: ServiceKind,
    generation: usize,
) -> anyhow::Result<Vec<Service>> {
    let names: Vec<_> = (0..REPLICAS)
        .map(|i| format!("{kind:?}-{generation}-{i}").to_lowercase())
        .collect();
    try_join_all(names.iter().map(|name| fixture.start_replica(kind, name))).await
}

// === impl Fleet ===

impl Fleet {
    async fn start(fixture: &SandboxFixture) -> anyhow::Result<Self> {
        let (lease_probes, coordinators, weeders) = tokio::try_join!(
            start_all(fixture, ServiceKind::LeaseProbe, 0),
            start_all(fixture, ServiceKind::Coordinator, 0),
            start_all(fixture, ServiceKind::Weeder, 0),
        )?;
        Ok(Self {
            lease_probes,
            coordinators,
            weeders,
            generation: 0,
        })
    }

    /// Replaces the replicas, of all services at the same time, replica by replica.
    async fn update(&mut self, fixture: &SandboxFixture) -> anyhow::Result<()> {
        self.generation += 1;
        let generation = self.generation;
        let roll = async |kind: ServiceKind, services: &mut Vec<Service>| {
            for (i, old) in services.iter_mut().enumerate() {
                let name = format!("{kind:?}-{generation}-{i}").to_lowercase();
                let new = fixture.start_replica(kind, &name).await?;
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
        tokio::try_join!(
            roll(ServiceKind::LeaseProbe, &mut self.lease_probes),
            roll(ServiceKind::Coordinator, &mut self.coordinators),
            roll(ServiceKind::Weeder, &mut self.weeders),
        )?;
        Ok(())
    }
}

/// The dependants of these want and have this many replicas.
async fn until_replicas(
    fixture: &SandboxFixture,
    shoots: &[SimulatedShoot],
    replicas: i32,
) -> anyhow::Result<()> {
    try_join_all(
        shoots
            .iter()
            .map(|shoot| fixture.wait_replicas(shoot, replicas, BOUND)),
    )
    .await?;
    Ok(())
}

/// Loses some shoots while the services are updated, has them back while they are updated again.
async fn updated() -> anyhow::Result<()> {
    let shoots = ["lost-0", "lost-1", "lost-2", "fine-0", "fine-1"];
    let head = "probeInterval: 2s\ninitialDelay: 1s\nprobeTimeout: 5s";
    let prober = fixtures::prober(head, "200ms");
    let specs = shoots.map(|name| SimulatedShootSpec::new(name, 3)).to_vec();
    let fixture = SandboxFixture::start_with("rolling", specs, &prober, &fixtures::weeder("1m")).await?;
    let named = |prefix: &str| -> Vec<SimulatedShoot> {
        let all = fixture.sandbox.shoots().into_iter();
        all.filter(|shoot| shoot.name().starts_with(prefix)).collect()
    };
    let (lost, fine) = (named("lost"), named("fine"));
    let mut fleet = Fleet::start(&fixture).await?;

    lost.iter().for_each(|shoot| fixture.cut_off(shoot));
    lost.iter().for_each(|shoot| shoot.service_down("kube-apiserver"));
    fleet.update(&fixture).await?;
    until_replicas(&fixture, &lost, 0).await?;
    // Protected all the time, also while nobody new has anything to do.
    fleet.update(&fixture).await?;
    until_replicas(&fixture, &lost, 0).await?;

    lost.iter().for_each(|shoot| shoot.service_up("kube-apiserver"));
    lost.iter().for_each(|shoot| fixture.reconnect(shoot));
    fleet.update(&fixture).await?;
    let report = fixture.check_history().await?;
    anyhow::ensure!(report.handovers.released > 0, "{report}");
    wait::until_true("all pods run", BOUND, || async {
        let mut pods = lost.iter().flat_map(SimulatedShoot::pods);
        Ok(pods.all(|pod| pod.ready))
    })
    .await?;

    for shoot in &lost {
        let down: Vec<_> = fixture.scale_writes(shoot);
        anyhow::ensure!(
            down.len() == 6,
            "{}: three down, three up, no more: {down:?}",
            shoot.name()
        );
        anyhow::ensure!(
            shoot.machines_replaced() == 0,
            "machines of {} were replaced",
            shoot.name()
        );
    }
    for shoot in &fine {
        let scaled = fixture.scale_writes(shoot);
        anyhow::ensure!(scaled.is_empty(), "{} was touched: {scaled:?}", shoot.name());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_all_three_at_once() {
    updated().await.unwrap();
}
