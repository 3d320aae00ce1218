//! The leader is frozen between two levels of a scale-down, and the nodes come back meanwhile. Whatever it had decided,
//! it scales nothing down once another replica may lead, and everything is restored.
//!
//! No write is under way when it is frozen: what is on its way to the API server then goes out when it thaws, and only
//! the precondition on the resource version is left to refuse it.

use std::time::Duration;

use crate::support::ScriptedShoots;
use serde_json::Value;
use watchdog_sandbox::AuditEntry;
use watchdog_test_support::coordinator::Outcome;
use watchdog_test_support::wait::{self, BOUND};

const SHOOTS: usize = 8;

/// The leader acts for less time than this after the last renewal of its Lease: 4 s, and a tenth for its clock.
const LEASE_VALIDITY: Duration = Duration::from_millis(4_500);

fn scales_down(entry: &AuditEntry) -> bool {
    let body: Option<Value> = serde_json::from_slice(&entry.body).ok();
    entry.is_write() && body.and_then(|body| body.pointer("/spec/replicas")?.as_i64()) == Some(0)
}

async fn frozen_half_way(name: &str, period: Duration) {
    let fleet = ScriptedShoots::start(name, SHOOTS).await.unwrap();
    fleet.pause_between_levels("3s").unwrap();
    let [frozen, successor] = fleet.replicas(["frozen", "successor"]).await.unwrap();
    let first_level = 2 * SHOOTS;
    let api = fleet.sandbox().unwrap().sandbox.seed();
    let own = |entry: &AuditEntry| entry.user == "frozen" && scales_down(entry);
    fleet.say_all(Outcome::LeasesExpired);
    wait::until_true("the first level is written", BOUND, || async {
        Ok(api.audit().iter().filter(|entry| own(entry)).count() >= first_level)
    })
    .await
    .unwrap();
    frozen.process.sigstop().unwrap();
    wait::holds("it is frozen", period, || async {
        // Where it may lead, the successor goes on with the flow first.
        if period < LEASE_VALIDITY || fleet.actions_of("successor")? > 0 {
            fleet.say_all(Outcome::Healthy);
        }
        Ok(true)
    })
    .await
    .unwrap();
    let thawed_at = api.audit().last().map_or(0, |entry| entry.id);
    frozen.process.sigcont().unwrap();
    fleet.until_restored().await.unwrap();
    fleet.until_following(&[&frozen, &successor]).await.unwrap();
    if period > LEASE_VALIDITY {
        let late: Vec<_> = api.audit_since(thawed_at).into_iter().filter(own).collect();
        assert!(late.is_empty(), "scaled down after its time: {late:?}");
    }
    fleet.end().await.unwrap();
}

/// Shorter than its Lease.
#[tokio::test(flavor = "multi_thread")]
async fn for_2_seconds() {
    frozen_half_way("replicas-frozen-2", Duration::from_secs(2)).await;
}

/// Longer than its Lease, and than others wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn for_20_seconds() {
    frozen_half_way("replicas-frozen-20", Duration::from_secs(20)).await;
}

/// So long that the connections to it are given up.
#[tokio::test(flavor = "multi_thread")]
async fn for_40_seconds() {
    frozen_half_way("replicas-frozen-40", Duration::from_secs(40)).await;
}
