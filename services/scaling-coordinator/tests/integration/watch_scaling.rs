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

    /// The states of one resource: direction, level, state, and all messages shown meanwhile.
    fn states_of(&self, name: &str) -> Vec<(pb::Direction, i32, ResourceState, String)> {
        let mut states: Vec<(pb::Direction, i32, ResourceState, String)> = Vec::new();
        for scaling in self.0.lock().iter() {
            let shown = resource(scaling, name);
            let now = (scaling.direction(), shown.level(), shown.state());
            match states.last_mut() {
                Some((direction, level, state, messages)) if (*direction, *level, *state) == now => {
                    messages.push_str(&shown.message);
                }
                _ => states.push((now.0, now.1, now.2, shown.message.clone())),
            }
        }
        states
    }
}

/// A state that must be shown, with words that a message must contain meanwhile.
fn must(state: ResourceState, words: &'static str) -> (ResourceState, Option<&'static str>) {
    (state, Some(words))
}

/// States that pass by themselves, within milliseconds: a slow reader of the stream may miss them.
fn passing() -> Vec<(ResourceState, Option<&'static str>)> {
    vec![
        (ResourceState::Writing, None),
        (ResourceState::Waiting, None),
        (ResourceState::Writing, None),
        (ResourceState::Waiting, None),
    ]
}

/// Direction, level, state and words that are expected; without words it may be missing.
type Expected = (pb::Direction, i32, ResourceState, Option<&'static str>);

fn is_told(seen: &[(pb::Direction, i32, ResourceState, String)], expected: &[Expected]) -> bool {
    let Some(((direction, level, state, words), rest)) = expected.split_first() else {
        return seen.is_empty();
    };
    let fits = |(d, l, s, messages): &(pb::Direction, i32, ResourceState, String)| {
        (d, l, s) == (direction, level, state) && words.is_none_or(|words| messages.contains(words))
    };
    let shown = seen.split_first();
    shown.is_some_and(|(first, others)| fits(first) && is_told(others, rest))
        || (words.is_none() && is_told(seen, rest))
}

/// Checks that one resource went through exactly these states.
fn assert_steps(story: &ScalingHistory, name: &str, expected: &[Expected]) {
    let seen = story.states_of(name);
    assert!(
        is_told(&seen, expected),
        "{name}: expected {expected:#?}\nbut it was {seen:#?}"
    );
}

/// Builds what is expected of one resource in one direction.
fn of(
    direction: pb::Direction,
    level: i32,
    states: impl IntoIterator<Item = Vec<(ResourceState, Option<&'static str>)>>,
) -> Vec<Expected> {
    let states = states.into_iter().flatten();
    states
        .map(|(state, words)| (direction, level, state, words))
        .collect()
}

#[tokio::test]
async fn every_state_and_step_of_a_loss_and_a_recovery_is_streamed() {
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
    let backs_off = || {
        vec![
            (ResourceState::Writing, None),
            must(ResourceState::BackingOff, "429"),
        ]
    };
    let kcm = [
        of(Up, 0, [vec![must(ResourceState::Reached, "2 are ready")]]),
        of(
            Down,
            1,
            [
                vec![must(
                    ResourceState::Pending,
                    "Level 0 comes first; it has 2 replicas, target 0",
                )],
                backs_off(),
                backs_off(),
                vec![(ResourceState::Writing, None), must(ResourceState::Failed, "429")],
                passing(),
                vec![
                    must(ResourceState::Waiting, "2 are still ready"),
                    must(ResourceState::Reached, "scaled to 0"),
                ],
            ],
        ),
        of(
            Up,
            0,
            [
                passing(),
                vec![must(ResourceState::Waiting, "its status is not updated yet")],
                passing(),
                vec![must(ResourceState::Reached, "2 are ready")],
            ],
        ),
    ];
    assert_steps(&story, KCM, &kcm.concat());
    let mcm = [
        of(Up, 1, [vec![must(ResourceState::Reached, "1 are ready")]]),
        of(
            Down,
            0,
            [
                passing(),
                vec![
                    must(ResourceState::Waiting, "1 are still ready"),
                    must(ResourceState::Reached, "scaled to 0"),
                ],
            ],
        ),
        of(
            Up,
            1,
            [
                vec![
                    must(ResourceState::Pending, "Level 0 comes first"),
                    must(ResourceState::Delayed, "initial delay of 2s"),
                ],
                passing(),
                vec![must(ResourceState::Waiting, "its status is not updated yet")],
                passing(),
                vec![must(ResourceState::Reached, "1 are ready")],
            ],
        ),
    ];
    assert_steps(&story, MCM, &mcm.concat());
    let absent = || vec![must(ResourceState::Absent, "optional and absent")];
    let ca = [
        of(Up, 2, [absent()]),
        // It is looked for once, for the next level rests on its absence.
        of(Down, 0, [passing(), absent()]),
        of(Up, 2, [absent()]),
    ];
    assert_steps(&story, CA, &ca.concat());
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
