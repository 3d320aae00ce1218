//! The preflight against an API server that grants and withdraws.

#![cfg(test)]

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use watchdog_kube::client::request;
use watchdog_kube::permissions::{Permission, keep_asking};
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};
use watchdog_test_support::in_process::{eventually, rule, until_ready};
use watchdog_test_support::sandboxed::client;
use watchdog_test_support::wait::BOUND;

/// The API server, and the program that asks it again after this time when all is granted.
async fn asking_again_after(time: Duration) -> (ApiServer, Client, Readiness, AbortOnDropHandle<()>) {
    let api = ApiServer::start(ApiOptions::default()).await.unwrap();
    let readiness = Readiness::default();
    let client = client(&api.kubeconfig("coordinator")).await.unwrap();
    let needed = || {
        vec![
            Permission::new("get", "apps", "deployments/scale"),
            Permission::new("patch", "apps", "deployments"),
        ]
    };
    let changes = watch::Sender::new(()).subscribe();
    let asking = keep_asking(time, client.clone(), readiness.clone(), needed, changes);
    let asking = AbortOnDropHandle::new(tokio::spawn(asking));
    until_ready(&readiness, true).await;
    (api, client, readiness, asking)
}

#[tokio::test]
async fn what_is_withdrawn_later_is_named_before_somebody_needs_it() {
    let (api, _, readiness, _asking) = asking_again_after(Duration::from_millis(20)).await;
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
}

/// By itself it would ask again when the test has failed.
#[tokio::test]
async fn a_request_that_is_refused_is_a_reason_to_ask_at_once() {
    let (api, client, readiness, _asking) = asking_again_after(BOUND + Duration::from_secs(30)).await;
    api.deny(rule(&["list"], &["secrets"]));
    api.deny(rule(&["patch"], &["deployments"]));
    let secrets: Api<Secret> = Api::all(client);
    let refused = request(secrets.list(&ListParams::default())).await.unwrap_err();
    assert!(refused.is_forbidden(), "{refused}");
    until_ready(&readiness, false).await;
    let blockers = format!("{:?}", readiness.blockers());
    assert!(blockers.contains("patch deployments.apps"), "{blockers}");
}
