//! Two of three machines are being replaced
//!
//! Two of three machines are Terminating, and all three nodes are cut off. Only one lease counts, and nothing is
//! scaled.

use watchdog_proto::probe::v1::Exclusion;

use super::one_lease_is_too_few;
use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3)).await?;
    shoot.cut_all().await;
    for node in shoot.nodes().iter().take(2) {
        shoot.set_machine_phase(node, "Terminating").await?;
    }
    one_lease_is_too_few(fixture, &shoot, Exclusion::MachineTerminating).await
}
