//! All programs are frozen (SIGSTOP) while every shoot is healthy, as on a host that is suspended. For a coordinator
//! that is frozen in the middle of a scale-down see `replicas`.

use std::time::Duration;

use crate::fleet::{Fleet, STALLED};

async fn frozen(name: &str, period: Duration) {
    let fleet = Fleet::start(name).await.unwrap();
    for service in fleet.services() {
        service.process.sigstop().unwrap();
    }
    fleet.no_false_alarm_for(period).await.unwrap();
    for service in fleet.services() {
        service.process.sigcont().unwrap();
    }
    STALLED.until_shown(&fleet.services()).await.unwrap();
    for service in fleet.services() {
        let stalls = service.metric("watchdog_stall_seconds_sum").await.unwrap();
        let frozen = period.as_secs_f64() - 0.5;
        assert!(stalls.is_some_and(|seconds| seconds >= frozen), "{stalls:?}");
    }
    fleet.check_still_protects().await.unwrap();
    STALLED.until_gone(&fleet.services()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn for_5_seconds() {
    frozen("frozen-5", Duration::from_secs(5)).await;
}

/// Longer than a Lease is valid, that of a member or of the leader, and than a silent watch is trusted.
#[tokio::test(flavor = "multi_thread")]
async fn for_40_seconds() {
    frozen("frozen-40", Duration::from_secs(40)).await;
}
