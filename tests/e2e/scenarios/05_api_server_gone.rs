//! The shoot's API server is gone
//!
//! The kube-apiserver of a shoot ends, so that nobody can renew a lease, and comes back after longer than the leases
//! last. Nothing was known of the nodes in that time: nothing is scaled, also not on the first look at leases that
//! nobody had a chance to renew.

use watchdog_proto::probe::v1::Outcome;

use crate::acceptance::backend::Plan;
use crate::acceptance::fixture::Fixture;

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    let shoot = fixture.healthy_shoot(Plan::nodes(3)).await?;
    shoot.stop_api_server().await?;
    shoot.wait_outcome(Outcome::ApiServerUnreachable).await?;
    shoot.stays_untouched(fixture.observation_window()).await?;
    shoot.start_api_server().await?;
    shoot.wait_outcome(Outcome::Healthy).await?;
    shoot.stays_untouched(fixture.observation_window()).await
}
