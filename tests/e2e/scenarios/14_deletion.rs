//! A shoot is deleted
//!
//! The deletion begins, and the nodes go. The shoot is not probed, and nothing is written. When the Cluster is gone,
//! the API does not know the shoot.

use serde_json::json;
use watchdog_proto::probe::v1::SkipReason;

use crate::backend::Plan;
use crate::fixture::Fixture;
use watchdog_test_support::wait;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3)).await?;
    let now = jiff::Timestamp::now().to_string();
    shoot
        .change_shoot(json!({"metadata": {"deletionTimestamp": now}}))
        .await?;
    shoot.cut_all().await;
    shoot.wait_skipped(SkipReason::Deleting).await?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.delete_cluster().await?;
    wait::until_true("it is forgotten", fixture.times().bound, || async {
        Ok(shoot.seed().verdict(shoot.namespace()).await.is_err())
    })
    .await
}
