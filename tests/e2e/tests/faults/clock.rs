//! The clock of lease-probe's host jumps by a minute, forwards and backwards.

use watchdog_test_support::tools;
use watchdog_test_support::wait::BOUND;

use crate::fleet::{EXPIRY, Fleet};

pub(crate) async fn play(fleet: &mut Fleet) {
    let clock = fleet.fixture.scratch().write("clock", "+0").unwrap();
    let set = |offset: &str| std::fs::write(&clock, offset).unwrap();
    fleet.lease_probe.process.stop(BOUND).await.unwrap();
    let command = fleet.lease_probe.command().clone();
    let command = command
        .env("LD_PRELOAD", tools::path(tools::LIBFAKETIME).unwrap())
        .env("FAKETIME_TIMESTAMP_FILE", &clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("DONT_FAKE_MONOTONIC", "1");
    fleet.lease_probe = fleet.fixture.setup.custom(command).await.unwrap();
    fleet.begin().await.unwrap();

    for offset in ["+60", "-60", "+0"] {
        set(offset);
        fleet.no_false_alarm_for(EXPIRY).await.unwrap();
    }
    // In the middle of a loss, and of a recovery.
    let shoot = fleet.shoot();
    shoot.cut_off().await;
    set("+60");
    shoot.wait_down("the loss is acted on").await.unwrap();
    set("-60");
    fleet.check_acts_on_loss().await.unwrap();
}
