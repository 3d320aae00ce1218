//! Two replicas that share the shoots, and the drain of one.

use std::collections::BTreeMap;

use tonic::Code;
use watchdog_proto::feed::v1::Scope;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::probe::v1::watch_verdicts_response::Event;

use crate::fixture::{Fixture, real};
use crate::replica::{IDENTITY, Replica};
use crate::{BOUND, eventually, eventually_async, wait};

const SHOOTS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// The observers of the healthy shoots that a replica reports, by shoot.
async fn observers(replica: &Replica, scope: Scope) -> BTreeMap<String, String> {
    let request = pb::ListVerdictsRequest {
        scope: scope.into(),
        outcomes: vec![Outcome::Healthy.into()],
        ..pb::ListVerdictsRequest::default()
    };
    let verdicts = replica.list(request).await.unwrap().verdicts.into_iter();
    verdicts
        .map(|verdict| (verdict.shoot, verdict.observer))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_share_the_shoots_and_one_goes_on_alone() {
    let fixture = Fixture::new(real(), 1, &SHOOTS).await;
    // The verdicts of a replica that leaves must hold until the other one has probed, even on a slow machine.
    fixture.configure(&[("probeInterval", "20s"), ("probeTimeout", "30s")]);
    let first = Replica::start_as(&fixture, "first", &[]).await;
    eventually_async("the first has all", async || {
        observers(&first, Scope::Local).await.len() == SHOOTS.len()
    })
    .await;
    let second = Replica::start_as(&fixture, "second", &[]).await;
    let shared = wait::until("both have their share", BOUND, || async {
        let (of_first, of_second) = (
            observers(&first, Scope::Local).await,
            observers(&second, Scope::Local).await,
        );
        let apart = of_first.keys().all(|shoot| !of_second.contains_key(shoot));
        let whole = of_first.len() + of_second.len() == SHOOTS.len() && !of_second.is_empty();
        let shared = of_first.into_iter().chain(of_second).collect::<BTreeMap<_, _>>();
        Ok((apart && whole).then_some(shared))
    });
    let shared = shared.await.unwrap();
    assert!(shared.values().any(|observer| observer == "first"), "{shared:?}");
    for replica in [&first, &second] {
        eventually_async("each replica reports all", async || {
            observers(replica, Scope::Unspecified).await == shared
        })
        .await;
    }
    // A shoot of the one is known to the other.
    let of_second = shared
        .iter()
        .find(|(_, observer)| *observer == "second")
        .unwrap()
        .0;
    assert_eq!(first.verdict(of_second).await.unwrap().observer, "second");

    let mut all = second.watch(Scope::Unspecified, &[]).await;
    assert_eq!(all.snapshot().await.len(), SHOOTS.len());
    let leaving = [
        first.watch(Scope::Local, &[]).await,
        first.watch(Scope::Unspecified, &[]).await,
    ];
    assert_eq!(fixture.holder("first").as_deref(), Some("first"));
    first.stop().await;
    for stream in leaving {
        let status = stream.end().await;
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("stopping"), "{status}");
    }
    assert_eq!(fixture.holder("first"), None, "its Lease is released");

    let mut moved: Vec<_> = shared
        .iter()
        .filter(|(_, observer)| *observer == "first")
        .map(|(shoot, _)| shoot.clone())
        .collect();
    while !moved.is_empty() {
        match all.next().await.unwrap() {
            Event::Upsert(verdict) => {
                assert_eq!(verdict.outcome(), Outcome::Healthy, "{verdict:?}");
                if verdict.observer == "second" {
                    moved.retain(|shoot| *shoot != verdict.shoot);
                }
            }
            event => panic!("nothing is taken back: {event:?}"),
        }
    }
    let own = observers(&second, Scope::Local).await;
    assert_eq!(own.len(), SHOOTS.len());
}

#[tokio::test]
async fn a_replica_that_is_started_again_takes_its_place() {
    let fixture = Fixture::new(real(), 1, &["alpha"]).await;
    let alpha = fixture.shoot("alpha");
    for _ in 0..2 {
        let replica = Replica::start(&fixture).await;
        replica.until_outcome(&alpha, Outcome::Healthy).await;
        assert_eq!(fixture.holder(IDENTITY).as_deref(), Some(IDENTITY));
        replica.stop().await;
        assert_eq!(fixture.holder(IDENTITY), None);
        // Its connections are gone with it.
        eventually("the seed is rid of its watches", || {
            fixture.seed().counters().open_watches == 0
        })
        .await;
    }
}
