//! Two of three nodes are not managed
//!
//! machine-controller-manager does not manage two of three nodes, and all three are cut off. Only one lease counts, and
//! nothing is scaled.

use watchdog_proto::probe::v1::Exclusion;

use super::one_lease_is_too_few;
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
    one_lease_is_too_few(fixture, &shoot, Exclusion::NotManagedByMcm).await
}
