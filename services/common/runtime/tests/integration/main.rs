//! The process of a service: TLS, connections, the command line, the start and the stop.

#![cfg(test)]
#![allow(unreachable_pub, reason = "shared by the modules of this test")]

mod admin;
mod args;
mod certs;
mod connections;
mod log_sink;
mod process;
mod rpc_metrics;
mod server;
mod tls;

use std::time::Duration;

/// Bound of every wait: generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `look` is content.
async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !look().await {
        let left = tokio::time::Instant::now() < deadline;
        assert!(left, "gave up waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
