//! The preflight against an API server that grants and withdraws.

#![cfg(test)]

use std::time::Duration;

use tokio::sync::watch;
use watchdog_kube::permissions::{Permission, keep_asking};
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};
use watchdog_test_support::in_process::{eventually, rule, until_ready};
use watchdog_test_support::sandboxed::client;

#[tokio::test]
async fn what_is_withdrawn_later_is_named_before_somebody_needs_it() {
    let api = ApiServer::start(ApiOptions::default()).await.unwrap();
    let readiness = Readiness::default();
    let client = client(&api.kubeconfig("coordinator")).await.unwrap();
    let needed = [
        Permission::new("get", "apps", "deployments/scale"),
        Permission::new("patch", "apps", "deployments"),
    ];
    let changes = watch::Sender::new(()).subscribe();
    let soon = Duration::from_millis(20);
    let asking = keep_asking(soon, client, readiness.clone(), move || needed.to_vec(), changes);
    let asking = tokio::spawn(asking);
    until_ready(&readiness, true).await;

    api.deny(rule(&["patch"], &["deployments"]));
    until_ready(&readiness, false).await;
    let blockers = format!("{:?}", readiness.blockers());
    assert!(blockers.contains("patch deployments.apps"), "{blockers}");
    assert!(!blockers.contains("scale"), "{blockers}");

    api.allow_all();
    until_ready(&readiness, true).await;

    // Who cannot ask does not know better.
    let asked = || api.audit().iter().filter(|entry| entry.code == 500).count();
    api.inject(Fault::always(FaultAction::InternalError).verb("create"));
    eventually("it was asked", || asked() > 0).await;
    assert!(readiness.blockers().is_empty(), "{:?}", readiness.blockers());
    asking.abort();
}
