//! Mode observe on a real API server, whose managedFields tell the coordinator's own writes from those of another
//! watchdog.

use anyhow::Context;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use watchdog_proto::scaling::v1::{Direction, FlowState, Incident, Mode};
use watchdog_test_support::fake_probe::Outcome;
use watchdog_test_support::fixtures;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::workload_controller::deployments;
use watchdog_watch_stream::wire;

use super::{COUNTS, Fixture, SHOOT};

/// The name of the other watchdog in managedFields.
const OTHER: &str = "dependency-watchdog";

async fn replicas(fixture: &Fixture) -> [i32; 3] {
    let mut found = [0; 3];
    for (found, (name, _)) in found.iter_mut().zip(COUNTS) {
        *found = fixture.seed.replicas_of(name).await.unwrap();
    }
    found
}

/// Scales as the Go program does: the annotations by a patch, the replicas through the scale sub-resource.
async fn other_scales(fixture: &Fixture, name: &str, recorded: Option<i32>, to: i32) -> anyhow::Result<()> {
    let api = fixture.seed.api(&deployments());
    let params = PatchParams {
        field_manager: Some(OTHER.to_owned()),
        ..PatchParams::default()
    };
    let annotation = |name: &str| format!("dependency-watchdog.gardener.cloud/{name}");
    let annotate = async |recorded: Value, protected: Value| {
        let annotations = json!({
            annotation("replicas"): recorded, annotation("meltdown-protection-active"): protected,
        });
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        fixture.seed.note_write(&api.patch(name, &params, &patch).await?)
    };
    if let Some(recorded) = recorded {
        annotate(json!(recorded.to_string()), json!("")).await?;
    }
    let scale = Patch::Merge(json!({"spec": {"replicas": to}}));
    fixture
        .seed
        .note_write(&api.patch_scale(name, &params, &scale).await?)?;
    if recorded.is_none() {
        annotate(Value::Null, Value::Null).await?;
    }
    Ok(())
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
        other_scales(&fixture, name, Some(count), 0).await.unwrap();
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
        other_scales(&fixture, name, None, count).await.unwrap();
    }
    let ended = incident(&fixture).await;
    assert_eq!(ended.first_to_scale_down, "scaling-coordinator", "{ended:?}");
    assert!(wire::micros(ended.scale_down_lead.as_ref()) > 0, "{ended:?}");
    assert_eq!(ended.scale_times.len(), 6, "{ended:?}");
    assert!(
        ended.scale_times.iter().all(|times| times.other == OTHER),
        "{ended:?}"
    );
    fixture.end(COUNTS).await.unwrap();
}
