//! A shoot without workers
//!
//! It is not probed, and the verdict says why. No connection to its API server is made, and nothing is scaled.

use anyhow::ensure;
use serde_json::json;
use watchdog_proto::probe::v1::SkipReason;

use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.shoot(Plan::nodes(0).behind_proxy()).await?;
    shoot
        .change_shoot(json!({"spec": {"provider": {"workers": []}}}))
        .await?;
    shoot.hand_over().await?;
    shoot.wait_skipped(SkipReason::NoWorkers).await?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    ensure!(shoot.proxy()?.connections() == 0, "its API server was asked");
    Ok(())
}
