//! Every RPC, with good and bad requests.

use tonic::Code;
use watchdog_proto::scaling::v1 as pb;
use watchdog_proto::scaling::v1::watch_scaling_response::Event;
use watchdog_sandbox::resource::keys;
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::{Coordinator, one_shoot};
use crate::seed::{IGNORE, Seed};
use crate::{BOUND, MCM, SHOOT};

#[tokio::test]
async fn what_is_held_down_is_counted_and_listed_whatever_its_direction() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    let (down, up) = ("shoot--0", "shoot--1");
    for shoot in [down, up] {
        seed.shoot(shoot, 1, false).await;
    }
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    coordinator.lose(&probe, down).await;
    coordinator.recover(&probe, up).await;
    // The reason to scale down is gone, and what is held down stays down.
    probe.take_back(down);
    coordinator.until_holding(down, "reports this shoot").await;
    let mut client = coordinator.client.clone();
    for (active, shoot) in [(true, down), (false, up)] {
        let request = pb::ListScalingRequest {
            meltdown_protection_active: Some(active),
            ..Default::default()
        };
        let page = client.list_scaling(request).await.unwrap().into_inner();
        let shoots: Vec<_> = page.scalings.into_iter().map(|scaling| scaling.shoot).collect();
        assert_eq!((shoots, page.total_size), (vec![shoot.to_owned()], 1));
    }
    let request = pb::GetSeedSummaryRequest::default();
    let answer = client.get_seed_summary(request).await.unwrap().into_inner();
    let direction = |direction: pb::Direction| pb::DirectionCount {
        direction: direction.into(),
        shoots: 1,
    };
    let state = |state: pb::FlowState| pb::FlowStateCount {
        state: state.into(),
        shoots: 1,
    };
    let expected = pb::SeedSummary {
        shoots: 2,
        directions: vec![direction(pb::Direction::Hold), direction(pb::Direction::Up)],
        states: vec![state(pb::FlowState::Holding), state(pb::FlowState::Settled)],
        hold_reasons: vec![pb::HoldReasonCount {
            hold_reason: pb::HoldReason::Unreported.into(),
            shoots: 1,
        }],
        modes: vec![pb::ModeCount {
            mode: pb::Mode::Protect.into(),
            shoots: 2,
        }],
        meltdown_protection_active: 1,
        incidents: 1,
        leader: "coordinator-0".to_owned(),
    };
    assert_eq!(answer.summary, Some(expected));
    assert!(answer.position.is_some() && answer.completeness.unwrap().complete);
}

#[tokio::test]
async fn bad_requests_name_the_field() {
    let (_seed, _probe, coordinator) = one_shoot(1, false).await;
    let mut client = coordinator.client.clone();
    let get = |shoot: &str| pb::GetScalingRequest { shoot: shoot.into() };
    let plan = |shoot: &str, direction: i32| pb::PlanScalingRequest {
        shoot: shoot.into(),
        direction,
    };
    let watch = pb::WatchScalingRequest {
        shoots: vec!["ok".into(), "Not a name".into()],
        ..Default::default()
    };
    let list = pb::ListScalingRequest {
        page_size: 0,
        page_token: "made up".into(),
        ..Default::default()
    };
    let down = pb::Direction::Down.into();
    let summary = pb::GetSeedSummaryRequest { scope: 99 };
    let answers = [
        ("scope: ", client.get_seed_summary(summary).await.err()),
        ("shoot: ", client.get_scaling(get("")).await.err()),
        ("shoot: ", client.get_scaling(get("UPPER")).await.err()),
        ("shoots[1]: ", client.watch_scaling(watch).await.err()),
        ("page_token: ", client.list_scaling(list).await.err()),
        ("shoot: ", client.plan_scaling(plan("a/b", down)).await.err()),
        ("direction: ", client.plan_scaling(plan(SHOOT, 0)).await.err()),
        (
            "direction: ",
            client
                .plan_scaling(plan(SHOOT, pb::Direction::Hold.into()))
                .await
                .err(),
        ),
        ("direction: ", client.plan_scaling(plan(SHOOT, 99)).await.err()),
    ];
    for (field, status) in answers {
        let status = status.unwrap();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().starts_with(field), "{status}");
    }
    let unknown = [
        client.get_scaling(get("shoot--unknown")).await.err(),
        client.plan_scaling(plan("shoot--unknown", down)).await.err(),
    ];
    for status in unknown {
        let status = status.unwrap();
        assert_eq!(status.code(), Code::NotFound, "{status}");
        assert!(status.message().contains("shoot--unknown"), "{status}");
    }
}

#[tokio::test]
async fn a_plan_tells_and_touches_nothing() {
    let (seed, probe) = (Seed::new().await, FakeProbe::start().await.unwrap());
    seed.shoot(SHOOT, 2, false).await;
    seed.annotate(SHOOT, MCM, IGNORE, "true");
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    coordinator.until_holding(SHOOT, "reports this shoot").await;
    let plan = async |direction: pb::Direction| {
        let request = pb::PlanScalingRequest {
            shoot: SHOOT.into(),
            direction: direction.into(),
        };
        coordinator
            .client
            .clone()
            .plan_scaling(request)
            .await
            .unwrap()
            .into_inner()
    };
    let down = plan(pb::Direction::Down).await;
    assert!(down.allowed, "{}", down.reason);
    let kcm = &down.levels[1].resources[0];
    let shown = (kcm.action(), kcm.spec_replicas, kcm.target_replicas);
    assert_eq!(shown, (pb::Action::Scale, Some(2), Some(0)));
    assert!(kcm.reason.contains("2 replicas"), "{}", kcm.reason);
    assert_eq!(down.levels[0].resources[0].action(), pb::Action::Ignore);
    let up = plan(pb::Direction::Up).await;
    assert_eq!(up.levels.len(), 3);
    assert_eq!(up.levels[0].resources[0].action(), pb::Action::None);
    seed.hibernate(SHOOT);
    coordinator.until_holding(SHOOT, "hibernat").await;
    let refused = plan(pb::Direction::Down).await;
    assert!(
        !refused.allowed && refused.reason.contains("hibernat"),
        "{}",
        refused.reason
    );
    assert_eq!(seed.writes(SHOOT), [""; 0]);
}

#[tokio::test]
async fn a_stream_brings_the_states_of_a_shoot_and_its_end() {
    let (seed, probe, coordinator) = one_shoot(1, false).await;
    coordinator.recover(&probe, SHOOT).await;
    seed.freeze(SHOOT, MCM);
    let mut client = coordinator.client.clone();
    let request = pb::WatchScalingRequest {
        shoots: vec![SHOOT.into()],
        ..Default::default()
    };
    let mut stream = client.watch_scaling(request).await.unwrap().into_inner();
    let mut is_deleted = false;
    let removed = async {
        loop {
            match stream.message().await.unwrap().unwrap().event.unwrap() {
                Event::SnapshotComplete(snapshot) => {
                    assert_eq!(snapshot.items, 1);
                    probe.say([SHOOT], Outcome::LeasesExpired);
                }
                Event::Upsert(scaling) => match (scaling.direction(), scaling.state(), scaling.level) {
                    // It does not go on before the stream has shown that it waits.
                    (pb::Direction::Down, pb::FlowState::Running, Some(0)) => seed.thaw(SHOOT, MCM),
                    (pb::Direction::Down, pb::FlowState::Settled, None) if !is_deleted => {
                        is_deleted = true;
                        seed.delete(&keys::CLUSTERS, "", SHOOT);
                    }
                    _ => {}
                },
                Event::Removed(shoot) => return shoot,
                Event::Heartbeat(_) => {}
            }
        }
    };
    let removed = tokio::time::timeout(BOUND, removed).await;
    assert_eq!(removed.expect("it is removed"), SHOOT);
    let request = pb::GetScalingRequest { shoot: SHOOT.into() };
    let status = client.get_scaling(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
}
