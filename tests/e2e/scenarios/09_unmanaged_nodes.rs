//! Two of three nodes are not managed
//!
//! machine-controller-manager does not manage two of three nodes, and all three are cut off. Only one lease counts, and
//! nothing is scaled.

use watchdog_proto::probe::v1::{Exclusion, Outcome};

use super::excluded;
use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3)).await?;
    for node in shoot.nodes().iter().take(2) {
        shoot
            .annotate_node(node, "node.machine.sapcloud.io/not-managed-by-mcm", "true")
            .await?;
    }
    shoot.cut_all().await;
    let verdict = shoot.wait_outcome(Outcome::TooFewCandidates).await?;
    excluded(&verdict, Exclusion::NotManagedByMcm, 2)?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.reconnect().await;
    shoot.wait_outcome(Outcome::Healthy).await?;
    Ok(())
}
