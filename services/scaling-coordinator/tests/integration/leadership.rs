//! Two replicas elect a leader, and the other one is warm.

use watchdog_proto::scaling::v1::{Direction, GetSeedSummaryRequest};
use watchdog_sandbox::{AuditEntry, Fault, FaultAction};
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::{Coordinator, resource};
use crate::seed::{RECORDED, Seed, USER};
use crate::{BOUND, KCM, MCM, SHOOT, eventually, eventually_async};

fn names() -> Vec<String> {
    (0..12).map(|i| format!("shoot--{i}")).collect()
}

/// A leader, and a standby.
async fn two(seed: &Seed, probe: &FakeProbe) -> (Coordinator, Coordinator) {
    let leader = Coordinator::start(seed, &[probe]).await;
    (leader, standby(seed, probe).await)
}

async fn standby(seed: &Seed, probe: &FakeProbe) -> Coordinator {
    let standby = Coordinator::launch(seed, "coordinator-1", &[probe], &[]).await;
    standby.wait_ready().await;
    standby
}

/// Returns true if a replica answers, and says that this one leads.
async fn leads(replica: &Coordinator, name: &str) -> bool {
    let shoot = replica.get("shoot--0").await;
    shoot.is_some_and(|scaling| scaling.replica == name)
}

#[tokio::test]
async fn one_replica_acts_and_the_other_one_passes_on_what_it_says_and_takes_over() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for name in names() {
        seed.shoot(&name, 1, false).await;
    }
    let (leader, standby) = two(&seed, &probe).await;
    for name in names() {
        probe.say([&name], Outcome::LeasesExpired);
    }
    for name in names() {
        leader.until_settled(&name, Direction::Down).await;
        standby.until_settled(&name, Direction::Down).await;
        eventually_async("both report the same", async || {
            standby.get(&name).await == leader.get(&name).await
        })
        .await;
        let writes = seed.writes(&name);
        assert_eq!(writes.len(), 2, "by one of them: {writes:?}");
    }
    let summary = GetSeedSummaryRequest::default();
    let answer = standby.client.clone().get_seed_summary(summary).await.unwrap();
    let summary = answer.into_inner().summary.unwrap();
    assert_eq!((summary.shoots, &*summary.leader), (12, "coordinator-0"));
    // The standby goes on when the leader dies, as soon as its Lease has run out.
    leader.kill();
    for name in names() {
        probe.say([&name], Outcome::Healthy);
    }
    for name in names() {
        standby.until_settled(&name, Direction::Up).await;
        assert_eq!(seed.all(&name), [1, 1, -1]);
    }
    assert!(leads(&standby, "coordinator-1").await);
    standby.stop().await;
}

/// The successor sees machine-controller-manager as it was before its predecessor scaled it up, and
/// kube-controller-manager as it is now (S3).
#[tokio::test]
async fn a_successor_whose_watch_lags_reads_before_it_goes_on() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for shoot in ["shoot--0", SHOOT] {
        seed.shoot(shoot, 1, false).await;
    }
    let leader = Coordinator::start(&seed, &[&probe]).await;
    leader.lose(&probe, SHOOT).await;
    // It sees at first that all are down.
    let successor = standby(&seed, &probe).await;

    // One watch of each goes blind: it ends, and no new one is answered.
    let of_mcm = |entry: &AuditEntry| entry.verb == "watch" && entry.query.contains(MCM);
    let before = seed.api.counters().requests;
    let blind = ["watch", "list"].map(|verb| {
        let fault = Fault::always(FaultAction::Hang).verb(verb);
        seed.api
            .inject(fault.path("/apis/apps/v1/deployments").query(MCM).user(USER))
    });
    seed.api.drop_watches();
    eventually("both are blind", || {
        let entries = seed.api.audit_since(before);
        entries.iter().filter(|entry| of_mcm(entry)).count() >= 2
    })
    .await;
    probe.say([SHOOT], Outcome::Healthy);
    eventually("all are up", || seed.all(SHOOT) == [1, 1, -1]).await;
    // It begins to lead with nothing to do.
    probe.say([SHOOT], Outcome::Inconclusive);
    leader.until_holding(SHOOT, "INCONCLUSIVE").await;
    leader.kill();
    eventually_async("it leads, and sees one of them only", async || {
        let scaling = successor.get(SHOOT).await;
        let Some(seen) = scaling.filter(|scaling| scaling.replica == "coordinator-1") else {
            return false;
        };
        assert_eq!(resource(&seen, MCM).spec_replicas, Some(0), "this is old");
        resource(&seen, KCM).spec_replicas == Some(1)
    })
    .await;

    let up = seed.writes(SHOOT).len();
    probe.say([SHOOT], Outcome::LeasesExpired);
    // It has no watch of machine-controller-manager at all, and needs none.
    eventually("all are down", || seed.all(SHOOT) == [0, 0, -1]).await;
    for fault in blind {
        seed.api.clear_fault(fault);
    }
    seed.api.cut_connections();
    successor.until_settled(SHOOT, Direction::Down).await;
    let writes = seed.writes(SHOOT);
    let at = |write: String| writes[up..].iter().position(|w| *w == write);
    let (scaled, next) = (at(format!("down {MCM} 1")), at(format!("down {KCM} 1")));
    assert!(scaled.is_some() && scaled < next, "{:?}", &writes[up..]);
    assert_eq!(seed.annotation(SHOOT, MCM, RECORDED).as_deref(), Some("1"));
}

#[tokio::test]
async fn replicas_of_lease_probe_are_found_by_their_leases() {
    use tokio_util::sync::CancellationToken;
    use watchdog_kube::members::{FollowedMembers, OwnLease};
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot("shoot--0", 1, false).await;
    let stop = CancellationToken::new();
    let kubeconfig = seed.files.kubeconfig(&seed.api, USER).unwrap();
    let client = watchdog_kube::seed::connect(Some(&kubeconfig), "test").await;
    let readiness = watchdog_runtime::readiness::Readiness::default();
    let own = OwnLease {
        identity: "lease-probe-0".into(),
        address: probe.address().to_string().into(),
    };
    let (_members, task) =
        FollowedMembers::new(client.unwrap(), "garden", "lease-probe", readiness, Some(own));
    let task = tokio::spawn(task.run(stop.clone()));
    let coordinator = Coordinator::start(&seed, &[]).await;
    coordinator.lose(&probe, "shoot--0").await;
    // It leaves: what it reported no longer counts.
    stop.cancel();
    tokio::time::timeout(BOUND, task).await.unwrap().unwrap();
    coordinator
        .until_holding("shoot--0", "No lease-probe replica is known")
        .await;
}
