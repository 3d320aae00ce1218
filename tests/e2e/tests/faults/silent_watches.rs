//! Watches that are open and carry nothing any more while requests work, as behind a firewall that has forgotten a
//! connection.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use watchdog_proto::probe::v1::{Outcome, SkipReason};
use watchdog_proto::scaling::v1::Direction;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;
use watchdog_proto::weeder::v1::{ListEndpointReadinessRequest, Readiness};
use watchdog_sandbox::SimulatedShoot;
use watchdog_test_support::fixtures::{KCM, PROBE_SECRET};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{BOUND, until};
use watchdog_test_support::watchdog::Service;

/// A silent connection counts as dead after 30 s (ADR 0017). The rest is for a machine that is late.
const NOTICED: Duration = Duration::from_secs(60);

const SHOOTS: [&str; 4] = ["hibernates", "repaired", "appears", "scaled"];

/// Waits until lease-probe has received the newest Clusters and Secrets.
async fn lease_probe_knows(
    fixture: &SandboxFixture,
    lease_probe: &Service,
    [hibernates, repaired, appears, _]: &[SimulatedShoot; 4],
) -> anyhow::Result<()> {
    let outcome = async |shoot: &SimulatedShoot, outcome| {
        fixture
            .wait_outcome(lease_probe, shoot.namespace(), outcome, NOTICED)
            .await
    };
    let hibernating = outcome(hibernates, Outcome::Skipped).await?;
    anyhow::ensure!(
        hibernating.skip_reason() == SkipReason::Hibernating,
        "{hibernating:?}"
    );
    outcome(repaired, Outcome::Healthy).await?;
    outcome(appears, Outcome::Healthy).await?;
    Ok(())
}

/// The same for the coordinator, with Clusters and Deployments.
async fn coordinator_knows(
    fixture: &SandboxFixture,
    coordinator: &Service,
    [hibernates, _, _, scaled]: &[SimulatedShoot; 4],
) -> anyhow::Result<()> {
    until("the coordinator knows of all changes", NOTICED, || async {
        let held = fixture.scaling(coordinator, hibernates.namespace()).await?;
        let hibernates = held.direction() == Direction::Hold && held.reason.contains("hibernat");
        anyhow::ensure!(hibernates, "{held:?}");
        let state = fixture.scaling(coordinator, scaled.namespace()).await?;
        let of_kcm = |r: &&watchdog_proto::scaling::v1::ResourceScaling| {
            r.resource.as_ref().is_some_and(|resource| resource.name == KCM)
        };
        let replicas = state.resources.iter().find(of_kcm).and_then(|r| r.spec_replicas);
        anyhow::ensure!(replicas == Some(4), "{state:?}");
        Ok(Some(()))
    })
    .await
}

/// The same for the weeder, with what is behind the Services.
async fn weeder_knows(
    fixture: &SandboxFixture,
    weeder: &Service,
    [.., scaled]: &[SimulatedShoot; 4],
) -> anyhow::Result<()> {
    until("the weeder knows of all changes", NOTICED, || async {
        let mut client = WeederServiceClient::new(fixture.setup.channel(weeder)?);
        let request = ListEndpointReadinessRequest {
            namespace: scaled.namespace().to_owned(),
            service: "kube-apiserver".to_owned(),
            ..Default::default()
        };
        let services = client
            .list_endpoint_readiness(request)
            .await?
            .into_inner()
            .services;
        let not_ready = services
            .iter()
            .any(|service| service.readiness() == Readiness::NotReady);
        anyhow::ensure!(not_ready, "{services:?}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_program_notices() {
    let fixture = SandboxFixture::start("silent-watches", &SHOOTS).await.unwrap();
    let shoots = SHOOTS.map(|name| fixture.shoot(name).unwrap());
    let [hibernates, repaired, appears, scaled] = &shoots;
    appears.set_last_operation("Create", "Processing").unwrap();
    let secrets: Api<Secret> = Api::namespaced(fixture.seed.clone(), repaired.namespace());
    let broken = Patch::Merge(json!({"data": {"kubeconfig": "YnJva2Vu"}}));
    secrets
        .patch(PROBE_SECRET, &PatchParams::default(), &broken)
        .await
        .unwrap();
    let (lease_probe, coordinator, weeder) =
        tokio::try_join!(fixture.lease_probe(), fixture.coordinator(), fixture.weeder()).unwrap();
    for (shoot, outcome) in [
        (hibernates, Outcome::Healthy),
        (repaired, Outcome::Inconclusive),
        (appears, Outcome::Skipped),
        (scaled, Outcome::Healthy),
    ] {
        fixture
            .wait_outcome(&lease_probe, shoot.namespace(), outcome, BOUND)
            .await
            .unwrap();
    }

    fixture.sandbox.seed().silence_watches();
    hibernates.set_hibernated(true).unwrap();
    repaired.rotate_kubeconfig().unwrap();
    appears.set_last_operation("Create", "Succeeded").unwrap();
    scaled.scale(KCM, 4).unwrap();
    scaled.service_down("kube-apiserver");
    tokio::try_join!(
        lease_probe_knows(&fixture, &lease_probe, &shoots),
        coordinator_knows(&fixture, &coordinator, &shoots),
        weeder_knows(&fixture, &weeder, &shoots),
    )
    .unwrap();
}
