//! The control plane migrates to another seed
//!
//! The nodes lose their API server because its control plane migrates. The source stops probing before leases expire
//! and writes nothing; then the Cluster is gone, and the API does not know the shoot. The destination does not probe
//! during the restore. Once that has succeeded, a loss there is prevented.

use watchdog_proto::probe::v1::{Outcome, SkipReason};

use crate::backend::Plan;
use crate::fixture::Fixture;
use watchdog_test_support::wait;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    fixture.reserve(3).await?;
    let (here, there) = (fixture.seed(), fixture.second_seed().await?);
    let source = fixture.shoot_on(here, Plan::nodes(3)).await?;
    let destination = fixture.shoot_on(there, Plan::nodes(3)).await?;
    source.hand_over_healthy().await?;

    source.last_operation("Migrate", "Processing").await?;
    source.cut_all().await;
    source.wait_skipped(SkipReason::Migrating).await?;
    source.stays_untouched(fixture.observation_window()).await?;
    source.delete_cluster().await?;
    wait::until_true("the source forgets it", fixture.times().bound, || async {
        Ok(source.seed().verdict(source.namespace()).await.is_err())
    })
    .await?;

    destination.last_operation("Restore", "Processing").await?;
    destination.wait_skipped(SkipReason::NotReconciled).await?;
    destination.last_operation("Restore", "Succeeded").await?;
    destination.wait_outcome(Outcome::Healthy).await?;
    destination.cut_all().await;
    destination.wait_down().await?;
    destination.reconnect().await;
    destination.wait_restored().await
}
