//! The whole coordinator against an API server in memory and a lease-probe that the test drives.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a failed test may panic"
)]

mod api;
mod bulk;
mod coordinator;
mod dropped;
mod faults;
mod flows;
mod half_open;
mod kinds;
mod observe;
mod ownership;
mod release;
mod restored;
mod seed;
mod streams;
mod watch_scaling;

use std::time::Duration;

use tokio::time::Instant;

/// Bound of every wait: generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// The three dependants of Gardener.
const KCM: &str = "kube-controller-manager";
const MCM: &str = "machine-controller-manager";
const CA: &str = "cluster-autoscaler";

/// A shoot's namespace.
const SHOOT: &str = "shoot--project--one";

/// Waits until `condition` holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_async(what, async || condition()).await;
}

/// Waits until `condition` holds.
async fn eventually_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "gave up waiting until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
