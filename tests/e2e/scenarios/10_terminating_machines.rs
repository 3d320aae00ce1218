//! Two of three machines are being replaced
//!
//! Two of three machines are Terminating, and all three nodes are cut off. Only one lease counts, and nothing is
//! scaled.

use watchdog_proto::probe::v1::{Exclusion, Outcome};

use super::excluded;
use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3)).await?;
    shoot.cut_all().await;
    for node in shoot.nodes().iter().take(2) {
        shoot.set_machine_phase(node, "Terminating").await?;
    }
    let verdict = shoot.wait_outcome(Outcome::TooFewCandidates).await?;
    excluded(&verdict, Exclusion::MachineTerminating, 2)?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.reconnect().await;
    shoot.wait_outcome(Outcome::Healthy).await?;
    Ok(())
}
