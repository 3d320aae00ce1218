//! The acceptance suite on real kube-apiservers.

use std::sync::Arc;

use watchdog_e2e::acceptance::backend::RealBackend;
use watchdog_e2e::acceptance::fault::{self, FaultKind};
use watchdog_e2e::acceptance::results::Results;
use watchdog_e2e::acceptance::runner::play_all;
use watchdog_e2e::acceptance::scenarios;

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios() {
    let backend = Arc::new(RealBackend::start().await.unwrap());
    let results = play_all(backend, scenarios::ALL).await.unwrap();
    results.save("real").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_faults() {
    let backend = Arc::new(RealBackend::start_behind_proxy(3).await.unwrap());
    let mut rows = Vec::new();
    for (fault, number) in FaultKind::REAL.into_iter().zip(1..) {
        rows.push(fault::play(backend.clone(), fault, number).await);
    }
    let results = Results::new(rows);
    results.save("real-faults").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}
