//! Two witnesses of each shoot, and the drain of one.

use std::collections::BTreeMap;

use tonic::Code;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::probe::v1::watch_verdicts_response::Event;
use watchdog_proto::stream::v1::Scope;
use watchdog_sandbox::Rule;
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::in_process::rule;

use crate::eventually_async;
use crate::fixture::{Fixture, real};
use crate::replica::Replica;

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

/// The replicas that one knows, read in pages: their names, their states and the number of their shoots.
async fn known(replica: &Replica) -> Vec<(String, pb::ReplicaState, usize)> {
    let (mut found, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = pb::ListReplicasRequest {
            page_size: 1,
            page_token,
        };
        let page = replica.client.clone().list_replicas(request).await.unwrap();
        let page = page.into_inner();
        assert!(page.replicas.len() <= 1);
        found.extend(
            page.replicas
                .iter()
                .map(|one| (one.name.clone(), one.state(), one.shoots as usize)),
        );
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_probe_all_shoots_and_one_goes_on_alone_without_a_gap() {
    let fixture = Fixture::new(real(), 1, &SHOOTS).await;
    let (first, second) = (
        Replica::start_as(&fixture, "first", &[]).await,
        Replica::start_as(&fixture, "second", &[]).await,
    );
    for (replica, name) in [(&first, "first"), (&second, "second")] {
        eventually_async("each probes all", async || {
            let own = observers(replica, Scope::Replica).await;
            own.len() == SHOOTS.len() && own.values().all(|observer| observer == name)
        })
        .await;
        assert_eq!(observers(replica, Scope::Seed).await.len(), SHOOTS.len());
    }
    let connected = |name: &str| (name.to_owned(), pb::ReplicaState::Connected, SHOOTS.len());
    for replica in [&first, &second] {
        eventually_async("it knows both", async || {
            known(replica).await == [connected("first"), connected("second")]
        })
        .await;
    }
    let mut all = second.watch(Scope::Seed, &[]).await;
    assert_eq!(all.snapshot().await.len(), SHOOTS.len());
    let leaving = [
        first.watch(Scope::Replica, &[]).await,
        first.watch(Scope::Seed, &[]).await,
    ];
    assert_eq!(fixture.holder("first").as_deref(), Some("first"));
    first.stop().await;
    for stream in leaving {
        let status = stream.end().await;
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("stopping"), "{status}");
    }
    assert_eq!(fixture.holder("first"), None, "its Lease is deleted");
    // Until the second one speaks for every shoot.
    let mut seen = observers(&second, Scope::Seed).await;
    while seen.values().any(|observer| observer != "second") {
        match all.next().await.unwrap() {
            Event::Upsert(verdict) => {
                assert_eq!(verdict.outcome(), Outcome::Healthy, "{verdict:?}");
                seen.insert(verdict.shoot, verdict.observer);
            }
            event => panic!("nothing is taken back: {event:?}"),
        }
    }
    assert_eq!(observers(&second, Scope::Replica).await.len(), SHOOTS.len());
    eventually_async("it knows none but itself", async || {
        known(&second).await == [connected("second")]
    })
    .await;
}

/// All that somebody needs who looks: nothing that writes, and no Leases.
fn read_only() -> Vec<Rule> {
    let allow = |verbs: &[&str], group: &str, resource: &str| Rule {
        groups: vec![group.to_owned()],
        ..rule(verbs, &[resource])
    };
    vec![
        allow(&["list", "watch"], "extensions.gardener.cloud", "clusters"),
        allow(&["list"], "machine.sapcloud.io", "machines"),
        Rule {
            names: vec![PROBE_SECRET.to_owned()],
            ..allow(&["list", "watch"], "", "secrets")
        },
        // As everybody has it, by the ClusterRole system:basic-user.
        allow(&["create"], "authorization.k8s.io", "selfsubjectaccessreviews"),
    ]
}

/// Somebody who may only read takes no shoot from a release, and is not found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_replica_probes_all_shoots_and_writes_nothing() {
    const VISITOR: &str = "visitor";
    let fixture = Fixture::new(real(), 1, &SHOOTS).await;
    fixture.seed().restrict(VISITOR, read_only());
    let release = Replica::start_as(&fixture, "release", &[]).await;
    let visitor = Replica::launch_as_user(&fixture, VISITOR, VISITOR, &["--standalone"]).await;
    visitor.wait_ready().await;
    for (replica, name) in [(&release, "release"), (&visitor, VISITOR)] {
        eventually_async("each probes all", async || {
            let all = observers(replica, Scope::Seed).await;
            all.len() == SHOOTS.len() && all.values().all(|observer| observer == name)
        })
        .await;
    }
    assert_eq!(fixture.holder("release").as_deref(), Some("release"));
    assert_eq!(fixture.holder(VISITOR), None, "it has no Lease");
    let members = "watchdog_membership_members{service=\"lease-probe\"}";
    assert_eq!(release.metric(members).await, Some(1.0));
    let audit = fixture.seed().audit();
    let own = audit.iter().filter(|entry| entry.user == VISITOR);
    assert!(own.clone().count() > 0);
    for entry in own {
        let is_question = entry.path.ends_with("/selfsubjectaccessreviews");
        assert!(is_question || !entry.is_write(), "{} {}", entry.verb, entry.path);
        assert!(!entry.path.contains("/leases"), "{} {}", entry.verb, entry.path);
        assert_ne!(entry.code, 403, "{} {}", entry.verb, entry.path);
    }
}

/// Their holders are no replicas: nothing listens at the addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_strangers_made_take_no_shoots_only_witness() {
    let fixture = Fixture::new(real(), 1, &SHOOTS).await;
    for stranger in ["x", "y", "z"] {
        fixture.make_member(stranger, "127.0.0.1:1");
    }
    let replica = Replica::start_as(&fixture, "first", &[]).await;
    eventually_async("it probes all", async || {
        observers(&replica, Scope::Replica).await.len() == SHOOTS.len()
    })
    .await;
    // Those that the strangers would have had the second place of are the only ones that can be missing.
    let second = Replica::start_as(&fixture, "second", &[]).await;
    eventually_async("each shoot has a witness", async || {
        let own = observers(&second, Scope::Replica).await;
        let others = observers(&replica, Scope::Replica).await;
        !own.is_empty()
            && SHOOTS.iter().all(|shoot| {
                let shoot = fixture.shoot(shoot);
                own.contains_key(shoot.namespace()) || others.contains_key(shoot.namespace())
            })
    })
    .await;
}
