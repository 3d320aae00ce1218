//! Those who only look: the replicas of another service.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;
use watchdog_kube::membership::{Discovery, ReplicaAddresses};
use watchdog_runtime::readiness::Readiness;

use crate::cluster::{Cluster, NAMESPACE};

fn names(addresses: &ReplicaAddresses) -> BTreeSet<&str> {
    addresses.keys().map(|name| &**name).collect()
}

#[tokio::test]
async fn another_service_finds_the_replicas_as_they_come_and_go() {
    let mut cluster = Cluster::overlapping("lease-probe").await;
    let stop = CancellationToken::new();
    let client = cluster.client("coordinator").await;
    let (found, discovery) = Discovery::follow(
        client,
        NAMESPACE,
        "lease-probe",
        cluster.timing,
        Readiness::default(),
        stop.clone(),
    );
    let discovery = tokio::spawn(discovery.run());
    assert!(found.borrow().is_empty());
    for identity in ["a", "b", "c"] {
        cluster.start(identity).await;
    }
    cluster
        .until("all are found", |_| {
            names(&found.borrow()) == BTreeSet::from(["a", "b", "c"])
        })
        .await;
    assert_eq!(found.borrow()["b"].as_ref(), "b.test:9645");

    cluster.drain("a").await.unwrap();
    let took = cluster
        .until("one has left", |_| {
            names(&found.borrow()) == BTreeSet::from(["b", "c"])
        })
        .await;
    assert!(took < cluster.timing.peer_ttl / 2, "{took:?}");
    cluster.kill("c");
    cluster
        .until("one has died", |_| {
            names(&found.borrow()) == BTreeSet::from(["b"])
        })
        .await;

    cluster.api.stop().await.unwrap();
    cluster.watch_for(cluster.timing.peer_ttl * 2).await;
    assert_eq!(
        names(&found.borrow()),
        BTreeSet::from(["b"]),
        "the last known stay"
    );
    cluster.api.resume().await.unwrap();
    cluster.start("d").await;
    cluster
        .until("a new one is found", |_| {
            names(&found.borrow()) == BTreeSet::from(["b", "d"])
        })
        .await;
    stop.cancel();
    discovery.await.unwrap();

    // Looking needs no more than looking.
    let writes = cluster
        .api
        .audit()
        .into_iter()
        .filter(|e| e.user == "coordinator" && e.is_write());
    assert_eq!(writes.count(), 0);
}
