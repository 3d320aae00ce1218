//! WatchScaling through a whole incident: a loss and a recovery with a delay, tries that fail, a level that fails and
//! is tried again, and what is waited for at every point.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;
use watchdog_proto::scaling::v1 as pb;
use watchdog_proto::scaling::v1::Direction::{Down, Up};
use watchdog_proto::scaling::v1::FlowState::{self, Failed, Running, Settled};
use watchdog_proto::scaling::v1::ResourceState;
use watchdog_proto::scaling::v1::watch_scaling_response::Event;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{Fault, FaultAction};
use watchdog_test_support::fake_probe::{FakeProbe, Outcome};

use crate::coordinator::{Coordinator, one_shoot, resource};
use crate::seed::{CONFIG, Seed};
use crate::{BOUND, CA, KCM, MCM, SHOOT, eventually};

/// Every state that the stream has brought, in order.
#[derive(Clone, Default)]
struct ScalingHistory(Arc<Mutex<Vec<pb::ShootScaling>>>);

impl ScalingHistory {
    async fn follow(&self, coordinator: &Coordinator) -> AbortOnDropHandle<()> {
        let request = pb::WatchScalingRequest {
            shoots: vec![SHOOT.into()],
            ..Default::default()
        };
        let answer = coordinator.client.clone().watch_scaling(request).await.unwrap();
        let (mut stream, story) = (answer.into_inner(), self.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok(Some(message)) = stream.message().await {
                if let Some(Event::Upsert(scaling)) = message.event {
                    story.0.lock().push(scaling);
                }
            }
        }))
    }

    /// Waits until the newest state has this resource in this state, with these words.
    async fn until(&self, name: &str, state: ResourceState, words: &str) {
        eventually(&format!("{name} is {state:?}, {words:?}"), || {
            let story = self.0.lock();
            story.last().is_some_and(|last| {
                let shown = resource(last, name);
                shown.state() == state && shown.message.contains(words)
            })
        })
        .await;
    }

    async fn until_settled(&self, direction: pb::Direction) {
        eventually(&format!("{direction:?} is settled"), || {
            let story = self.0.lock();
            let settled = |s: &pb::ShootScaling| (s.direction(), s.state()) == (direction, Settled);
            story.last().is_some_and(settled)
        })
        .await;
    }

    /// The states of the flow as a whole.
    fn states(&self) -> Vec<(pb::Direction, FlowState, Option<i32>)> {
        let story = self.0.lock();
        let mut states: Vec<_> = story
            .iter()
            .map(|s| (s.direction(), s.state(), s.level))
            .collect();
        states.dedup();
        states
    }
}

#[tokio::test]
async fn every_state_of_a_loss_and_a_recovery_is_streamed() {
    let config = CONFIG.replace("initialDelay: 300ms", "initialDelay: 2s");
    let (seed, probe) = (
        Seed::with_config(&config).await,
        FakeProbe::start().await.unwrap(),
    );
    seed.shoot(SHOOT, 2, false).await;
    let coordinator = Coordinator::start(&seed, &[&probe]).await;
    coordinator.recover(&probe, SHOOT).await;
    let story = ScalingHistory::default();
    let _following = story.follow(&coordinator).await;
    story.until_settled(Up).await;

    // Down: machine-controller-manager is slow to stop, kube-controller-manager is throttled until its level fails.
    let kcm = format!("/apis/apps/v1/namespaces/{SHOOT}/deployments/{KCM}");
    let throttled = FaultAction::TooManyRequests { retry_after: 1 };
    seed.api
        .inject(Fault::always(throttled).verb("patch").path(&kcm).times(3));
    for name in [KCM, MCM] {
        seed.freeze(SHOOT, name);
    }
    probe.say([SHOOT], Outcome::LeasesExpired);
    story
        .until(MCM, ResourceState::Waiting, "1 are still ready")
        .await;
    story.until(CA, ResourceState::Absent, "absent").await;
    story
        .until(
            KCM,
            ResourceState::Pending,
            "Level 0 comes first; it has 2 replicas",
        )
        .await;
    seed.thaw(SHOOT, MCM);
    story.until(KCM, ResourceState::Failed, "429").await;
    let failed = story.0.lock().last().unwrap().clone();
    assert!(failed.retry_time.is_some(), "{failed:#?}");
    story
        .until(KCM, ResourceState::Waiting, "2 are still ready")
        .await;
    seed.thaw(SHOOT, KCM);
    story.until_settled(Down).await;

    // Up: both are slow to start, and machine-controller-manager comes later by its initial delay.
    for name in [KCM, MCM] {
        seed.freeze(SHOOT, name);
    }
    probe.say([SHOOT], Outcome::Healthy);
    story
        .until(KCM, ResourceState::Waiting, "its status is not updated yet")
        .await;
    seed.thaw(SHOOT, KCM);
    story
        .until(MCM, ResourceState::Delayed, "initial delay of 2s")
        .await;
    story
        .until(MCM, ResourceState::Waiting, "its status is not updated yet")
        .await;
    seed.thaw(SHOOT, MCM);
    story.until_settled(Up).await;

    assert_eq!(
        story.states(),
        [
            (Up, Settled, None),
            (Down, Running, Some(0)),
            (Down, Running, Some(1)),
            (Down, Failed, Some(1)),
            (Down, Running, Some(1)),
            (Down, Settled, None),
            (Up, Running, Some(0)),
            (Up, Running, Some(1)),
            (Up, Settled, None),
        ]
    );
}

#[tokio::test]
async fn a_shoot_whose_cluster_is_deleted_is_removed_and_not_found() {
    let (seed, probe, coordinator) = one_shoot(1, false).await;
    coordinator.recover(&probe, SHOOT).await;
    let mut client = coordinator.client.clone();
    let request = pb::WatchScalingRequest::default();
    let mut stream = client.watch_scaling(request).await.unwrap().into_inner();
    let mut removed = async || {
        loop {
            match stream.message().await.unwrap().unwrap().event.unwrap() {
                Event::SnapshotComplete(snapshot) => {
                    assert_eq!(snapshot.items, 1);
                    seed.delete(&keys::CLUSTERS, "", SHOOT);
                }
                Event::Removed(shoot) => return shoot,
                Event::Upsert(_) | Event::Heartbeat(_) => {}
            }
        }
    };
    let removed = tokio::time::timeout(BOUND, removed()).await;
    assert_eq!(removed.expect("it is removed"), SHOOT);
    let request = pb::GetScalingRequest { shoot: SHOOT.into() };
    let status = client.get_scaling(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
}
