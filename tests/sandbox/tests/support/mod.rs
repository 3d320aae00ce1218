//! Shared by all tests.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

use std::time::Duration;

use kube::{Client, Config, config::Kubeconfig};
use watchdog_sandbox::{ApiOptions, ApiServer};

/// Bound of every wait: generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub async fn server() -> ApiServer {
    ApiServer::start(ApiOptions::default()).await.unwrap()
}

pub async fn client(api: &ApiServer, user: &str) -> Client {
    client_of(&api.kubeconfig(user)).await
}

pub async fn client_of(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .unwrap();
    // A retried 429 would hide the one that a test asks for.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_async(what, async || condition()).await;
}

/// Waits until `condition` holds.
pub async fn eventually_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "gave up waiting until {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
