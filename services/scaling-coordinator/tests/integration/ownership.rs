//! Two replicas share the shoots.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use watchdog_proto::scaling::v1::{Action, Direction};
use watchdog_sandbox::{AuditEntry, Fault, FaultAction};
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::Coordinator;
use crate::seed::{RECORDED, Seed, USER};
use crate::{BOUND, KCM, MCM, SHOOT, eventually, eventually_async, wait};

fn names() -> Vec<String> {
    (0..12).map(|i| format!("shoot--{i}")).collect()
}

#[tokio::test]
async fn each_shoot_has_one_owner_and_a_survivor_takes_over() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    for name in names() {
        seed.shoot(&name, 1, false).await;
    }
    let first = Coordinator::start(&seed, &[&probe]).await;
    let second = Coordinator::launch(&seed, "coordinator-1", &[&probe], &[]).await;
    second.wait_ready().await;
    let owners = wait::until("both own some, and agree on whom", BOUND, || async {
        let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in names() {
            let [of_first, of_second] = [first.get(&name).await, second.get(&name).await];
            let of_first = of_first.context("unknown")?.owner;
            anyhow::ensure!(of_second.context("unknown")?.owner == of_first);
            owners.entry(of_first).or_default().push(name);
        }
        Ok((owners.len() == 2).then_some(owners))
    });
    let owners = owners.await.unwrap();
    for name in names() {
        probe.say([&name], Outcome::LeasesExpired);
    }
    for (owner, shoots) in &owners {
        let (owner, other) = if owner == "coordinator-0" {
            (&first, &second)
        } else {
            (&second, &first)
        };
        for shoot in shoots {
            owner.until_settled(shoot, Direction::Down).await;
            // The other one reports what the owner says.
            other.until_settled(shoot, Direction::Down).await;
            eventually_async("both report the same", async || {
                other.get(shoot).await == owner.get(shoot).await
            })
            .await;
        }
    }
    for name in names() {
        assert_eq!(
            seed.writes(&name).len(),
            2,
            "by one of them: {:?}",
            seed.writes(&name)
        );
    }
    // The other one goes on when its owner dies, after its lease has run out.
    first.kill();
    for name in names() {
        probe.say([&name], Outcome::Healthy);
    }
    for name in names() {
        second.until_settled(&name, Direction::Up).await;
        assert_eq!(seed.all(&name), [1, 1, -1]);
    }
    second.stop().await;
}

/// The successor sees machine-controller-manager as it was before its predecessor scaled it up, and
/// kube-controller-manager as it is now (S3).
#[tokio::test]
async fn a_successor_whose_watch_lags_reads_before_it_goes_on() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, 1, false).await;
    let mut replicas = Vec::new();
    for identity in ["coordinator-0", "coordinator-1"] {
        let replica = Coordinator::launch(&seed, identity, &[&probe], &[]).await;
        replica.wait_ready().await;
        replicas.push((identity, replica));
    }
    probe.say([SHOOT], Outcome::LeasesExpired);
    eventually("all are down", || seed.all(SHOOT) == [0, 0, -1]).await;
    // Not before it acted: the owner of a moment ago may be another one.
    let owner = wait::until("they agree on who owns the shoot", BOUND, || async {
        let mut owners = BTreeSet::new();
        for (_, replica) in &replicas {
            owners.extend(replica.get(SHOOT).await.map(|scaling| scaling.owner));
        }
        let is_known = |owner: &String| owners.len() == 1 && replicas.iter().any(|(name, _)| name == owner);
        Ok(owners.first().filter(|owner| is_known(owner)).cloned())
    });
    let owner = owner.await.unwrap();
    for (_, replica) in &replicas {
        // Also the one that only looks on has seen it, in its own watches.
        eventually_async("it has seen it", async || {
            let planned = replica.planned(SHOOT, Direction::Down).await;
            [KCM, MCM]
                .iter()
                .all(|name| planned[*name].action() == Action::None)
        })
        .await;
    }

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
    let (dying, mut left): (Vec<_>, Vec<_>) =
        replicas.into_iter().partition(|(identity, _)| *identity == owner);
    let (_, successor) = left.pop().unwrap();
    // Before it owns the shoot: then it reads.
    eventually_async("it sees one of them only", async || {
        let planned = successor.planned(SHOOT, Direction::Down).await;
        assert_eq!(planned[MCM].spec_replicas, Some(0), "this is old");
        planned[KCM].spec_replicas == Some(1)
    })
    .await;
    for (_, replica) in dying {
        replica.kill();
    }

    let up = seed.writes(SHOOT).len();
    probe.say([SHOOT], Outcome::LeasesExpired);
    eventually("something is scaled down", || {
        seed.replicas(SHOOT, MCM) == 0 || seed.replicas(SHOOT, KCM) == 0
    })
    .await;
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
    use watchdog_kube::membership::{Membership as _, MembershipConfig, Share, Timing};
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot("shoot--0", 1, false).await;
    let stop = CancellationToken::new();
    let kubeconfig = seed.files.kubeconfig(&seed.api, USER).unwrap();
    let config = MembershipConfig {
        client: watchdog_kube::client::seed(Some(&kubeconfig), "test")
            .await
            .unwrap(),
        namespace: "garden".into(),
        service: "lease-probe",
        identity: "lease-probe-0".into(),
        address: probe.address().to_string(),
        readiness: watchdog_runtime::readiness::Readiness::default(),
        timing: Timing::PRODUCTION.faster(5),
    };
    let (_membership, task) = Share::join(config, stop.clone());
    let task = tokio::spawn(task.run());
    let coordinator = Coordinator::start(&seed, &[]).await;
    coordinator.lose(&probe, "shoot--0").await;
    // It leaves: what it reported no longer counts.
    stop.cancel();
    tokio::time::timeout(BOUND, task).await.unwrap().unwrap();
    coordinator
        .until_holding("shoot--0", "No replica of lease-probe is known")
        .await;
}
