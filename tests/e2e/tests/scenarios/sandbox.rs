//! The acceptance suite on the sandbox.

use std::sync::Arc;

use watchdog_e2e::acceptance::backend::SandboxBackend;
use watchdog_e2e::acceptance::fault::{self, FaultKind};
use watchdog_e2e::acceptance::runner::play_all;
use watchdog_e2e::acceptance::scenarios;

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios() {
    let backend = Arc::new(SandboxBackend::start().await.unwrap());
    let results = play_all(backend, scenarios::ALL).await.unwrap();
    results.save("sandbox").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_faults() {
    let results = fault::play_all(&FaultKind::SANDBOX).await;
    results.save("sandbox-faults").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}
