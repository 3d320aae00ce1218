//! The kubeconfig is broken, then repaired
//!
//! The Secret with the probe's kubeconfig is overwritten with something else. The verdict says so, and nothing is
//! scaled. Once the Secret is repaired, the shoot is healthy again without a restart.

use anyhow::ensure;
use watchdog_proto::probe::v1::Outcome;

use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3)).await?;
    shoot.set_kubeconfig("not a kubeconfig").await?;
    let verdict = shoot.wait_outcome(Outcome::Inconclusive).await?;
    ensure!(verdict.message.contains("kubeconfig"), "{}", verdict.message);
    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.set_kubeconfig(&shoot.probe_kubeconfig()?).await?;
    shoot.wait_outcome(Outcome::Healthy).await?;
    Ok(())
}
