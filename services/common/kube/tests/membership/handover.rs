//! Replicas come and go.

use std::time::Duration;

use watchdog_sandbox::{Fault, FaultAction};

use crate::cluster::Cluster;

#[tokio::test]
async fn a_replica_that_drains_hands_over_at_once() {
    let mut cluster = Cluster::new().await;
    let replicas = cluster.start_all(&["a", "b"]).await;
    let changes = replicas[1].subscribe();
    let drained = cluster.drain("a");
    let took = cluster.until("b has all", |c| c.shared_by(&["b"])).await;
    assert!(
        took < cluster.timing.peer_ttl / 2,
        "a release is not waited out: {took:?}"
    );
    drained.await.unwrap();
    assert!(changes.has_changed().unwrap());
    assert!(
        !replicas[0].owns(&cluster.key_of("b")),
        "who has left owns nothing"
    );
    let lease = cluster
        .leases()
        .await
        .get(&cluster.lease_name("a"))
        .await
        .unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test]
async fn a_replica_that_dies_is_replaced_after_its_lease_has_ended() {
    let mut cluster = Cluster::new().await;
    cluster.start_all(&["a", "b"]).await;
    cluster.kill("a");
    let took = cluster.until("b has all", |c| c.shared_by(&["b"])).await;
    // The last renewal was at most a renew interval old.
    assert!(
        took > cluster.timing.peer_ttl - cluster.timing.renew * 2,
        "too early: {took:?}"
    );

    // The same replica comes back: its predecessor is dead and forgotten.
    cluster.forget("a");
    cluster.start("a").await;
    cluster
        .until("a has its share back", |c| c.shared_by(&["a", "b"]))
        .await;
}

#[tokio::test]
async fn a_replica_that_is_cut_off_stops_acting_but_keeps_what_it_reads() {
    let mut cluster = Cluster::new().await;
    let replicas = cluster.start_all(&["a", "b"]).await;
    let read = cluster.owned_keys(&replicas[0]);
    cluster.api.inject(Fault::always(FaultAction::Hang).user("a"));
    cluster.until("b has all", |c| c.shared_by(&["b"])).await;
    assert_eq!(cluster.owned_keys(&replicas[0]), read);
    cluster.api.clear_faults();
    cluster.until("a is back", |c| c.shared_by(&["a", "b"])).await;
}

#[tokio::test]
async fn an_outage_of_the_api_server_ends_all_acting_and_is_recovered_from() {
    let mut cluster = Cluster::new().await;
    let replicas = cluster.start_all(&["a", "b", "c"]).await;
    cluster.api.stop().await.unwrap();
    let key = cluster.key_of("a");
    cluster.until("nobody acts", |_| !replicas[0].may_act(&key)).await;
    cluster.watch_for(cluster.timing.peer_ttl).await;
    assert!(
        cluster.owned_by(&["a", "b", "c"]),
        "everybody keeps what it reads"
    );
    cluster.api.resume().await.unwrap();
    cluster
        .until("all share again", |c| c.shared_by(&["a", "b", "c"]))
        .await;
}

#[tokio::test]
async fn a_new_member_waits_for_an_action_in_progress() {
    let mut cluster = Cluster::new().await;
    let a = cluster.start_all(&["a"]).await.remove(0);
    let keys = cluster.owned_keys(&a);
    let permits: Vec<_> = keys.iter().map(|key| a.act(key).unwrap()).collect();
    let b = cluster.start("b").await;
    cluster.until("b is seen", |_| a.others().len() == 1).await;
    let taken: Vec<_> = keys.iter().filter(|key| a.act(key).is_none()).cloned().collect();
    assert!(!taken.is_empty(), "a begins nothing new that belongs to b");
    // No permit is given back: b waits until they have run out.
    cluster
        .until("b acts", |_| taken.iter().any(|key| b.may_act(key)))
        .await;
    assert!(
        tokio::time::Instant::now() >= permits[0].until(),
        "b did not wait"
    );
    drop(permits);

    // Given back, they hold nobody up. A drain also waits for them.
    let permit = b.act(&taken[0]).unwrap();
    let drained = cluster.drain("b");
    cluster.watch_for(Duration::from_millis(300)).await;
    assert!(!drained.is_finished() && !a.may_act(&taken[0]));
    assert!(b.act(&taken[0]).is_none(), "nothing new is begun while draining");
    drop(permit);
    let took = cluster.until("a has all", |c| c.shared_by(&["a"])).await;
    assert!(took < cluster.timing.peer_ttl / 2, "{took:?}");
    drained.await.unwrap();
}

#[tokio::test]
async fn replicas_that_may_overlap_share_and_hand_over_too() {
    let mut cluster = Cluster::overlapping("weeder").await;
    for identity in ["a", "b", "c"] {
        assert!(
            !cluster.start(identity).await.owns("x"),
            "nothing before it has joined"
        );
    }
    cluster.until("all share", |c| c.owned_by(&["a", "b", "c"])).await;
    cluster.drain("c").await.unwrap();
    cluster.until("two share", |c| c.owned_by(&["a", "b"])).await;

    // A process that starts under the name of one that died takes over its lease at once.
    cluster.kill("b");
    cluster.forget("b");
    let b = cluster.start("b").await;
    let took = cluster.until("b is back", |_| b.has_joined()).await;
    assert!(took < cluster.timing.peer_ttl / 2, "{took:?}");
    cluster
        .until("two share again", |c| c.owned_by(&["a", "b"]))
        .await;

    // The share of one that dies goes to the others.
    cluster.kill("b");
    cluster.forget("b");
    cluster.until("a has all", |c| c.owned_by(&["a"])).await;
}
