//! A replica dies in the middle of losses, in real time: kube-controller-manager is down before it marks a node.

use std::time::Duration;

use watchdog_sandbox::{Fault, FaultAction};
use watchdog_test_support::fixtures::{self, KCM, MCM};
use watchdog_test_support::sandboxed::{SandboxFixture, ServiceKind};
use watchdog_test_support::simulation::{Cut, SimTiming, SimulatedShootSpec};
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

const SHOOTS: usize = 20;

/// The time into the losses at which a replica of lease-probe dies: it has seen the silence begin.
const INTO_THE_LOSS: Duration = Duration::from_secs(12);

async fn seed(name: &str) -> anyhow::Result<SandboxFixture> {
    let specs = (0..SHOOTS).map(|shoot| SimulatedShootSpec::new(&format!("lost-{shoot}"), 3));
    let (prober, weeder) = (fixtures::prober("", "1s"), fixtures::weeder("1m"));
    SandboxFixture::start_at(name, SimTiming::default(), specs.collect(), &prober, &weeder).await
}

/// Waits until kube-controller-manager of every shoot is down, and checks that it has marked no node.
async fn all_are_in_time(fixture: &SandboxFixture) -> anyhow::Result<()> {
    for shoot in fixture.sandbox.shoots() {
        let what = format!("kube-controller-manager of {} is down", shoot.namespace());
        fixture
            .timeline
            .until_dependants(&what, &[shoot.namespace()], BOUND, |dependant| {
                dependant.name != KCM || dependant.wanted == 0
            })
            .await?;
    }
    let marked: Vec<_> = fixture
        .sandbox
        .shoots()
        .iter()
        .filter(|shoot| shoot.marked_unknown() > 0)
        .map(|shoot| shoot.namespace().to_owned())
        .collect();
    anyhow::ensure!(marked.is_empty(), "nodes of {marked:?} were marked");
    Ok(())
}

/// A coordinator that leads.
async fn leading(fixture: &SandboxFixture, name: &str) -> anyhow::Result<Service> {
    let coordinator = fixture.start_replica(ServiceKind::Coordinator, name).await?;
    coordinator
        .process
        .wait_for_text("this process is the leader", BOUND)
        .await?;
    Ok(coordinator)
}

/// Both witness every shoot: which of them dies makes no difference.
#[tokio::test(flavor = "multi_thread")]
async fn no_loss_is_late_when_a_witness_dies() {
    let fixture = seed("late-witness").await.unwrap();
    let witnesses = ["first", "second"].map(|name| fixture.start_replica(ServiceKind::LeaseProbe, name));
    let [first, second] = witnesses;
    let (victim, _witness) = tokio::try_join!(first, second).unwrap();
    let _coordinator = leading(&fixture, "coordinator").await.unwrap();
    fixture
        .sandbox
        .shoots()
        .iter()
        .for_each(|shoot| shoot.cut(Cut::All));
    tokio::time::sleep(INTO_THE_LOSS).await;
    victim.process.kill_9().await.unwrap();
    all_are_in_time(&fixture).await.unwrap();
}

/// Its first write gets no answer: in half of the shoots that is the first of all, in the others the one between the
/// levels.
#[tokio::test(flavor = "multi_thread")]
async fn no_loss_is_late_when_the_leading_coordinator_dies() {
    let fixture = seed("late-leader").await.unwrap();
    let _lease_probe = fixture.lease_probe().await.unwrap();
    let leader = leading(&fixture, "leader").await.unwrap();
    let _successor = fixture
        .start_replica(ServiceKind::Coordinator, "successor")
        .await
        .unwrap();
    let api = fixture.sandbox.seed();
    let shoots = fixture.sandbox.shoots();
    for (i, shoot) in shoots.iter().enumerate() {
        let name = if i % 2 == 0 { MCM } else { KCM };
        let path = format!(
            "/apis/apps/v1/namespaces/{}/deployments/{name}",
            shoot.namespace()
        );
        let hangs = Fault::always(FaultAction::Hang).verb("patch").path(&path);
        // Never cleared: a write of the dead leader may still be on its way.
        api.inject(hangs.user("leader"));
        shoot.cut(Cut::All);
    }
    let stopped_at = |user: &'static str| {
        let audit = api.audit();
        audit
            .iter()
            .any(|entry| entry.user == user && entry.is_write() && entry.path.contains("/deployments/"))
    };
    wait::until_true("the leader writes", BOUND, async || Ok(stopped_at("leader")))
        .await
        .unwrap();
    leader.process.kill_9().await.unwrap();
    all_are_in_time(&fixture).await.unwrap();
}
