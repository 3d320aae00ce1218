//! The whole of lease-probe against a seed and shoots in memory.

#![cfg(test)]
#![allow(unreachable_pub, reason = "shared by the modules of this test")]

mod api;
mod candidates;
mod changes;
mod eligible_shoots;
mod failures;
mod fixture;
mod losses;
mod replica;
mod replicas;
mod stream;

use std::time::Duration;

use tokio::time::Instant;

/// Bound of every wait: generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `look` finds something; `what` names it, and what there was instead.
async fn until<T>(mut what: impl FnMut() -> String, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "gave up waiting until {}", what());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until `condition` holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    until(|| what.to_owned(), async || condition().then_some(())).await;
}
