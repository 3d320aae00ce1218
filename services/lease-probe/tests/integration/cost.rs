//! The requests of a healthy probe, which are one small list on a kept connection, and the time limit of a slow one.

use watchdog_proto::probe::v1::Outcome;
use watchdog_sandbox::{AuditEntry, Fault, FaultAction};
use watchdog_test_support::simulation::Cut;

use crate::eventually;
use crate::fixture::{Fixture, LEASES, fast, real};
use crate::replica::Replica;

#[tokio::test]
async fn a_healthy_probe_is_one_list_on_one_connection_and_asks_the_seed_nothing() {
    let fixture = Fixture::new(real(), 20, &["alpha"]).await;
    fixture.configure(&[("backoffJitterFactor", "0")]);
    let alpha = fixture.shoot("alpha");
    let replica = Replica::start(&fixture).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;
    let api = alpha.api();
    eventually("ten probes", || {
        api.audit().iter().filter(|entry| entry.path == LEASES).count() >= 10
    })
    .await;
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
    let seed = fixture.seed().audit();
    let mut of_machines = seed
        .iter()
        .filter(|entry| entry.verb == "list" && entry.path.ends_with("/machines"));
    let is_check =
        |entry: &AuditEntry| !entry.path.contains("/namespaces/") && entry.query.contains("limit=1");
    assert!(of_machines.all(is_check), "{seed:?}");
}

/// `probeTimeout` is for the probe as a whole: two lists that are in time each are not in time together.
#[tokio::test]
async fn a_probe_has_one_time_limit_for_all_its_lists() {
    let fixture = Fixture::new(fast(), 5, &["alpha"]).await;
    fixture.configure(&[("probeTimeout", "3s")]);
    let alpha = fixture.shoot("alpha");
    let replica = Replica::start(&fixture).await;
    replica.until_outcome(&alpha, Outcome::Healthy).await;
    for path in [LEASES, "/api/v1/nodes"] {
        let slow = FaultAction::Delay { millis: 2_000 };
        alpha.api().inject(Fault::always(slow).path(path));
    }
    // Now the nodes matter, and are listed after the leases.
    alpha.cut(Cut::Nodes(vec![alpha.nodes()[0].name.clone()]));
    let late = "took longer than 3s";
    replica.until_said(&alpha, Outcome::Inconclusive, late).await;
    alpha.api().clear_faults();
    replica.until_outcome(&alpha, Outcome::Healthy).await;
}
