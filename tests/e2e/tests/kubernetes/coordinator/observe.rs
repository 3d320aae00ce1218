//! Mode observe on a real API server, whose managedFields tell the coordinator's own writes from those of another
//! watchdog.

use anyhow::Context;
use serde_json::json;
use watchdog_proto::scaling::v1::{Direction, FlowState, Incident, Mode};
use watchdog_test_support::fake_probe::Outcome;
use watchdog_test_support::fixtures;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_watch_stream::wire;

use super::{COUNTS, Fixture, SHOOT};
use crate::drop_in::{GO_PROGRAM, scale_as_go};

async fn replicas(fixture: &Fixture) -> [i32; 3] {
    let mut found = [0; 3];
    for (found, (name, _)) in found.iter_mut().zip(COUNTS) {
        *found = fixture.seed.replicas_of(name).await.unwrap();
    }
    found
}

/// The record of the incident in mode observe, which has ended.
async fn incident(fixture: &Fixture) -> Incident {
    wait::until("the incident has ended", BOUND, || async {
        let shown = fixture.coordinator.get(SHOOT).await?;
        let ended = shown.last_incident.filter(|ended| ended.in_mode_observe);
        ended.context("no such incident").map(Some)
    })
    .await
    .unwrap()
}

/// Waits until all that is left to do is kept back.
async fn until_kept_back(fixture: &Fixture) {
    let kept_back = wait::until("the next write is kept back", BOUND, || async {
        let state = fixture.coordinator.get(SHOOT).await?;
        anyhow::ensure!(state.state() == FlowState::KeptBack, "{state:?}");
        Ok(Some(()))
    });
    kept_back.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn own_writes_are_told_from_those_of_another_watchdog() {
    let counts = COUNTS.map(|(_, count)| count);
    let config = fixtures::prober("probeInterval: 10s", "100ms");
    let mut fixture = Fixture::start("observe", &config).await.unwrap();
    fixture.lose().await.unwrap();
    assert_eq!(replicas(&fixture).await, [0; 3]);
    let observe =
        json!({"metadata": {"annotations": {"dependency-watchdog.gardener.cloud/mode": "observe"}}});
    fixture.seed.change_shoot(observe).await.unwrap();
    wait::until("the shoot is observed", BOUND, || async {
        let mode = fixture.coordinator.get(SHOOT).await?.mode();
        anyhow::ensure!(mode == Mode::Observe, "{mode:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    fixture.recover().await.unwrap();
    assert_eq!(
        replicas(&fixture).await,
        counts,
        "what it holds down itself is restored"
    );

    fixture.until_ready().await.unwrap();
    fixture.seed.say(Outcome::LeasesExpired);
    until_kept_back(&fixture).await;
    assert_eq!(replicas(&fixture).await, counts, "nothing is written");
    for (name, count) in COUNTS {
        scale_as_go(&fixture.seed.client, &fixture.seed.timeline, name, Some(count), 0).await;
    }
    fixture.until_settled(Direction::Down).await.unwrap();
    fixture.seed.say(Outcome::Healthy);
    until_kept_back(&fixture).await;
    assert_eq!(
        replicas(&fixture).await,
        [0; 3],
        "what the other one holds down is left to it"
    );
    for (name, count) in COUNTS {
        scale_as_go(&fixture.seed.client, &fixture.seed.timeline, name, None, count).await;
    }
    let ended = incident(&fixture).await;
    assert_eq!(ended.first_to_scale_down, "scaling-coordinator", "{ended:?}");
    assert!(wire::micros(ended.scale_down_lead.as_ref()) > 0, "{ended:?}");
    assert_eq!(ended.scale_times.len(), 6, "{ended:?}");
    assert!(
        ended.scale_times.iter().all(|times| times.other == GO_PROGRAM),
        "{ended:?}"
    );
    fixture.end(COUNTS).await.unwrap();
}
