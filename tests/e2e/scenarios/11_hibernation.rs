//! A shoot hibernates and wakes up
//!
//! Gardener removes the nodes and scales the dependants to zero itself. The watchdog writes nothing to them until the
//! shoot is awake, and then probes it again.

use serde_json::json;
use watchdog_proto::probe::v1::{Outcome, SkipReason};

use crate::backend::Plan;
use crate::fixture::Fixture;
use watchdog_test_support::real::COUNTS;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3)).await?;
    shoot
        .change_shoot(json!({"spec": {"hibernation": {"enabled": true}}}))
        .await?;
    shoot.wait_skipped(SkipReason::Hibernating).await?;
    shoot.cut_all().await;
    for (name, _) in COUNTS {
        shoot.scale(name, 0).await?;
    }
    shoot.wait_down().await?;
    shoot
        .change_shoot(json!({"status": {"hibernated": true}}))
        .await?;
    shoot.stays_untouched(fixture.observation_window()).await?;

    shoot
        .change_shoot(json!({"spec": {"hibernation": {"enabled": false}}}))
        .await?;
    shoot
        .wait_verdict("it is waking up", |verdict| {
            verdict.skip_reason() == SkipReason::WakingUp
        })
        .await?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    for (name, count) in COUNTS {
        shoot.scale(name, count).await?;
    }
    shoot.reconnect().await;
    shoot.wait_restored().await?;
    shoot
        .change_shoot(json!({"status": {"hibernated": false}}))
        .await?;
    shoot.wait_outcome(Outcome::Healthy).await?;
    Ok(())
}
