//! The disk is full: the log takes no line, and a write into a file would end the program.

use watchdog_test_support::wait::BOUND;

use crate::fleet::{Fleet, Symptom};

const LOG: Symptom = Symptom {
    name: "log",
    reason: "local_limit",
    message: None,
};

pub(crate) async fn play(fleet: &mut Fleet) {
    for service in [&mut fleet.lease_probe, &mut fleet.coordinator, &mut fleet.weeder] {
        service.process.stop(BOUND).await.unwrap();
        *service = service.again_on_full_disk().await.unwrap();
        LOG.until_shown(&[service]).await.unwrap();
        let lost = service.metric("watchdog_log_lines_lost_total").await.unwrap();
        assert!(lost.is_some_and(|lines| lines > 0.0), "{lost:?}");
    }
    fleet.begin().await.unwrap();
    fleet.check_still_protects().await.unwrap();
}
