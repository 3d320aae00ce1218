//! The list of a shoot's machines on the seed, when the seed has too much to do.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::Full;
use kube::client::Body;
use lease_probe::cluster::machines;
use lease_probe::domain::outcome::ProbeFailure;
use tokio_util::sync::CancellationToken;
use watchdog_runtime::failure::Reason;
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::resource::{ResourceType, keys};
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};
use watchdog_test_support::in_process::eventually;
use watchdog_test_support::sandboxed::client;

#[tokio::test]
async fn a_list_without_an_answer_is_given_up() {
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let seed = client(&server.kubeconfig("lease-probe")).await.unwrap();
    server.inject(Fault::always(FaultAction::Hang).path("/apis/machine"));
    let failed = machines::list(&seed, "shoot--a--b", Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(
        matches!(&failed, ProbeFailure::Machines(why) if why == "no answer within 50ms"),
        "{failed}"
    );
}

/// While all shoots are healthy, nothing else asks for a Machine.
#[tokio::test]
async fn a_seed_without_machines_is_found_before_a_loss() {
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let seed = client(&server.kubeconfig("lease-probe")).await.unwrap();
    server.unregister(&keys::MACHINES);
    let (readiness, stop) = (Readiness::default(), CancellationToken::new());
    let run = tokio::spawn(machines::check(seed, readiness.clone(), stop.clone()));
    eventually("it is shown", || !readiness.failures().is_empty()).await;
    assert_eq!(readiness.failures()[0].2.reason, Reason::NotFound);

    server.register(ResourceType::custom(
        "machine.sapcloud.io",
        "v1alpha1",
        "Machine",
        "machines",
        None,
    ));
    eventually("it is over", || readiness.failures().is_empty()).await;
    stop.cancel();
    run.await.unwrap().unwrap();
}

/// A rollout stops there.
#[tokio::test(start_paused = true)]
async fn machines_that_cannot_be_listed_for_minutes_block() {
    let failing = tower::service_fn(async |_: Request<Body>| {
        let status = r#"{"kind": "Status", "code": 500, "message": "the conversion webhook fails"}"#;
        Response::builder().status(500).body(Full::from(status))
    });
    let (readiness, stop) = (Readiness::default(), CancellationToken::new());
    let seed = kube::Client::new(failing, "garden");
    let run = tokio::spawn(machines::check(seed, readiness.clone(), stop.clone()));
    let after = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
    after(90).await;
    assert!(readiness.is_ready(), "a restart may take as long");
    after(150).await;
    let why = &readiness.blockers()["machines"];
    assert!(why.contains("cannot be listed: the conversion webhook"), "{why}");
    stop.cancel();
    run.await.unwrap().unwrap();
}
