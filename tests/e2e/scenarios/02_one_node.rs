//! A single node is lost
//!
//! The lease of the only node stops. One lease cannot tell a lost connection from a lost node: the verdict says so, and
//! nothing is scaled.

use watchdog_proto::probe::v1::Outcome;

use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(1)).await?;
    shoot.cut_all().await;
    shoot.wait_outcome(Outcome::TooFewCandidates).await?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.reconnect().await;
    shoot.wait_outcome(Outcome::Healthy).await?;
    Ok(())
}
