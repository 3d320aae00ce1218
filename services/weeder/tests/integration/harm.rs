//! Harm that the weeder must avoid: deletions that nobody can explain, and overloading the API server.

use serde_json::{Value, json};
use watchdog_runtime::args::LogFormat;
use watchdog_runtime::telemetry;
use watchdog_sandbox::{ApiOptions, AuditEntry};
use watchdog_test_support::in_process::{CapturedOutput, eventually};

use crate::seed::Seed;

#[tokio::test(flavor = "multi_thread")]
async fn the_event_and_the_log_name_the_evidence_of_a_deletion() {
    let log = CapturedOutput::default();
    let writer = log.clone();
    let (subscriber, _) = telemetry::subscriber(LogFormat::Json, "info", move || writer.clone()).unwrap();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let seed = Seed::new().await;
    seed.crashing("shoot", "evidence", "apiserver");
    seed.recover("shoot", "etcd");
    let weeder = seed.ready().await;

    weeder.wait_deleted("shoot", "etcd", 1).await;
    let mut line = Value::Null;
    eventually("the deletion is logged", || {
        let text = log.text();
        let mut lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let found = lines.find(|line: &Value| line["message"] == "crash-looping pod deleted");
        line = found.unwrap_or_default();
        line.is_object()
    })
    .await;
    for (field, value) in [
        ("level", json!("INFO")),
        ("namespace", json!("shoot")),
        ("pod", json!("evidence")),
        ("container", json!("main")),
        ("exit_code", json!(1)),
        ("exit_reason", json!("Error")),
        ("restarts", json!(5)),
        ("service", json!("etcd")),
    ] {
        assert_eq!(line[field], value, "{field} in {line}");
    }

    let since = line["service_ready_time"].as_str().unwrap();
    let note = format!(
        "Deleted pod evidence: container main (exit code 1, Error, 5 restarts) was in CrashLoopBackOff, and service \
         etcd has been ready since {since}."
    );
    let is_event = || {
        seed.events().iter().any(|event| {
            event.text("/type") == "Normal"
                && event.text("/reason") == "WeededCrashLoopingPod"
                && event.text("/metadata/namespace") == "shoot"
                && event.text("/regarding/kind") == "ReplicaSet"
                && event.text("/regarding/name") == "evidence-rs"
                && event.text("/note") == note
        })
    };
    eventually("an Event says so", is_event).await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_requests_a_second_than_allowed_and_no_list_for_a_recovery() {
    const RATE: usize = 40;
    const BURST: usize = 200;
    const SHOOTS: usize = 150;
    // Requests that wait on their way to a busy server arrive together: this many are sent at once at most.
    const UNDER_WAY: usize = 32;
    let seed = Seed::with(ApiOptions {
        watch_log: 65_536,
        ..ApiOptions::default()
    })
    .await;
    for shoot in 0..SHOOTS {
        let namespace = format!("shoot--{shoot}");
        seed.namespace(&namespace);
        seed.service(&namespace, "etcd", false);
        seed.crashing(&namespace, "kube-apiserver", "apiserver");
        seed.crashing(&namespace, "backup", "apiserver");
    }
    let weeder = seed
        .start_with("weeder-0", &[&format!("--request-rate={RATE}")])
        .await;
    weeder.wait_ready().await;
    let before = seed.api.audit().len();
    for shoot in 0..SHOOTS {
        seed.service(&format!("shoot--{shoot}"), "etcd", true);
    }
    eventually("all are deleted", || seed.deletions().len() == 2 * SHOOTS).await;
    let audit = seed.api.audit();
    let mut made: Vec<&AuditEntry> = audit
        .iter()
        .filter(|entry| !entry.path.contains("/leases"))
        .collect();
    made.sort_by_key(|entry| entry.time);
    let lists = audit[before..]
        .iter()
        .filter(|entry| entry.verb == "list" && entry.path.contains("/shoot--"));
    assert_eq!(lists.count(), 0, "the watch on pods knows what crashes");
    // The times of the audit log are the wall clock's, which may be corrected meanwhile.
    for window in made.windows(BURST + RATE + UNDER_WAY + 1) {
        let took = window[BURST + RATE + UNDER_WAY]
            .time
            .duration_since(window[0].time);
        assert!(
            took.as_secs_f64() > 0.9,
            "{} requests within {took:?}",
            window.len()
        );
    }
    weeder.stop().await;
}
