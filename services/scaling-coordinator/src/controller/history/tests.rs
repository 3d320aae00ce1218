use std::io::Seek as _;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::time::Instant;
use watchdog_runtime::args::LogFormat;
use watchdog_runtime::telemetry;

use super::{log, measure};
use crate::domain::Direction;
use crate::domain::decision::{
    Decision, EvidenceCounts, ReceivedVerdict, ReportedOutcome, StreamCounts, decide,
};
use crate::domain::incident::ShootIncidents;
use crate::domain::other_writes::OtherWrite;
use crate::domain::request::RequestOutcome;
use crate::domain::testing::{S, verdict, write};

const KCM: &str = "kube-controller-manager";

#[tokio::test(start_paused = true)]
async fn an_incident_ends_with_one_line_whose_fields_are_stable() {
    let file = Arc::new(tempfile::tempfile().unwrap());
    let (subscriber, _) = telemetry::subscriber(LogFormat::Json, "info", file.clone()).unwrap();
    let _guard = tracing::subscriber::set_default(subscriber);
    let start = Instant::now();
    let zone = |name: &str, expired| (name.to_owned(), 2, expired);
    let lost = ReceivedVerdict {
        evidence: Some(Arc::new(EvidenceCounts {
            candidates: 4,
            expired: 3,
            zones: vec![zone("eu-1a", 2), zone("eu-1b", 1)],
            newest_expired_renewal: Some(32 * S),
            grace: Some(40 * S),
        })),
        ..verdict(ReportedOutcome::LeasesExpired, start)
    };
    let down = decide(start, [&lost], StreamCounts::default());
    let up = Decision {
        direction: Some(Direction::Up),
        ..down.clone()
    };
    let mut incidents = ShootIncidents::default();
    incidents.note_decision(start, start, &down);
    incidents.note_write(start + S, &write(KCM, Direction::Down), &RequestOutcome::Conflict);
    incidents.note_write(start + 2 * S, &write(KCM, Direction::Down), &RequestOutcome::Done);
    incidents.note_decision(start + 62 * S, start + 62 * S, &up);
    incidents.note_write(start + 62 * S, &write(KCM, Direction::Up), &RequestOutcome::Done);
    log("a", &incidents.end(start + 62 * S + S / 2, up.direction).unwrap());

    (&*file).rewind().unwrap();
    let line: serde_json::Value = serde_json::from_reader(&*file).unwrap();
    let mut line = line.as_object().unwrap().clone();
    line.remove("timestamp");
    let expected = serde_json::json!({
        "level": "INFO",
        "target": "scaling_coordinator::controller::history",
        "message": "an incident has ended",
        "shoot": "a",
        "outcome": "LEASES_EXPIRED",
        "last_renewal_to_verdict_seconds": 32.0,
        "verdict_to_first_write_seconds": 2.0,
        "verdict_to_last_write_seconds": 2.0,
        "verdict_to_healthy_seconds": 62.0,
        "verdict_to_restored_seconds": 62.5,
        "scaled_down": 1,
        "scaled_up": 1,
        "failed_writes": 1,
        "peak_expired_fraction": 0.75,
        "zones": "eu-1a=2/2,eu-1b=1/2",
        "in_mode_observe": false,
    });
    assert_eq!(serde_json::Value::Object(line), expected);
}

#[tokio::test(start_paused = true)]
async fn an_incident_in_mode_observe_is_compared_with_what_others_scaled() {
    let start = Instant::now();
    let write = write(KCM, Direction::Down);
    let other = OtherWrite {
        reference: write.reference.clone(),
        direction: Direction::Down,
        from: 1,
        to: 0,
        writer: "dependency-watchdog".to_owned(),
    };
    let mut incidents = ShootIncidents::default();
    incidents.note_write(start, &write, &RequestOutcome::KeptBack);
    incidents.note_other(start + 12 * S, &other);
    let up = Decision {
        direction: Some(Direction::Up),
        ..decide(start, [], StreamCounts::default())
    };
    incidents.note_decision(start + 50 * S, start + 50 * S, &up);
    let ended = incidents.end(start + 60 * S, up.direction).unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || measure(&ended));
    let shown = recorder.handle().render();
    for line in [
        "watchdog_incident_comparisons_total{direction=\"down\",result=\"earlier\"} 1\n",
        "watchdog_incident_lead_seconds_sum{direction=\"down\",result=\"earlier\"} 12\n",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    assert!(!shown.contains("direction=\"up\""), "{shown}");
}
