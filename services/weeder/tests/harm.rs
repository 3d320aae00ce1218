//! Harm that the weeder must avoid: deleting pods that crash for reasons of their own, or overloading the API server.

mod support;

use serde_json::{Value, json};
use support::{JsonLog, Seed, Weeder, eventually};
use watchdog_proto::weeder::v1 as pb;
use watchdog_sandbox::{ApiOptions, AuditEntry};
use watchdog_test_support::in_process::eventually_async;

fn control_plane(role: &str) -> Value {
    json!({"gardener.cloud/role": "controlplane", "role": role})
}

/// Replaces a pod of a controller, as often as it is deleted, by one that crashes at once, until the weeder gives up.
async fn crash_until_left_alone(seed: &Seed, weeder: &Weeder, service: &str) -> pb::Weeder {
    let labels = control_plane("apiserver");
    let replace = async {
        loop {
            seed.gone("shoot", "own").await;
            seed.pod_of("shoot", "own", &labels, Some(("ReplicaSet", "own-rs")));
            seed.crash("shoot", "own");
        }
    };
    let given_up = weeder.wait("shoot", service, "it gives up", |w| !w.left_alone.is_empty());
    tokio::select! {
        weeder = given_up => weeder,
        never = replace => never,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_crashes_for_its_own_reasons_is_deleted_three_times_and_left_alone() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    let weeder = seed.ready().await;
    seed.service("shoot", "etcd", true);
    let shown = crash_until_left_alone(&seed, &weeder, "etcd").await;
    assert_eq!(shown.deleted, 3);
    let audit = seed.deletions();
    let times: Vec<_> = audit.iter().map(|entry| entry.time).collect();
    let [first, second, third] = &times[..] else {
        panic!("{times:?}")
    };
    let gaps = [second.duration_since(*first), third.duration_since(*second)];
    let gaps = gaps.map(|gap| gap.as_secs_f64());
    assert!(
        (9.0..15.0).contains(&gaps[0]) && (19.0..25.0).contains(&gaps[1]),
        "{gaps:?}"
    );
    let left = &shown.left_alone[0];
    assert_eq!((left.pod.as_str(), left.container.as_str()), ("own", "main"));
    assert_eq!(left.controller, "ReplicaSet/own-rs");
    assert_eq!((left.exit_code, left.exit_reason.as_str()), (Some(1), "Error"));
    assert_eq!(left.exit_message, "cannot reach its service");
    assert!(
        shown.deletions.iter().all(|deletion| deletion.useless),
        "{shown:#?}"
    );
    let warning = || {
        seed.events().iter().any(|event| {
            event.text("/type") == "Warning"
                && event.text("/reason") == "CrashesAlthoughServiceIsReady"
                && event.text("/regarding/name") == "own-rs"
                && event.text("/note").contains("exit code 1, Error")
                && event.text("/note").contains("cannot reach its service")
        })
    };
    eventually("an Event warns", warning).await;
    assert!(seed.exists("shoot", "own"));
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_first_sight_only_what_crashed_during_the_outage_is_deleted() {
    let seed = Seed::new().await;
    // Ready since 09:00.
    seed.service("shoot", "etcd", true);
    for (pod, ended_at) in [
        ("before", "2020-11-21T08:59:50Z"),
        ("after", "2020-11-21T09:00:10Z"),
    ] {
        seed.pod("shoot", pod, "apiserver");
        seed.crash_at("shoot", pod, ended_at);
    }
    let weeder = seed.ready().await;
    seed.gone("shoot", "before").await;
    let shown = weeder.wait_deleted("shoot", "etcd", 1).await;
    assert!(shown.first_sight);
    let since = shown.deletions[0].service_ready_since.unwrap();
    assert_eq!(
        since.seconds,
        "2020-11-21T09:00:00Z"
            .parse::<jiff::Timestamp>()
            .unwrap()
            .as_second()
    );
    // What crashes from now on has another reason.
    seed.pod("shoot", "later", "apiserver");
    seed.crash_at("shoot", "later", "2020-11-22T09:00:00Z");
    seed.pod("shoot", "marker", "apiserver");
    seed.crash_at("shoot", "marker", "2020-11-21T08:30:00Z");
    seed.gone("shoot", "marker").await;
    assert!(seed.exists("shoot", "after") && seed.exists("shoot", "later"));
    // A recovery that the weeder sees is another matter.
    seed.service("shoot", "etcd", false);
    seed.service("shoot", "etcd", true);
    seed.gone("shoot", "after").await;
    seed.gone("shoot", "later").await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_event_the_log_and_the_api_name_the_evidence_of_a_deletion() {
    let log = JsonLog::start();
    let seed = Seed::new().await;
    // Ready since 09:00.
    seed.service("shoot", "etcd", true);
    let labels = control_plane("apiserver");
    seed.pod_of("shoot", "evidence", &labels, Some(("ReplicaSet", "evidence-rs")));
    seed.crash("shoot", "evidence");
    let weeder = seed.ready().await;

    let is_deletion = |line: &Value| line["message"] == "crash-looping pod deleted";
    let line = log.line("the deletion is logged", is_deletion).await;
    for (field, value) in [
        ("level", json!("INFO")),
        ("namespace", json!("shoot")),
        ("pod", json!("evidence")),
        ("container", json!("main")),
        ("exit_code", json!(1)),
        ("exit_reason", json!("Error")),
        ("restarts", json!(5)),
        ("service", json!("etcd")),
        ("service_ready_since", json!("2020-11-21T09:00:00Z")),
    ] {
        assert_eq!(line[field], value, "{field} in {line}");
    }

    let note = "Deleted pod evidence: container main (exit code 1, Error, 5 restarts) was in CrashLoopBackOff, and \
                service etcd is ready since 2020-11-21T09:00:00Z.";
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

    let shown = weeder.wait_deleted("shoot", "etcd", 1).await;
    let deletion = &shown.deletions[0];
    assert_eq!(
        (deletion.pod.as_str(), deletion.container.as_str()),
        ("evidence", "main")
    );
    assert_eq!(
        (deletion.exit_code, deletion.exit_reason.as_str()),
        (Some(1), "Error")
    );
    assert_eq!((deletion.restart_count, deletion.init_container), (5, false));
    assert_eq!(shown.key.unwrap().service, "etcd");
    let since = "2020-11-21T09:00:00Z".parse::<jiff::Timestamp>().unwrap();
    assert_eq!(deletion.service_ready_since.unwrap().seconds, since.as_second());
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_comes_and_goes_is_weeded_three_times_a_minute() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    let weeder = seed.ready().await;
    for flap in 1..=6 {
        let before = weeder.find("shoot", "etcd").await.and_then(|w| w.started_at);
        seed.service("shoot", "etcd", true);
        let fresh = |w: &pb::Weeder| w.started_at != before;
        let shown = weeder.wait("shoot", "etcd", "it is new", fresh).await;
        let waits = shown.state() == pb::WeederState::Queued;
        assert_eq!(waits, flap > 3, "{flap}: {shown:#?}");
        if flap < 6 {
            seed.service("shoot", "etcd", false);
        }
    }
    let note = "once it has been ready for 30 s";
    let flapping = || {
        seed.events()
            .iter()
            .any(|event| event.text("/reason") == "ServiceFlapping" && event.text("/note").contains(note))
    };
    eventually("an Event says so", flapping).await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_requests_a_second_than_allowed_and_no_list_for_a_recovery() {
    const RATE: usize = 40;
    const SHOOTS: usize = 60;
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
    for window in made.windows(RATE + 1) {
        let took = window[RATE].time.duration_since(window[0].time);
        assert!(
            took.as_secs_f64() > 0.99,
            "{} requests within {took:?}",
            window.len()
        );
    }
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_more_than_eight_selectors_all_pods_are_watched() {
    let seed = Seed::new().await;
    let selectors: String = (0..9)
        .map(|i| format!("{{matchLabels: {{role: r{i}}}}},"))
        .collect();
    seed.configure(&format!(
        "servicesAndDependantSelectors: {{etcd: {{podSelectors: [{selectors}]}}}}"
    ));
    seed.service("shoot", "etcd", false);
    seed.crashing("shoot", "pod", "r7");
    seed.crashing("shoot", "unrelated", "r9");
    let weeder = seed.ready().await;
    eventually("the pods are watched", || support::pod_watches(&seed) > 0).await;
    let counted = weeder.metric("watchdog_weeder_pod_watches{scope=\"all\"}").await;
    assert_eq!(counted.unwrap(), Some(1.0));
    seed.service("shoot", "etcd", true);
    seed.gone("shoot", "pod").await;
    assert!(seed.exists("shoot", "unrelated"));
    let audit = seed.api.audit();
    let watches = audit
        .iter()
        .filter(|entry| entry.verb == "watch" && entry.path == "/api/v1/pods");
    assert!(
        watches.clone().count() > 0
            && watches
                .into_iter()
                .all(|entry| !entry.query.contains("labelSelector"))
    );
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_owns_few_namespaces_watches_only_their_pods() {
    const SHOOTS: usize = 6;
    let namespace = |shoot: usize| format!("shoot--{shoot}");
    let seed = Seed::new().await;
    seed.configure(
        "servicesAndDependantSelectors: {etcd: {podSelectors: [{matchLabels: {role: apiserver}}]}}",
    );
    for shoot in 0..SHOOTS {
        seed.namespace(&namespace(shoot));
        seed.service(&namespace(shoot), "etcd", false);
        seed.crashing(&namespace(shoot), "kube-apiserver", "apiserver");
    }
    let weeders = [seed.start("weeder-0").await, seed.start("weeder-1").await];
    for weeder in &weeders {
        weeder.wait_ready().await;
    }
    eventually_async("each watches the namespaces that it owns", async || {
        let [(of_all, namespaces), (of_all_too, namespaces_too)] = [
            weeders[0].pod_watches_by_scope().await,
            weeders[1].pod_watches_by_scope().await,
        ];
        of_all + of_all_too == 0
            && namespaces.min(namespaces_too) > 0
            && namespaces + namespaces_too == SHOOTS
    })
    .await;
    let begun = seed.api.audit().len();
    for shoot in 0..SHOOTS {
        seed.service(&namespace(shoot), "etcd", true);
    }
    for shoot in 0..SHOOTS {
        seed.gone(&namespace(shoot), "kube-apiserver").await;
    }
    let audit = seed.api.audit();
    let on_all_pods = |entry: &&AuditEntry| entry.verb == "watch" && entry.path == "/api/v1/pods";
    assert_eq!(audit[begun..].iter().filter(on_all_pods).count(), 0);
    for weeder in weeders {
        weeder.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_that_a_watch_brings_late_is_first_sight() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    for (pod, ended_at) in [
        ("theirs", "2020-11-21T08:00:00Z"),
        ("own", "2020-11-21T10:00:00Z"),
    ] {
        seed.pod("shoot", pod, "apiserver");
        seed.crash_at("shoot", pod, ended_at);
    }
    let weeder = seed.ready().await;
    // The API server keeps what happens while the weeder cannot reach it: the watch goes on where it was.
    seed.api.stop().await.unwrap();
    eventually("the watch cannot be opened", || {
        let failures = weeder.bound.readiness.failures();
        failures.iter().any(|(watch, ..)| *watch == "endpointslices")
    })
    .await;
    seed.service("shoot", "etcd", true);
    seed.api.resume().await.unwrap();
    seed.gone("shoot", "theirs").await;
    let shown = weeder.wait_deleted("shoot", "etcd", 1).await;
    assert!(shown.first_sight);
    assert!(seed.exists("shoot", "own"));
    weeder.stop().await;
}
