//! The control plane migrates to another seed
//!
//! The nodes of a shoot lose their API server because its control plane migrates. On the source it is no longer probed
//! before the leases could expire, and nothing is written; then its Cluster is gone and nothing is known of it. On the
//! destination it is not probed while the restore runs, and watched over from the moment when it has succeeded: a loss
//! there is acted upon.

use anyhow::ensure;
use watchdog_proto::probe::v1::{Outcome, SkipReason};

use crate::acceptance::backend::Plan;
use crate::acceptance::fixture::Fixture;
use watchdog_test_support::wait;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    fixture.reserve(3).await?;
    let (here, there) = (fixture.seed(), fixture.second_seed().await?);
    let source = fixture.shoot_on(here, Plan::nodes(3)).await?;
    let destination = fixture.shoot_on(there, Plan::nodes(3)).await?;
    source.hand_over_healthy().await?;

    source.last_operation("Migrate", "Processing").await?;
    source.cut_all().await;
    let verdict = source.wait_outcome(Outcome::Skipped).await?;
    ensure!(
        verdict.skip_reason() == SkipReason::Migrating,
        "{}",
        verdict.message
    );
    source.stays_untouched(fixture.observation_window()).await?;
    source.delete_cluster().await?;
    wait::until_true("the source forgets it", fixture.times().bound, || async {
        Ok(source.seed().verdict(source.namespace()).await.is_err())
    })
    .await?;

    destination.last_operation("Restore", "Processing").await?;
    let verdict = destination.wait_outcome(Outcome::Skipped).await?;
    ensure!(
        verdict.skip_reason() == SkipReason::NotReconciled,
        "{}",
        verdict.message
    );
    destination.last_operation("Restore", "Succeeded").await?;
    destination.wait_outcome(Outcome::Healthy).await?;
    destination.cut_all().await;
    destination.wait_down().await?;
    destination.reconnect().await;
    destination.wait_restored().await
}
