//! A shoot whose API server is hostile, beside shoots of which one loses its nodes: the loss is acted on as if the
//! hostile one were not there.

use tonic::transport::Channel;
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_sandbox::hostile::{HostileServer, Hostility};
use watchdog_test_support::fixtures::{self, PROBE_SECRET};
use watchdog_test_support::real::{create_cluster, create_kubeconfig_secret, create_namespace};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::{self, Service};

const HOSTILE: &str = "shoot--hostile--one";

/// Characters of a message: a name of 253 bytes, and the sentence around it.
const LONGEST_MESSAGE: usize = 512;

/// The log of a program that starts and acts on one loss. The name of the hostile node alone is larger.
const MOST_LOG_BYTES: u64 = 150_000;

/// Healthy shoots, and one whose only node has a name of 300,000 bytes.
async fn start(name: &str) -> anyhow::Result<(SandboxFixture, HostileServer)> {
    let fixture = SandboxFixture::start(name, &["one", "two"]).await?;
    let server = HostileServer::start(Hostility::LongName, true).await?;
    create_namespace(&fixture.seed, HOSTILE).await?;
    create_kubeconfig_secret(&fixture.seed, HOSTILE, PROBE_SECRET, &server.kubeconfig).await?;
    create_cluster(&fixture.seed, HOSTILE, fixtures::shoot("40s")).await?;
    Ok((fixture, server))
}

/// Waits until the name has reached a message: then the attack has begun.
async fn until_quoted(lease_probe: &Channel) -> anyhow::Result<Verdict> {
    wait::until("the hostile name is quoted", BOUND, || async {
        let verdict = watchdog::verdict(lease_probe.clone(), HOSTILE).await?;
        anyhow::ensure!(verdict.message.contains("nnn"), "{}", verdict.message);
        Ok(Some(verdict))
    })
    .await
}

fn check_text(text: &str) {
    assert!(text.chars().count() <= LONGEST_MESSAGE, "{text}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

/// A shoot that is cut off is scaled down and restored.
async fn check_protects(fixture: &SandboxFixture) {
    let shoot = fixture.shoot("two").unwrap();
    fixture.cut_off(&shoot);
    fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
    fixture.reconnect(&shoot);
    fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
}

fn check_log(service: &Service) {
    let log = service.process.log_path();
    let bytes = std::fs::metadata(log).unwrap().len();
    assert!(bytes < MOST_LOG_BYTES, "{}: {bytes} bytes", log.display());
    let text = std::fs::read_to_string(log).unwrap();
    let longest = text.lines().map(str::len).max();
    assert!(longest.is_some_and(|bytes| bytes < 4_096), "{longest:?}");
    assert!(!text.contains('\u{1b}'));
}

/// The series of streams that were lost, and of messages that were skipped.
async fn lost(service: &Service) -> Vec<String> {
    let (_, metrics) = service.admin_get("/metrics").await.unwrap();
    let prefixes = [
        "watchdog_stream_client_reconnects_total{",
        "watchdog_stream_client_skipped_total{",
    ];
    let lines = metrics.lines();
    lines
        .filter(|line| prefixes.iter().any(|prefix| line.starts_with(prefix)))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_name_of_300_000_bytes_costs_other_shoots_nothing() {
    let (fixture, _server) = start("hostile-name").await.unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    let channel = fixture.setup.channel(&lease_probe).unwrap();
    let verdict = until_quoted(&channel).await.unwrap();
    assert_eq!(verdict.outcome(), Outcome::Inconclusive);
    check_text(&verdict.message);
    for shoot in fixture.sandbox.shoots() {
        let healthy = fixture.wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy);
        healthy.await.unwrap();
    }
    let before = lost(&coordinator).await;
    check_protects(&fixture).await;
    fixture.check_history().await.unwrap();
    // It was quoted all the time, and cost no stream.
    until_quoted(&channel).await.unwrap();
    assert_eq!(lost(&coordinator).await, before);
    assert!(coordinator.is_ready().await.unwrap());
    check_log(&lease_probe);
    check_log(&coordinator);
}
