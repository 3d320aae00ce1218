//! The acceptance suite on real kube-apiservers.

#![cfg(test)]

use watchdog_e2e::acceptance::backend::{Backend, RealBackend};
use watchdog_e2e::acceptance::runner::play_all;
use watchdog_e2e::acceptance::scenarios;

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios() {
    let backend = RealBackend::start().await.unwrap();
    let results = play_all(Backend::Real(Box::new(backend)), &scenarios::ALL)
        .await
        .unwrap();
    results.save("real").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}
