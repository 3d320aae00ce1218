//! The shoot's API server is gone
//!
//! The kube-apiserver of a shoot is away for longer than leases last, so no kubelet can renew. Nothing is scaled, not
//! even when it answers again and shows the old leases.

use watchdog_proto::probe::v1::Outcome;

use crate::backend::Plan;
use crate::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3)).await?;
    shoot.stop_api_server().await?;
    shoot.wait_outcome(Outcome::ApiServerUnreachable).await?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.start_api_server().await?;
    shoot.wait_outcome(Outcome::Healthy).await?;
    shoot.stays_untouched(fixture.observation_window()).await
}
