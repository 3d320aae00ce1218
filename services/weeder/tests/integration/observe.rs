//! Mode observe: everything is decided, and no pod is deleted.

use watchdog_proto::weeder::v1 as pb;
use watchdog_test_support::in_process::{self, eventually};

use crate::seed::Seed;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_and_what_would_have_been_is_shown() {
    for options in [&["--mode=observe"][..], &["--mode=observe", "--observe-events"]] {
        let seed = Seed::new().await;
        seed.service("shoot", "etcd", false);
        seed.crashing("shoot", "kube-apiserver", "apiserver");
        let weeder = seed.start_with("weeder-0", options).await;
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
        let message = &deletion.message;
        assert!(message.contains("the mode is observe"), "{message}");

        let publishes = options.len() > 1;
        let is_published = || {
            let events = seed.events();
            events
                .iter()
                .any(|event| event.text("/reason") == "DeletionKeptBack")
        };
        if publishes {
            eventually("an Event reports it", is_published).await;
        }
        weeder.stop().await;
        assert!(seed.exists("shoot", "kube-apiserver"));
        let mut writes = in_process::writes(&seed.api, "weeder-0");
        writes.retain(|write| !(publishes && write.contains("/events")));
        assert_eq!(writes, [""; 0]);
    }
}
