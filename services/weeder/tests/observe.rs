//! Mode observe: everything is decided, and no pod is deleted.

mod support;

use support::{Seed, eventually};
use watchdog_proto::weeder::v1 as pb;
use watchdog_sandbox::resource::keys;

/// Everything that the weeder has written, except its membership Leases.
fn writes(seed: &Seed) -> Vec<String> {
    let entries = seed.api.audit().into_iter().filter(|entry| entry.is_write());
    entries
        .filter(|entry| entry.user == "weeder-0")
        .filter(|entry| !entry.path.contains("/leases") && !entry.path.contains("/selfsubjectaccessreviews"))
        .map(|entry| format!("{} {}", entry.verb, entry.path))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_and_what_would_have_been_is_shown() {
    let seed = Seed::new().await;
    seed.namespace("shoot");
    seed.service("shoot", "etcd", false);
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    let mut weeder = seed.start_with("weeder-0", &["--mode=observe"]).await;
    weeder.wait_ready().await;
    seed.service("shoot", "etcd", true);
    let shown = weeder
        .wait("shoot", "etcd", "a deletion is kept back", |w| w.deleted == 1)
        .await;
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

    // It crashes again, which a deleted pod would not; then somebody else deletes it, and so it is with its successor.
    seed.run("shoot", "kube-apiserver");
    seed.crash("shoot", "kube-apiserver");
    seed.delete(&keys::PODS, "shoot", "kube-apiserver");
    seed.crashing("shoot", "kube-apiserver", "apiserver");
    let shown = weeder
        .wait("shoot", "etcd", "the successor is kept back too", |w| {
            w.deleted == 2
        })
        .await;
    let uids: std::collections::BTreeSet<_> = shown.deletions.iter().map(|deletion| &deletion.uid).collect();
    assert_eq!(
        (shown.deletions.len(), uids.len()),
        (2, 2),
        "once for each pod: {shown:#?}"
    );
    assert_eq!(writes(&seed), [""; 0]);
    weeder.stop().await;
    assert_eq!(writes(&seed), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_written_on_request_and_nothing_else() {
    let seed = Seed::new().await;
    seed.namespace("shoot");
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
