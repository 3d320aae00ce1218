//! Dependants that a Service declares by its annotation.

mod support;

use support::{CONFIG, Seed, Weeder, eventually};
use watchdog_proto::weeder::v1 as pb;
use watchdog_test_support::in_process::rule;

const OPTION: &[&str] = &["--dependants-annotation"];
const QUEUE_USERS: &str = "[{matchLabels: {role: queue-user}}]";

async fn ready(seed: &Seed) -> Weeder {
    let weeder = seed.start_with("weeder-0", OPTION).await;
    weeder.wait_ready().await;
    weeder
}

fn cancelled(weeding: &pb::Weeder) -> bool {
    weeding.state() == pb::WeederState::Cancelled
}

#[tokio::test(flavor = "multi_thread")]
async fn an_annotated_service_that_becomes_ready_has_its_dependants_weeded() {
    for endpoints_only in [false, true] {
        let seed = Seed::with_slices(!endpoints_only).await;
        let make = |namespace: &str, ready: bool| match endpoints_only {
            true => seed.endpoints(namespace, "queue", usize::from(ready), usize::from(!ready)),
            false => seed.service(namespace, "queue", ready),
        };
        seed.namespace("other");
        seed.annotate("shoot", "queue", Some(QUEUE_USERS));
        make("shoot", false);
        for namespace in ["shoot", "other"] {
            seed.crashing(namespace, "user", "queue-user");
        }
        seed.crashing("shoot", "bystander", "bystander");
        let weeder = ready(&seed).await;
        make("shoot", true);
        seed.gone("shoot", "user").await;
        // One of the same name in another namespace is not annotated.
        make("other", true);
        weeder.wait_deleted("shoot", "queue", 1).await;
        assert_eq!(weeder.list().await.len(), 1);
        assert!(seed.exists("other", "user") && seed.exists("shoot", "bystander"));
        weeder.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_may_come_and_go() {
    let seed = Seed::new().await;
    seed.service("shoot", "queue", true);
    seed.crashing("shoot", "user", "queue-user");
    let weeder = ready(&seed).await;
    seed.annotate("shoot", "queue", Some(QUEUE_USERS));
    seed.gone("shoot", "user").await;
    seed.annotate("shoot", "queue", None);
    let weeding = weeder.wait("shoot", "queue", "it is cancelled", cancelled).await;
    assert_eq!(weeding.message, "The service no longer declares dependants.");
    seed.annotate("shoot", "queue", Some(QUEUE_USERS));
    let live = |w: &pb::Weeder| w.state() == pb::WeederState::Active;
    weeder.wait("shoot", "queue", "there is a new one", live).await;
    seed.delete(&watchdog_sandbox::resource::keys::SERVICES, "shoot", "queue");
    weeder
        .wait("shoot", "queue", "it went with the Service", cancelled)
        .await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_annotation_is_reported_and_stops_nothing_else() {
    let seed = Seed::new().await;
    seed.annotate("shoot", "queue", Some("[{}]"));
    seed.service("shoot", "queue", true);
    seed.annotate("shoot", "etcd", Some("what?"));
    seed.service("shoot", "etcd", true);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    seed.crashing("shoot", "user", "queue-user");
    let weeder = ready(&seed).await;
    seed.gone("shoot", "kube-apiserver").await;
    let reports = || {
        let mut reports: Vec<(String, String)> = seed
            .events()
            .iter()
            .map(|event| event.value().clone())
            .filter(|event| event["reason"] == "MalformedDependants" && event["type"] == "Warning")
            .map(|event| {
                let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
                (text(&event["regarding"]["name"]), text(&event["note"]))
            })
            .collect();
        reports.sort();
        reports
    };
    eventually("both are reported", || reports().len() == 2).await;
    let found = reports();
    assert_eq!((&*found[0].0, &*found[1].0), ("etcd", "queue"));
    assert!(found[1].1.contains("[0]: selects every pod"), "{found:?}");
    assert!(seed.exists("shoot", "user"));
    seed.annotate("shoot", "queue", Some(QUEUE_USERS));
    seed.gone("shoot", "user").await;
    assert_eq!(reports().len(), 2, "once each");
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations_mean_nothing_unless_asked_for() {
    let seed = Seed::new().await;
    seed.configure(CONFIG);
    seed.annotate("shoot", "queue", Some(QUEUE_USERS));
    seed.service("shoot", "queue", true);
    seed.service("shoot", "etcd", true);
    seed.crashing("shoot", "user", "queue-user");
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    let weeder = seed.ready().await;
    seed.gone("shoot", "kube-apiserver").await;
    assert!(seed.exists("shoot", "user"));
    assert_eq!(weeder.list().await.len(), 1);
    let audit = seed.api.audit();
    assert!(!audit.iter().any(|entry| entry.path.contains("/services")));
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_is_named_and_the_file_does_not_wait_for_it() {
    let seed = Seed::new().await;
    seed.api.deny(rule(&["list", "watch"], &["services"]));
    seed.service("shoot", "etcd", true);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    let weeder = seed.start_with("weeder-0", OPTION).await;
    eventually("the missing permission is named", || {
        let why = weeder.blocker("permissions").unwrap_or_default();
        why.contains("list services in all namespaces") && weeder.blocker("services").is_some()
    })
    .await;
    // What the file names does not wait for it.
    seed.gone("shoot", "kube-apiserver").await;
    seed.api.allow_all();
    weeder.wait_ready().await;
    weeder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_so_many_names_a_further_one_lists_nothing_anew() {
    for endpoints_only in [false, true] {
        let seed = Seed::with_slices(!endpoints_only).await;
        let services: Vec<String> = (0..64)
            .map(|n| format!("s{n}: {{podSelectors: [{{matchLabels: {{a: b}}}}]}}"))
            .collect();
        let names = services.join(", ");
        seed.configure(&format!(
            "servicesAndDependantSelectors: {{etcd: {{podSelectors: [{{matchLabels: {{a: b}}}}]}}, {names}}}"
        ));
        match endpoints_only {
            true => seed.endpoints("shoot", "queue", 1, 0),
            false => seed.service("shoot", "queue", true),
        }
        seed.crashing("shoot", "user", "queue-user");
        let weeder = ready(&seed).await;
        let lists = || {
            let of = |path: &str| path.ends_with("/endpointslices") || path.ends_with("/endpoints");
            let audit = seed.api.audit();
            audit
                .iter()
                .filter(|entry| entry.verb == "list" && of(&entry.path))
                // A watch asks for one object now and then, to see that etcd was not restored.
                .filter(|entry| !entry.query.split('&').any(|part| part == "limit=1"))
                .count()
        };
        let before = lists();
        assert!(seed.exists("shoot", "user"));
        seed.annotate("shoot", "queue", Some(QUEUE_USERS));
        seed.gone("shoot", "user").await;
        weeder.wait_deleted("shoot", "queue", 1).await;
        assert_eq!(lists(), before);
        weeder.stop().await;
    }
}
