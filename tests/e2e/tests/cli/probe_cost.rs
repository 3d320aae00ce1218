//! The requests of a healthy probe, which are one small list on a kept connection, and the time limit of a slow one.

use watchdog_proto::probe::v1::Outcome;
use watchdog_sandbox::{AuditEntry, Fault, FaultAction};
use watchdog_test_support::fixtures;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::simulation::{Cut, SimulatedShootSpec};
use watchdog_test_support::wait::{BOUND, until_true};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_probe_is_one_list_on_one_connection_and_asks_the_seed_nothing() {
    let spec = SimulatedShootSpec::new("one", 20);
    let prober = fixtures::prober(
        "probeInterval: 1s\nbackoffJitterFactor: 0\ninitialDelay: 1s",
        "500ms",
    );
    let fixture = SandboxFixture::start_with("cost", vec![spec], &prober, &fixtures::weeder("1m"))
        .await
        .unwrap();
    let shoot = fixture.shoot("one").unwrap();
    // The default of 40 s: a lease that is late on a busy machine is far from its expiry.
    shoot
        .update_cluster(|cluster| {
            if let Some(kubernetes) = cluster.pointer_mut("/spec/shoot/spec/kubernetes") {
                *kubernetes = serde_json::json!({});
            }
        })
        .unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    fixture
        .wait_outcome(&lease_probe, shoot.namespace(), Outcome::Healthy)
        .await
        .unwrap();
    let api = shoot.api();
    until_true("ten probes", BOUND, || async {
        Ok(api.audit().iter().filter(|entry| entry.path == LEASES).count() >= 10)
    })
    .await
    .unwrap();
    let asked: Vec<_> = api
        .audit()
        .iter()
        .map(|entry| format!("{} {}?{}", entry.verb, entry.path, entry.query))
        .collect();
    // Once, the nodes are counted: leases that were deleted before the start do not show.
    let is_count = |request: &&String| *request == "list /api/v1/nodes?limit=1";
    let is_list = |request: &&String| **request == format!("list {LEASES}?limit=500");
    assert_eq!(asked.iter().filter(is_count).count(), 1, "{asked:?}");
    assert_eq!(asked.iter().filter(is_list).count(), asked.len() - 1, "{asked:?}");
    assert_eq!(api.counters().connections, 1);
    // The seed is asked for a shoot's machines only when nodes matter. Every minute, one of all shoots shows that they
    // can be listed.
    let seed = fixture.sandbox.seed().audit();
    let mut of_machines = seed.iter().filter(|entry| entry.path.ends_with("/machines"));
    let is_check =
        |entry: &AuditEntry| !entry.path.contains("/namespaces/") && entry.query.contains("limit=1");
    assert!(of_machines.all(is_check), "{seed:?}");
}

/// `probeTimeout` is for the probe as a whole: two lists that are in time each are not in time together.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_has_one_time_limit_for_all_its_lists() {
    let fixture = SandboxFixture::start("whole", &["one"]).await.unwrap();
    let shoot = fixture.shoot("one").unwrap();
    let lease_probe = fixture.lease_probe().await.unwrap();
    let outcome = async |outcome| {
        let outcome = fixture.wait_outcome(&lease_probe, shoot.namespace(), outcome);
        outcome.await.unwrap()
    };
    outcome(Outcome::Healthy).await;
    for path in [LEASES, "/api/v1/nodes"] {
        let slow = FaultAction::Delay { millis: 2_000 };
        shoot.api().inject(Fault::always(slow).path(path));
    }
    // Now the nodes matter, and are listed after the leases.
    shoot.cut(Cut::Nodes(vec![shoot.nodes()[0].name.clone()]));
    let verdict = outcome(Outcome::Inconclusive).await;
    assert!(
        verdict.message.contains("took longer than 3s"),
        "{}",
        verdict.message
    );
    shoot.api().clear_faults();
    outcome(Outcome::Healthy).await;
}
