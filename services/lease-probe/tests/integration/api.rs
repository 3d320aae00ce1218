//! Every RPC, with good and bad requests.

use tonic::Code;
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::stream::v1::Scope;
use watchdog_test_support::simulation::SimulatedShootSpec;

use crate::fixture::{Fixture, real};
use crate::replica::Replica;

#[tokio::test]
async fn verdicts_are_listed_by_outcome_and_counted() {
    let names = ["a", "b", "c", "d", "e"];
    let fixture = Fixture::new(real(), 1, &names).await;
    for asleep in ["b", "d"] {
        fixture.shoot(asleep).set_hibernated(true).unwrap();
    }
    let replica = Replica::start(&fixture).await;
    for awake in ["a", "c", "e"] {
        replica
            .until_outcome(&fixture.shoot(awake), Outcome::Healthy)
            .await;
    }
    for asleep in ["b", "d"] {
        replica
            .until_outcome(&fixture.shoot(asleep), Outcome::Skipped)
            .await;
    }
    let listed = async |scope: Scope, outcomes: &[Outcome]| -> Vec<String> {
        let request = pb::ListVerdictsRequest {
            outcomes: outcomes.iter().map(|outcome| (*outcome).into()).collect(),
            scope: scope.into(),
            ..pb::ListVerdictsRequest::default()
        };
        let page = replica.list(request).await.unwrap();
        assert_eq!(page.total_size as usize, page.verdicts.len());
        page.verdicts.into_iter().map(|verdict| verdict.shoot).collect()
    };
    let named = |names: &[&str]| -> Vec<String> {
        let shoots = names.iter().map(|name| fixture.shoot(name));
        shoots.map(|shoot| shoot.namespace().to_owned()).collect()
    };
    for scope in [Scope::Seed, Scope::Replica] {
        assert_eq!(listed(scope, &[]).await, named(&names));
        assert_eq!(listed(scope, &[Outcome::Skipped]).await, named(&["b", "d"]));
        let either = [Outcome::Healthy, Outcome::Throttled];
        assert_eq!(listed(scope, &either).await, named(&["a", "c", "e"]));
        assert_eq!(listed(scope, &[Outcome::LeasesExpired]).await, named(&[]));
    }
    for scope in [Scope::Unspecified, Scope::Seed, Scope::Replica] {
        let request = pb::GetSeedSummaryRequest { scope: scope.into() };
        let answer = replica.client.clone().get_seed_summary(request).await.unwrap();
        let pb::GetSeedSummaryResponse {
            summary,
            position,
            completeness,
        } = answer.into_inner();
        let count = |outcome: Outcome, shoots| pb::OutcomeCount {
            outcome: outcome.into(),
            shoots,
        };
        let expected = pb::SeedSummary {
            shoots: 5,
            outcomes: vec![count(Outcome::Healthy, 3), count(Outcome::Skipped, 2)],
            skip_reasons: vec![pb::SkipReasonCount {
                skip_reason: pb::SkipReason::Hibernating.into(),
                shoots: 2,
            }],
            replicas: 1,
        };
        assert_eq!(summary, Some(expected), "{scope:?}");
        assert!(position.is_some() && completeness.unwrap().complete);
    }
}

#[tokio::test]
async fn bad_requests_name_the_field() {
    let fixture = Fixture::new(real(), 1, &["a"]).await;
    let replica = Replica::start(&fixture).await;
    let mut client = replica.client.clone();
    let get = |shoot: &str| pb::GetVerdictRequest { shoot: shoot.into() };
    let watch = |shoots: Vec<String>, scope: i32| pb::WatchVerdictsRequest { shoots, scope };
    let list = pb::ListVerdictsRequest::default;
    let outcomes = |outcomes: &[i32]| pb::ListVerdictsRequest {
        outcomes: outcomes.to_vec(),
        ..list()
    };
    let made_up = pb::ListVerdictsRequest {
        page_token: "made up".into(),
        ..list()
    };
    let nowhere = pb::ListVerdictsRequest { scope: 99, ..list() };
    let (good, bad) = (String::from("shoot--good"), String::from("Not a name"));
    let many = vec![good.clone(); 1_001];
    let summary = pb::GetSeedSummaryRequest { scope: 99 };
    let replicas = pb::ListReplicasRequest {
        page_size: -1,
        ..Default::default()
    };
    let answers = [
        ("scope: ", client.get_seed_summary(summary).await.err()),
        ("page_size: ", client.list_replicas(replicas).await.err()),
        ("shoot: ", client.get_verdict(get("")).await.err()),
        ("shoot: ", client.get_verdict(get("UPPER")).await.err()),
        (
            "shoots[1]: ",
            client.watch_verdicts(watch(vec![good, bad], 0)).await.err(),
        ),
        ("shoots: ", client.watch_verdicts(watch(many, 0)).await.err()),
        ("scope: ", client.watch_verdicts(watch(vec![], 99)).await.err()),
        ("scope: ", client.list_verdicts(nowhere).await.err()),
        ("page_token: ", client.list_verdicts(made_up).await.err()),
        (
            "outcomes[1]: ",
            client.list_verdicts(outcomes(&[1, 0])).await.err(),
        ),
        (
            "outcomes[1]: ",
            client.list_verdicts(outcomes(&[1, 99])).await.err(),
        ),
    ];
    for (field, status) in answers {
        let status = status.unwrap_or_else(|| panic!("{field} was accepted"));
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().starts_with(field), "{status}");
    }
    let unknown = replica.verdict("shoot--unknown").await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    assert!(unknown.message().contains("shoot--unknown"), "{unknown}");
}

#[tokio::test]
async fn a_shoot_may_be_watched_before_it_exists_and_its_end_is_reported() {
    let fixture = Fixture::new(real(), 1, &["early"]).await;
    let replica = Replica::start(&fixture).await;
    let late = SimulatedShootSpec::new("late", 1);
    let name = late.namespace();
    for scope in [Scope::Replica, Scope::Seed] {
        let mut stream = replica.watch(scope, &[&name]).await;
        assert!(stream.snapshot().await.is_empty());
        fixture.sandbox.add_shoot(late.clone()).await.unwrap();
        stream.until_outcome(&name, Outcome::Healthy).await;
        let age = format!("watchdog_shoot_verdict_age_seconds{{shoot=\"{name}\"}}");
        replica.until_metric(&age, |age| age.is_some()).await;

        fixture.sandbox.delete_shoot(&name).await.unwrap();
        stream.until_removed(&name).await;
        replica.until_unknown(&name).await;
        replica.until_metric(&age, |age| age.is_none()).await;
    }
    replica
        .until_outcome(&fixture.shoot("early"), Outcome::Healthy)
        .await;
}
