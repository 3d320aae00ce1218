//! The acceptance suite on the sandbox.

use std::time::Duration;

use watchdog_e2e::acceptance::backend::{Backend, SandboxBackend};
use watchdog_e2e::acceptance::fault::{self, FaultKind};
use watchdog_e2e::acceptance::runner::play_all;
use watchdog_e2e::acceptance::scenarios;
use watchdog_e2e::acceptance::version_skew::{Age, SkewedPeer, newer_request};
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::process::Command;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::BOUND;
use watchdog_test_support::{binaries, wait};

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios() {
    let backend = SandboxBackend::start().await.unwrap();
    let results = play_all(Backend::Sandbox(backend), &scenarios::ALL)
        .await
        .unwrap();
    results.save("sandbox").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_faults() {
    let results = fault::play_all(&FaultKind::SANDBOX).await;
    results.save("sandbox-faults").unwrap();
    assert_eq!(results.failures(), Vec::<String>::new());
}

/// A coordinator of this version beside a lease-probe of a later one, and of an earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn neighbouring_versions() {
    const SHOOT: &str = "shoot--sandbox--one";
    const OF_A_LATER_VERSION: i32 = 999;
    for age in [Age::Newer, Age::Older] {
        let fixture = SandboxFixture::start("version_skew", &["one"]).await.unwrap();
        let shoot = fixture.shoot("one").unwrap();
        let peer = SkewedPeer::start(age, SHOOT, Outcome::Healthy.into())
            .await
            .unwrap();
        let config = fixture.setup.prober_file().display().to_string();
        let kubeconfig = fixture
            .scratch
            .write("coordinator.kubeconfig", fixture.kubeconfig())
            .unwrap();
        let address = peer.address.to_string();
        let command = Command::new(
            "coordinator",
            binaries::path(binaries::SCALING_COORDINATOR).unwrap(),
        )
        .args(["--insecure-plaintext", "--identity", "scaling-coordinator-0"])
        .args(["--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"])
        .args(["--config-file", &config, "--lease-probe", &address])
        .arg("--kubeconfig")
        .arg(kubeconfig.as_os_str());
        let coordinator = fixture.setup.custom(command).await.unwrap();
        coordinator.wait_ready().await.unwrap();

        peer.say(Outcome::LeasesExpired.into());
        fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
        // Whatever it means, it is not a reason to act.
        peer.say(OF_A_LATER_VERSION);
        wait::holds("an unknown outcome holds", Duration::from_secs(5), || async {
            Ok(fixture.wait_replicas(&shoot, 0, BOUND).await.is_ok())
        })
        .await
        .unwrap();
        peer.say(Outcome::Healthy.into());
        fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
    }
}

/// A consumer of a later version asks a lease-probe of this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_consumer() {
    let fixture = SandboxFixture::start("newer-consumer", &["one"]).await.unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let channel = fixture.setup.channel(&lease_probe).unwrap();
    wait::until_true("it answers as it does to its own", BOUND, || async {
        let answer = newer_request(channel.clone(), "shoot--sandbox--one").await?;
        Ok(answer.verdict.unwrap_or_default().outcome() == Outcome::Healthy)
    })
    .await
    .unwrap();
}
