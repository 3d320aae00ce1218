//! The acceptance suite.

use std::sync::Arc;

use watchdog_e2e::acceptance::backend::Backend;
use watchdog_e2e::acceptance::fault;
use watchdog_e2e::acceptance::runner;
use watchdog_e2e::acceptance::scenarios;

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios() {
    let backend = Arc::new(Backend::start().await.unwrap());
    let results = runner::play_all(backend, scenarios::ALL).await.unwrap();
    results.save("scenarios").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_faults() {
    let results = fault::play_all().await.unwrap();
    results.save("faults").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}
