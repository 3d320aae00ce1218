//! A shoot with a grace period of its own
//!
//! The grace period of a shoot is twice that of the others. When its nodes are cut off, nothing happens for longer than
//! the leases of others would last. Then it is scaled down before its own kube-controller-manager marks the nodes.

use std::time::Duration;

use anyhow::{Context, ensure};
use watchdog_proto::probe::v1::Outcome;

use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3).grace(2.0).counted()).await?;
    shoot.cut_all().await;
    shoot.stays_untouched(fixture.times().grace).await?;
    shoot.wait_down().await?;
    let verdict = shoot.wait_outcome(Outcome::LeasesExpired).await?;
    let age = verdict
        .evidence
        .and_then(|evidence| evidence.expiry_age)
        .context("a verdict without an age")?;
    let grace = fixture.times().grace * 2;
    let room = grace.saturating_sub(Duration::from_secs(3));
    // A renew interval, and two requests that time out.
    let silent = fixture.times().scaled(Duration::from_secs(10)) + Duration::from_secs(23);
    let expected = grace.mul_f64(0.75).max(room.min(silent));
    ensure!(
        u64::try_from(age.seconds)? == expected.as_secs(),
        "a lease counts as expired after {age:?}, not {expected:?}"
    );
    shoot.no_node_turns_unknown(fixture.times().outage()).await?;
    shoot.reconnect().await;
    shoot.wait_restored().await
}
