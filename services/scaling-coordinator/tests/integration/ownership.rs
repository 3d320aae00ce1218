//! Two replicas share the shoots.

use std::collections::BTreeMap;
use std::time::Duration;

use watchdog_proto::scaling::v1::Direction;

use crate::coordinator::Coordinator;
use crate::eventually_async;
use crate::probe::{Outcome, Probe};
use crate::seed::Seed;

fn names() -> Vec<String> {
    (0..12).map(|i| format!("shoot--{i}")).collect()
}

#[tokio::test]
async fn each_shoot_has_one_owner_and_a_survivor_takes_over() {
    let (seed, probe) = (Seed::new().await, Probe::start("p").await);
    for name in names() {
        seed.shoot(&name, 1, false).await;
    }
    let first = Coordinator::start(&seed, &[&probe]).await;
    let second = Coordinator::launch(&seed, "coordinator-1", &[&probe], 1_000).await;
    second.until_ready().await;
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    eventually_async("both own some, and agree on whom", async || {
        owners.clear();
        for name in names() {
            let of_first = first.get(&name).await.map(|scaling| scaling.owner);
            if of_first.is_none() || of_first != second.get(&name).await.map(|scaling| scaling.owner) {
                return false;
            }
            owners.entry(of_first.unwrap()).or_default().push(name);
        }
        owners.len() == 2
    })
    .await;
    for name in names() {
        probe.say(&name, Outcome::LeasesExpired);
    }
    for (owner, shoots) in &owners {
        let (owner, other) = if owner == "coordinator-0" {
            (&first, &second)
        } else {
            (&second, &first)
        };
        for shoot in shoots {
            owner.until_settled(shoot, Direction::Down).await;
            other.until_holding(shoot, "owns this shoot").await;
        }
    }
    for name in names() {
        assert_eq!(
            seed.writes(&name).len(),
            4,
            "by one of them: {:?}",
            seed.writes(&name)
        );
    }
    // The other one goes on when its owner dies, after its lease has run out.
    first.kill();
    for name in names() {
        probe.say(&name, Outcome::Healthy);
    }
    for name in names() {
        second.until_settled(&name, Direction::Up).await;
        assert_eq!(seed.all(&name), [1, 1, -1]);
    }
    second.stop().await;
}

#[tokio::test]
async fn replicas_of_lease_probe_are_found_by_their_leases() {
    use tokio_util::sync::CancellationToken;
    use watchdog_kube::membership::{Membership, MembershipConfig, Ownership, Timing};
    let (seed, probe) = (Seed::new().await, Probe::start("p").await);
    seed.shoot("shoot--0", 1, false).await;
    let stop = CancellationToken::new();
    let kubeconfig = seed.dir.path().join("kubeconfig");
    let config = MembershipConfig {
        client: watchdog_kube::client::seed(Some(&kubeconfig), "test")
            .await
            .unwrap(),
        namespace: "garden".into(),
        service: "lease-probe",
        identity: "lease-probe-0".into(),
        address: probe.address.to_string(),
        ownership: Ownership::Overlapping,
        timing: Timing::PRODUCTION.faster(5),
    };
    let (_membership, task) = Membership::join(config, stop.clone());
    let task = tokio::spawn(task.run());
    let coordinator = Coordinator::start(&seed, &[]).await;
    probe.say("shoot--0", Outcome::LeasesExpired);
    coordinator.until_settled("shoot--0", Direction::Down).await;
    // It leaves: what it said does not count any more.
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(30), task)
        .await
        .unwrap()
        .unwrap();
    coordinator
        .until_holding("shoot--0", "No replica of lease-probe is known")
        .await;
}
