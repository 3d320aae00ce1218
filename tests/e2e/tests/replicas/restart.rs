//! A coordinator that is killed and started again in its Pod, as the kubelet does it, goes on at once (ADR 0009).

use std::time::Duration;

use crate::support::{ReplicaProcess, ScriptedShoots};
use watchdog_test_support::process::Command;
use watchdog_test_support::wait::{self, BOUND};

/// The log message of a process that waits for the end of the lease of another one with its name.
const WAITS: &str = "waiting until it expires";

async fn start(fleet: &ScriptedShoots, name: &str, arguments: &[&str]) -> ReplicaProcess {
    let more = |command: Command| command.args(arguments.iter().copied());
    fleet.replica_with(name, more).await.unwrap()
}

fn log(replica: &ReplicaProcess) -> String {
    std::fs::read_to_string(replica.process.log_path()).unwrap()
}

async fn until_joined(replica: &ReplicaProcess) {
    replica
        .process
        .wait_for_text("replica joined the membership", BOUND)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_same_pod_does_not_wait_for_the_lease_of_its_predecessor() {
    let fleet = ScriptedShoots::start("restart", 6).await.unwrap();
    let uids = [(); 2].map(|()| format!("{:032x}", rand::random::<u128>()));
    let [in_pod_a, in_pod_b] = uids.each_ref().map(|uid| ["--pod-uid", uid.as_str()]);
    let mut a = start(&fleet, "a", &in_pod_a).await;
    let b = start(&fleet, "b", &in_pod_b).await;
    let flips = fleet.flip();
    fleet.until_all_acted_on().await.unwrap();
    fleet.until_acting(&["a", "b"]).await.unwrap();
    for _ in 0..2 {
        a.process.kill_9().await.unwrap();
        a = a.again().await.unwrap();
        until_joined(&a).await;
        assert!(!log(&a).contains(WAITS), "{}", log(&a));
        fleet.until_acting(&["a", "b"]).await.unwrap();
    }
    drop(flips);
    fleet.end().await.unwrap();
    drop(b);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_dead_predecessor_in_the_same_pod_is_inherited() {
    let fleet = ScriptedShoots::start("restart-others", 1).await.unwrap();
    let uid = format!("{:032x}", rand::random::<u128>());
    let first = start(&fleet, "a", &["--pod-uid", &uid]).await;
    until_joined(&first).await;
    // Somebody starts a second one by hand in the running Pod.
    let twin = start(&fleet, "a", &["--pod-uid", &uid]).await;
    twin.process
        .wait_for_text("it does not count as the predecessor of this one", BOUND)
        .await
        .unwrap();
    twin.process.wait_for_text(WAITS, BOUND).await.unwrap();
    assert!(!log(&twin).contains("replica joined the membership"));
    twin.process.kill_9().await.unwrap();
    // Another Pod of the same name, as a StatefulSet makes it: the old one may still live on a node that is cut off.
    first.process.kill_9().await.unwrap();
    let other = format!("{:032x}", rand::random::<u128>());
    let successor = start(&fleet, "a", &["--pod-uid", &other]).await;
    successor.process.wait_for_text(WAITS, BOUND).await.unwrap();
    wait::holds("it does not act", Duration::from_secs(3), || async {
        Ok(!log(&successor).contains("replica joined the membership"))
    })
    .await
    .unwrap();
}
