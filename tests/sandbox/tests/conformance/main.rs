//! The same requests to the sandbox and to a real kube-apiserver: the answers must be the same.
//!
//! `real.txt` holds what a kube-apiserver v1.20.2 answered, object by object cut down to what a step shows and
//! with versions, UIDs and times made comparable. This test compares the sandbox with it; `kubernetes::conformance` of
//! the end-to-end tests compares a real kube-apiserver with it, so that the file stays true.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed test may panic"
)]

#[path = "../support/mod.rs"]
mod support;

mod scenario;
mod transcript;

use support::{client, server};
use transcript::{assert_same, play};
use watchdog_sandbox::resource::{ResourceType, ScalePaths};

#[tokio::test]
async fn the_sandbox_answers_like_a_real_api_server() {
    let api = server().await;
    api.register(ResourceType::custom(
        "druid.gardener.cloud",
        "v1alpha1",
        "Etcd",
        "etcds",
        Some(ScalePaths::CUSTOM),
    ));
    // Someone without any right: on the real server nobody has granted bob any.
    api.restrict("bob", Vec::new());
    let transcript = play(&client(&api, "admin").await, &scenario::steps()).await;
    assert_same("the sandbox", &transcript);
}
