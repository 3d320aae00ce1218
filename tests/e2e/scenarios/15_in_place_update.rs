//! Nodes are updated in place
//!
//! Two of three nodes are updated in place, which stops their kubelets, and the third is cut off. Only one lease
//! counts, and nothing is scaled.

use watchdog_proto::probe::v1::Exclusion;

use super::{one_lease_is_too_few, slow_controller};
use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.shoot(Plan::nodes(3).grace(3.0)).await?;
    slow_controller(fixture, &shoot).await?;
    shoot.hand_over_healthy().await?;
    shoot.cut_all().await;
    let reasons = ["ReadyForUpdate", "UpdateFailed"];
    for (node, reason) in shoot.nodes().iter().zip(reasons) {
        shoot.set_condition(node, "InPlaceUpdate", "True", reason).await?;
    }
    one_lease_is_too_few(fixture, &shoot, Exclusion::InPlaceUpdate).await
}
