//! A part of the watchdog or of the seed is missing: its namespace, lease-probe, or the coordinator itself.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_sandbox::Cut;
use watchdog_test_support::fixtures::{KCM, MCM};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{BOUND, holds, until, until_true};

const SHOOT: &str = "shoot--sandbox--one";

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_namespace_is_named_by_every_service() {
    const ANSWER: &str = "namespaces \"garden\" not found (404 NotFound)";
    let fixture = SandboxFixture::start("namespace", &["one"]).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(fixture.seed.clone());
    let garden = namespaces.get("garden").await.unwrap();
    namespaces
        .delete("garden", &DeleteParams::default())
        .await
        .unwrap();
    until_true("the namespace is gone", BOUND, || async {
        Ok(namespaces.get_opt("garden").await?.is_none())
    })
    .await
    .unwrap();
    let kubeconfig = fixture.kubeconfig();
    let setup = &fixture.setup;
    let services = [
        setup.lease_probe("lease-probe-0", &kubeconfig).await.unwrap(),
        setup
            .coordinator("scaling-coordinator-0", &kubeconfig, &[])
            .await
            .unwrap(),
        setup.weeder("weeder-0", &kubeconfig).await.unwrap(),
    ];
    for service in &services {
        let line = format!("membership: the last try failed: {ANSWER}");
        until_true("/readyz has the answer", BOUND, || async {
            let (code, body) = service.admin_get("/readyz").await?;
            Ok(code == 503 && body.lines().any(|found| found == line))
        })
        .await
        .unwrap();
        let series = "watchdog_last_try_failed{loop=\"membership\",reason=\"not_found\"}";
        assert_eq!(service.metric(series).await.unwrap(), Some(1.0));
    }
    let expired = "membership lease expired before it was renewed";
    let [_, coordinator, _] = &services;
    let error = coordinator.process.wait_for_field(expired, "error", BOUND).await;
    assert!(error.unwrap().contains("namespaces \"garden\" not found"));
    let garden = Namespace {
        metadata: ObjectMeta {
            name: garden.metadata.name,
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    namespaces.create(&PostParams::default(), &garden).await.unwrap();
    for service in &services {
        service.wait_ready().await.unwrap();
        until_true("nothing fails any more", BOUND, || async {
            let (_, body) = service.admin_get("/readyz").await?;
            Ok(!body.contains("membership"))
        })
        .await
        .unwrap();
    }
}

/// An incident, and in the middle of it the watchdog is taken away.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_down_is_released_by_a_run_of_the_program() {
    let fixture = SandboxFixture::start("release", &["one"]).await.unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    coordinator.wait_ready().await.unwrap();
    fixture
        .wait_outcome(&lease_probe, SHOOT, probe::Outcome::Healthy, BOUND)
        .await
        .unwrap();
    let shoot = fixture.shoot("one").unwrap();
    shoot.cut(Cut::All);
    fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    let run = async |options: &[&str]| {
        let command = coordinator.command().clone().arg("--release-all");
        let process = command
            .args(options.iter().copied())
            .spawn(&fixture.scratch)
            .unwrap();
        let status = process.wait_exit(BOUND).await.unwrap();
        (
            status.code(),
            std::fs::read_to_string(process.log_path()).unwrap(),
        )
    };
    let (code, output) = run(&["--plan"]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(
        output.contains(&format!("{SHOOT}: level 0: apps/v1 Deployment {KCM}: scale to ")),
        "{output}"
    );
    let (code, output) = run(&["--release-timeout", "3s"]).await;
    assert_eq!(code, Some(1), "the coordinator still runs: {output}");
    assert!(output.contains("scale their Deployment to 0"), "{output}");
    coordinator.process.stop(BOUND).await.unwrap();
    let (code, output) = run(&[]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(
        output.contains(&format!("{SHOOT}: apps/v1 Deployment {MCM}: restored")),
        "{output}"
    );
    assert!(output.contains("nothing is held down"), "{output}");
    fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_starts_first_holds_until_it_hears_something() {
    let fixture = SandboxFixture::start("order", &["one"]).await.unwrap();
    let shoot = fixture.shoot("one").unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    shoot.cut(Cut::All);
    let held = until("the coordinator knows the shoot", BOUND, || async {
        Ok(Some(fixture.scaling(&coordinator, SHOOT).await?))
    })
    .await
    .unwrap();
    assert_eq!(held.direction(), scaling::Direction::Hold, "{}", held.reason);
    holds(
        "nothing is written without a verdict",
        Duration::from_secs(2),
        || async { Ok(fixture.writes(&shoot).is_empty()) },
    )
    .await
    .unwrap();
    let _lease_probe = fixture.lease_probe().await.unwrap();
    fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    shoot.heal();
    fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}
