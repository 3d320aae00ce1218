//! The preflight against an API server that grants and withdraws.

#![cfg(test)]

mod support;

use std::time::Duration;

use tokio::time::timeout;
use watchdog_kube::permissions::{Permission, Preflight};
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction, Rule};

use self::support::client;

/// Bound of every wait: generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until readiness is as wanted.
async fn until(readiness: &Readiness, ready: bool) {
    let mut state = readiness.subscribe();
    let waited = timeout(PATIENCE, state.wait_for(|now| *now == ready)).await;
    assert!(waited.is_ok(), "{:?}", readiness.blockers());
}

#[tokio::test]
async fn what_is_withdrawn_later_is_named_before_somebody_needs_it() {
    let api = ApiServer::start(ApiOptions::default()).await.unwrap();
    let readiness = Readiness::default();
    let client = client(&api, "coordinator").await;
    let mut preflight = Preflight::new(client, readiness.clone());
    preflight.ask_again = Duration::from_millis(20);
    let needed = [
        Permission::new("get", "apps", "deployments/scale"),
        Permission::new("patch", "apps", "deployments"),
    ];
    let asking = tokio::spawn(async move { preflight.keep_asking(&needed).await });
    until(&readiness, true).await;

    api.deny(Rule {
        verbs: vec!["patch".to_owned()],
        resources: vec!["deployments".to_owned()],
        ..Rule::default()
    });
    until(&readiness, false).await;
    let blockers = format!("{:?}", readiness.blockers());
    assert!(blockers.contains("patch deployments.apps"), "{blockers}");
    assert!(!blockers.contains("scale"), "{blockers}");

    api.allow_all();
    until(&readiness, true).await;

    // Who cannot ask does not know better.
    let asked = || api.audit().iter().filter(|entry| entry.code == 500).count();
    api.inject(Fault::always(FaultAction::InternalError).verb("create"));
    timeout(PATIENCE, async {
        while asked() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    assert!(readiness.blockers().is_empty(), "{:?}", readiness.blockers());
    asking.abort();
}
