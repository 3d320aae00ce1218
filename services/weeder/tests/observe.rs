//! Mode observe: everything is decided, and no pod is deleted.

mod support;

use support::{Seed, eventually};
use watchdog_proto::weeder::v1 as pb;
use watchdog_test_support::in_process;

fn writes(seed: &Seed) -> Vec<String> {
    in_process::writes(&seed.api, "weeder-0")
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_and_what_would_have_been_is_shown() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    let weeder = seed.start_with("weeder-0", &["--mode=observe"]).await;
    weeder.wait_ready().await;
    seed.service("shoot", "etcd", true);
    let shown = weeder.wait_deleted("shoot", "etcd", 1).await;
    let [deletion] = &shown.deletions[..] else {
        panic!("{shown:#?}")
    };
    assert_eq!(
        (deletion.pod.as_str(), deletion.result()),
        ("kube-apiserver", pb::DeletionResult::KeptBack)
    );
    assert!(
        deletion.message.contains("the mode is observe"),
        "{}",
        deletion.message
    );
    assert!(seed.exists("shoot", "kube-apiserver"));

    assert_eq!(writes(&seed), [""; 0]);
    weeder.stop().await;
    assert_eq!(writes(&seed), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_written_on_request_and_nothing_else() {
    let seed = Seed::new().await;
    seed.service("shoot", "etcd", false);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    let weeder = seed
        .start_with("weeder-0", &["--mode=observe", "--observe-events"])
        .await;
    weeder.wait_ready().await;
    seed.service("shoot", "etcd", true);
    eventually("an Event tells of it", || {
        seed.events()
            .iter()
            .any(|event| event.text("/reason") == "DeletionKeptBack")
    })
    .await;
    assert!(
        writes(&seed).iter().all(|write| write.contains("/events")),
        "{:?}",
        writes(&seed)
    );
    weeder.stop().await;
}
