//! Somebody sets the clock of the host by an hour, also in the middle of an incident. For lease-probe see `scenarios`.
//!
//! Only the time of day is set: Linux lets nobody set the monotonic clock, and the hour after a suspended machine wakes
//! up is that of `frozen`. Clocks that run at another rate are in `replicas` and in the simulations.

use std::time::Duration;

use watchdog_sandbox::Cut;
use watchdog_test_support::tools;
use watchdog_test_support::wait::{BOUND, holds};

use crate::fleet::Fleet;

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_forwards_and_back() {
    let mut fleet = Fleet::start("clock-jumps").await.unwrap();
    let fixture = &fleet.fixture;
    let clock = fixture.scratch.write("clock", "+0").unwrap();
    for service in [&mut fleet.coordinator, &mut fleet.weeder] {
        service.process.stop(BOUND).await.unwrap();
        // The monotonic clock stays.
        let command = service
            .command()
            .clone()
            .env("LD_PRELOAD", tools::path(tools::LIBFAKETIME).unwrap())
            .env("FAKETIME_TIMESTAMP_FILE", &clock)
            .env("FAKETIME_NO_CACHE", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
        *service = fixture.setup.custom(command).await.unwrap();
        service.wait_ready().await.unwrap();
    }
    let shoot = fixture.shoot("one").unwrap();
    for offset in ["+3600", "-3600"] {
        let before = fixture.writes(&shoot).len();
        std::fs::write(&clock, offset).unwrap();
        holds("nothing is written", Duration::from_secs(2), || async {
            let writes = fixture.writes(&shoot);
            anyhow::ensure!(writes.len() == before, "written: {:?}", &writes[before..]);
            Ok(true)
        })
        .await
        .unwrap();
        shoot.cut(Cut::All);
        fixture.wait_replicas(&shoot, 0, BOUND).await.unwrap();
        std::fs::write(&clock, "+0").unwrap();
        holds("what is down stays down", Duration::from_secs(2), || async {
            let kcm = shoot.workload(watchdog_test_support::fixtures::KCM);
            Ok(kcm.is_some_and(|kcm| kcm.spec_replicas == 0))
        })
        .await
        .unwrap();
        shoot.heal();
        fixture.wait_replicas(&shoot, 1, BOUND).await.unwrap();
    }
    fleet.check_no_false_alarm(1).unwrap();
    // Not even for a moment.
    for service in [&fleet.coordinator, &fleet.weeder] {
        let expired = service.process.log_reader().find(|line| {
            line.text
                .contains("membership lease expired")
                .then(|| line.text.to_owned())
        });
        assert_eq!(expired.unwrap(), None);
    }
}
