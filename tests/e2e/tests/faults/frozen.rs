//! All programs are frozen (SIGSTOP) while every shoot is healthy, as on a host that is suspended. For a coordinator
//! that is frozen in the middle of a scale-down see the binary `kubernetes`.

use std::time::Duration;

use watchdog_test_support::watchdog::Service;

use crate::fleet::{Fleet, STALLED};

/// The seconds that a program has stood still.
async fn stalled(service: &Service) -> f64 {
    let stalled = service.metric("watchdog_stall_seconds_sum").await.unwrap();
    stalled.unwrap_or_default()
}

pub(crate) async fn play(fleet: &mut Fleet, period: Duration) {
    fleet.begin().await.unwrap();
    let mut before = Vec::new();
    for service in fleet.services() {
        before.push(stalled(service).await);
        service.process.sigstop().unwrap();
    }
    fleet.no_false_alarm_for(period).await.unwrap();
    for service in fleet.services() {
        service.process.sigcont().unwrap();
    }
    STALLED.until_shown(&fleet.services()).await.unwrap();
    for (service, before) in fleet.services().into_iter().zip(before) {
        let more = stalled(service).await - before;
        assert!(more >= period.as_secs_f64() - 0.5, "{more}");
    }
    fleet.check_still_protects().await.unwrap();
    STALLED.until_gone(&fleet.services()).await.unwrap();
}
