//! A replica dies in the middle of losses, in real time: a real kube-controller-manager is down before it marks a node.

use std::time::Duration;

use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::fault_proxy::Behaviour;
use watchdog_test_support::fixtures::{self, MCM};
use watchdog_test_support::real::{FixtureOptions, RealFixture, RealShoot};
use watchdog_test_support::wait::BOUND;
use watchdog_test_support::watchdog::{Service, ServiceKind};

/// A verdict comes after three quarters of it, and a successor leads after another 5 s at most.
const GRACE: Duration = Duration::from_secs(60);

/// The time into the loss at which a replica of lease-probe dies: it has seen the silence begin.
const INTO_THE_LOSS: Duration = Duration::from_secs(15);

async fn in_time(fixture: &RealFixture, shoot: &RealShoot) {
    shoot.wait_down("the loss is acted on").await.unwrap();
    let unknown = shoot.nodes.ever_unknown();
    assert!(unknown.is_empty(), "{unknown:?} were marked");
    shoot.reconnect();
    fixture.check_history().await.unwrap();
}

/// Waits until a coordinator leads.
async fn until_it_leads(coordinator: &Service) {
    let leads = coordinator
        .process
        .wait_for_text("this process is the leader", BOUND);
    leads.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_loss_is_late_when_a_witness_or_the_leader_dies() {
    let options = FixtureOptions::new("late", &["one"])
        .judged(GRACE)
        .prober(&fixtures::prober("initialDelay: 1s", "1s"))
        .users(&["first", "second", "leader", "successor"]);
    let fixture = RealFixture::start(options).await.unwrap();
    let shoot = fixture.shoot("one").unwrap();
    shoot.hand_over().await.unwrap();
    // Both witness the shoot: which of them dies makes no difference.
    let witnesses = ["first", "second"].map(|name| fixture.start_replica(ServiceKind::LeaseProbe, name));
    let [first, second] = witnesses;
    let (victim, witness) = tokio::try_join!(first, second).unwrap();
    let to_seed = fixture.proxy_to_seed().await.unwrap();
    let leader = fixture.start_behind(Some(&to_seed), ServiceKind::Coordinator, "leader");
    let leader = leader.await.unwrap();
    until_it_leads(&leader).await;
    let healthy = async || {
        let healthy = fixture
            .setup
            .wait_outcome(&witness, &shoot.namespace, Outcome::Healthy);
        healthy.await.unwrap();
    };
    healthy().await;
    shoot.cut_off().await;
    tokio::time::sleep(INTO_THE_LOSS).await;
    victim.process.kill_9().await.unwrap();
    in_time(&fixture, shoot).await;

    let successor = fixture.start_replica(ServiceKind::Coordinator, "successor");
    let _successor = successor.await.unwrap();
    healthy().await;
    // The pods of the first level stay, so the leader waits when its network is cut and it dies.
    shoot.workloads.hold(MCM);
    shoot.cut_off().await;
    let is_scaled = |timeline: &watchdog_test_support::history::timeline::Timeline| {
        let found = timeline.dependant(&shoot.namespace, MCM);
        found.is_some_and(|found| found.wanted == 0)
    };
    let scaled = fixture.timeline.until("the leader has begun", BOUND, is_scaled);
    scaled.await.unwrap();
    to_seed.set(Behaviour::Silent);
    leader.process.kill_9().await.unwrap();
    shoot.workloads.release();
    in_time(&fixture, shoot).await;
}
